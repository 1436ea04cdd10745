"""Which methods a command line asks for, and engines that run them over one loaded target."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from foredraft.bench.offline import OFF, Method
from foredraft.engine.engine import Engine
from foredraft.engine.open_target import EngineArgs, OpenedTarget
from foredraft.engine.speculation import build_engine, parse_speculation
from foredraft.errors import ConfigError

__all__ = ["EngineOpener", "methods_from"]

PREDICTING = "prediction"


def methods_from(
    names: Sequence[str], configs: Sequence[str], *, num_speculative_tokens: int | None = None, predict: bool = False
) -> list[Method]:
    """Methods by name ("off" is plain decoding), then those given as JSON.

    num_speculative_tokens  for the ones given by name
    predict                 hand the prompts' predictions to every method, not just to "prediction"
    A method asked for twice is called by what distinguishes its configs. Raises ConfigError for malformed JSON and for
    configs that make no sense.
    """
    length = {} if num_speculative_tokens is None else {"num_speculative_tokens": num_speculative_tokens}
    wanted: list[Mapping[str, object]] = [{"method": name, **length} for name in names]
    wanted += [_parse(text) for text in configs]
    methods = []
    for config in wanted:
        parse_speculation(config)
        kind = str(config.get("method", "auto"))
        twins = [other for other in wanted if other.get("method", "auto") == kind]
        name = kind if len(twins) == 1 else _distinct(config, twins)
        methods.append(OFF if kind == OFF.name else Method(name, config, predict or kind == PREDICTING))
    return methods


class EngineOpener:
    """Builds an engine with a fresh drafter for a method, over a target that is loaded once."""

    def __init__(self, opened: OpenedTarget, args: EngineArgs) -> None:
        self.opened = opened
        self.args = args

    def __call__(self, method: Method) -> Engine:
        """Raises ConfigError or LoadError if the method's config makes no sense for this target."""
        return build_engine(self.opened, self.args, parse_speculation(method.config))


def _parse(text: str) -> Mapping[str, object]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--speculative-config {text!r} is not JSON ({error}); quote it for the shell.") from error
    if not isinstance(config, dict):
        raise ConfigError(f"--speculative-config {text!r} is not a JSON object; give keys and values.")
    return config


def _distinct(config: Mapping[str, object], twins: Sequence[Mapping[str, object]]) -> str:
    keys = sorted({key for twin in twins for key in twin} - {"method"})
    telling = [key for key in keys if len({json.dumps(twin.get(key)) for twin in twins}) > 1]
    parts = [f"{key}={config[key]}" for key in telling if key in config]
    return " ".join([str(config.get("method", "auto")), *parts])
