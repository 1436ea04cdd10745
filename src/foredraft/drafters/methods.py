"""From a `speculative_config`, vLLM's JSON object, to a drafter.

`METHODS` names the drafters; a drafter's dataclass fields are the keys it understands. Drafters of other packages
register under the entry-point group `foredraft.drafters` and are configured the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from foredraft.drafters.base import Drafter
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle import Eagle3Drafter, EagleDrafter
from foredraft.drafters.head_method import method_of
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.drafters.lookahead import LookaheadDrafter
from foredraft.drafters.medusa import MedusaDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.prediction import PredictionDrafter
from foredraft.drafters.recycling import RecyclingDrafter
from foredraft.drafters.suffix import SuffixDrafter
from foredraft.drafters.tree_shape import MOST_NODES
from foredraft.errors import ConfigError, LoadError

__all__ = ["ENTRY_POINTS", "METHODS", "Speculation", "build_drafter"]

ENTRY_POINTS = "foredraft.drafters"
OFF = "off"
LENGTH = "num_speculative_tokens"
DEFAULT_LENGTH = 8
"""For drafters of other packages that have no default of their own."""
JSON_TYPES: Mapping[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str, "bool": bool}

METHODS: Mapping[str, type[Any]] = {
    "auto": HybridDrafter,
    "draft_model": DraftModelDrafter,
    "eagle": EagleDrafter,
    "eagle3": Eagle3Drafter,
    "hybrid": HybridDrafter,
    "lookahead": LookaheadDrafter,
    "medusa": MedusaDrafter,
    "ngram": NgramDrafter,
    "prediction": PredictionDrafter,
    "recycling": RecyclingDrafter,
    "suffix": SuffixDrafter,
}
"""Method name -> drafter class. "auto" is what is used when nothing is said."""

MEANINGLESS = {
    "attention_backend": "there is one attention",
    "disable_padded_drafter_batch": "batches are never padded",
    "draft_load_config": "draft models are loaded like targets",
    "draft_sample_method": "drafts always share the target's noise",
    "draft_tensor_parallel_size": "models run on one device",
    "enforce_eager": "drafters have no graphs to capture",
    "max_model_len": "drafters go as far as the target and they themselves can",
    "moe_backend": "there is one implementation of experts",
    "parallel_drafting": "it is a property of a checkpoint",
    "quantization": "draft models run in the format they are stored in",
    "rejection_sample_method": "drafts are accepted by one exact rule",
    "use_heterogeneous_vocab": "drafts are token ids, so both models must share a vocabulary",
}
"""Keys of vLLM's speculative_config that make no difference here, and why."""


class Speculation(NamedTuple):
    """A drafter, and how many draft nodes it may propose per sequence and step."""

    method: str
    drafter: Drafter
    num_speculative_tokens: int


def build_drafter(config: Mapping[str, object]) -> Speculation | None:
    """The drafter that a `speculative_config` describes; None for method "off".

    Without a method, a given `model` means "draft_model", unless it is a drafting head, and nothing means "auto".
    `drafters` of a hybrid is a list of such configs. Raises ConfigError for an unknown method, key or value, naming the
    known ones, and LoadError for a drafter of another package that can't be imported or a head that can't be read.
    """
    method = config.get("method") or _method_of_model(config)
    if method == OFF:
        return None
    drafter_class = _find(method)
    known = {field.name: field for field in fields(drafter_class) if field.init and field.metadata.get("config", True)}
    values = {key: value for key, value in config.items() if key not in ("method", LENGTH) or key in known}
    for key, value in values.items():
        if key not in known:
            raise _unknown_key(key, method, known)
        values[key] = _parse(key, value, known[key])
    missing = [key for key, field in known.items() if key not in values and _required(field)]
    if missing:
        raise ConfigError(f"Method {method!r} needs {' and '.join(missing)}; add it to the speculative config.")
    drafter = drafter_class(**values)
    return Speculation(str(method), drafter, _length(config, drafter))


def _method_of_model(config: Mapping[str, object]) -> str:
    model, revision = config.get("model"), config.get("revision")
    if not isinstance(model, str) or not model:
        return "auto" if not model else "draft_model"
    revision = revision if isinstance(revision, str) else None
    return method_of(model, revision=revision, allow_pickle=config.get("allow_pickle") is True) or "draft_model"


def _find(method: object) -> type[Any]:
    """The drafter class of that name, ours or another package's."""
    if method in METHODS:
        return METHODS[str(method)]
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if method not in others:
        names = sorted({OFF, *METHODS, *others})
        raise ConfigError(f"Method {method!r} is unknown; use one of {', '.join(names)}.")
    entry = others[str(method)]
    try:
        drafter_class = entry.load()
    except Exception as error:
        raise LoadError(f"The drafter {entry.value} of method {method!r} can't be imported: {error}.") from error
    if not is_dataclass(drafter_class) or not isinstance(drafter_class, type):
        raise LoadError(f"The drafter {entry.value} of method {method!r} is no dataclass; decorate it with @dataclass.")
    return drafter_class


def _unknown_key(key: str, method: object, known: Collection[str]) -> ConfigError:
    if key in MEANINGLESS:
        return ConfigError(
            f"{key!r} is a vLLM option that this engine has no use for: {MEANINGLESS[key]}; leave it out."
        )
    owners = sorted(name for name, other in METHODS.items() if key in {field.name for field in fields(other)})
    hint = f" (it belongs to {', '.join(owners)})" if owners else ""
    return ConfigError(f"Method {method!r} has no key {key!r}{hint}; it knows {', '.join(sorted({LENGTH, *known}))}.")


def _parse(key: str, value: object, field: Field[Any]) -> object:
    """Check a value against the field's annotation; build the drafters of a hybrid."""
    if key == "drafters":
        return _build_all(value)
    wanted = field.type if isinstance(field.type, str) else field.type.__name__
    accepted = JSON_TYPES.get(wanted.removesuffix(" | None"))
    if value is None and wanted.endswith("| None"):
        return value
    if accepted is not None and (not isinstance(value, accepted) or (isinstance(value, bool) and wanted != "bool")):
        raise ConfigError(f"{key} is {value!r}; give a value of type {wanted}.")
    return value


def _build_all(configs: object) -> tuple[Drafter, ...]:
    if not isinstance(configs, list | tuple) or not all(isinstance(config, Mapping) for config in configs):
        raise ConfigError(f'drafters is {configs!r}; give a list of configs, as in [{{"method": "suffix"}}].')
    built = [build_drafter(config) for config in configs]
    return tuple(speculation.drafter for speculation in built if speculation is not None)


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _length(config: Mapping[str, object], drafter: object) -> int:
    """The drafter's own default unless the config says otherwise."""
    length = config.get(LENGTH, getattr(drafter, LENGTH, DEFAULT_LENGTH))
    if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= MOST_NODES:
        raise ConfigError(f"{LENGTH} is {length!r}; give a number from 1 to {MOST_NODES}, or method {OFF!r} for none.")
    return length
