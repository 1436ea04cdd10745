"""foredraft: speculative decoding for Hugging Face causal language models, token for token the same output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foredraft.errors import CapacityError, ConfigError, ForedraftError, LoadError, RequestError
from foredraft.types import FinishReason, SamplingParams

if TYPE_CHECKING:
    from foredraft.engine.llm import LLM

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "CapacityError",
    "ConfigError",
    "FinishReason",
    "ForedraftError",
    "LoadError",
    "RequestError",
    "SamplingParams",
]


def __getattr__(name: str) -> object:
    """`LLM` pulls in torch, so it is imported when it is first asked for."""
    if name == "LLM":
        from foredraft.engine.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
