"""How to load the model that is served: plain values, so that a description can be sent to another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.engine.llm import LLM
from foredraft.engine.open_target import EngineArgs
from foredraft.engine.speculation import parse_speculation
from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from transformers import GenerationConfig

__all__ = ["ModelSpec"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model and how it drafts.

    generation_config  where sampling defaults come from: "auto" (the model's own), "none", or a folder
    """

    args: EngineArgs
    speculation: Mapping[str, object] | None
    generation_config: str = "auto"

    @property
    def method(self) -> str:
        """The drafting method's name. Raises ConfigError for a wrong configuration."""
        return parse_speculation(self.speculation).method

    def load(self) -> LLM:
        """Raises LoadError, ConfigError or CapacityError."""
        llm = LLM.from_args(self.args, self.speculation)
        if self.generation_config != "auto":
            llm.generation_defaults = _generation_defaults(self.generation_config)
        return llm


def _generation_defaults(source: str) -> GenerationConfig | None:
    """A folder's generation_config.json; None for "none"."""
    if source == "none":
        return None
    from foredraft.target.load_checkpoint import load_generation_defaults

    found = load_generation_defaults(Path(source))
    if found is None:
        raise ConfigError(f"{source} has no generation_config.json; give auto, none, or a folder that has one")
    return found
