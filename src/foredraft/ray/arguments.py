"""The arguments of `foredraft.ray:build`, as they stand under `args:` in a Serve YAML file.

Names are those of `foredraft serve`'s flags, with _ for -; values are plain YAML. What follows the model is optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from foredraft.engine.open_target import EngineArgs
from foredraft.errors import ConfigError
from foredraft.server.model_spec import ModelSpec
from foredraft.server.settings import ServerSettings

__all__ = ["Described", "Replicas", "autoscale_range", "cluster_share", "read_arguments"]

AUTO: Mapping[str, object] = {"method": "auto"}
RENAMED = {"served_model_name": "model_names", "override_generation_config": "generation_config"}
NOT_HERE = {"plan"}
LISTS = {"model_names", "api_keys", "allowed_origins"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How many engine replicas there are, and what each one takes of the cluster.

    autoscale   (least, most) instead of a fixed number
    imbalance   requests that a replica may have more than the least busy one before prefix affinity gives way
    """

    replicas: int = 1
    autoscale: tuple[int, int] | None = None
    num_cpus: float = 1
    num_gpus: float = 0
    imbalance: int = 4

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ConfigError(f"replicas is {self.replicas}; give at least 1.")
        if self.autoscale is not None and not 1 <= self.autoscale[0] <= self.autoscale[1]:
            least, most = self.autoscale
            raise ConfigError(f"autoscale is {least}:{most}; give MIN:MAX with 1 <= MIN <= MAX.")
        if self.imbalance < 1:
            raise ConfigError(f"imbalance is {self.imbalance}; give at least 1.")


class Described(NamedTuple):
    """What the arguments add up to."""

    spec: ModelSpec
    settings: ServerSettings
    replicas: Replicas


def autoscale_range(text: str) -> tuple[int, int]:
    """ "1:4" as (1, 4)."""
    least, colon, most = text.partition(":")
    if not (colon and least.isdecimal() and most.isdecimal()):
        raise ConfigError(f"autoscale is {text!r}; write it like 1:4.")
    return int(least), int(most)


def cluster_share(device: str, replicas: int, autoscale: tuple[int, int] | None) -> Replicas:
    """Replicas of one core each, and of one GPU each if the model goes to one."""
    import torch

    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    return Replicas(replicas=replicas, autoscale=autoscale, num_gpus=float(on_gpu))


def read_arguments(args: Mapping[str, Any]) -> Described:
    """Raises ConfigError for a name that isn't known, or a value that makes no sense."""
    given = dict(args)
    if not isinstance(given.get("model"), str):
        raise ConfigError("args has no model; give a hub id, a folder or a .gguf file.")
    speculation = given.pop("speculative_config", AUTO)
    if speculation is not None and not isinstance(speculation, Mapping):
        raise ConfigError(f"speculative_config is {speculation!r}; give a mapping, or null to decode plainly.")
    generation = given.pop("generation_config", "auto")
    settings: dict[str, Any] = {"model_names": (given["model"],)}
    engine, replicas = dict[str, Any](), dict[str, Any]()
    for name, value in given.items():
        field = RENAMED.get(name, name)
        if field in ENGINE:
            engine[field] = value
        elif field in REPLICAS:
            replicas[field] = autoscale_range(value) if field == "autoscale" and isinstance(value, str) else value
        elif field in SERVER:
            settings[field] = _tuple(value) if field in LISTS else value
        else:
            known = sorted({*ENGINE, *REPLICAS, *SERVER, *RENAMED, "speculative_config"} - {*RENAMED.values()})
            raise ConfigError(f"args has the unknown name {name!r}; it knows {', '.join(known)}.")
    try:
        spec = ModelSpec(EngineArgs(**engine), speculation, generation)
        described = Described(spec, ServerSettings(**settings), Replicas(**replicas))
    except TypeError as error:
        raise ConfigError(f"A value in args has the wrong type ({error}); correct it.") from error
    _ = spec.method  # a wrong one is refused here rather than in every replica
    return described


def _tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


ENGINE = {field.name for field in fields(EngineArgs)}
REPLICAS = {field.name for field in fields(Replicas)}
SERVER = {field.name for field in fields(ServerSettings)} - NOT_HERE
