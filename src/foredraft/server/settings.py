"""What the server is configured with, apart from the model and the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foredraft.errors import ConfigError

__all__ = ["GENERATION_KEYS", "PlanPage", "ServerSettings"]

GENERATION_KEYS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""transformers' name of a default -> ours."""


@dataclass(frozen=True, slots=True)
class PlanPage:
    """The economics page: its folder, and how its address carries (alpha, draft length, cost ratio)."""

    folder: Path
    address: Callable[[float, int, float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Names are those of the flags.

    model_names           what clients may call the model; the first one is what answers call it
    api_keys              any of them opens what guards.OPEN doesn't list; none: no key is needed
    generation_config     overrides the checkpoint's own defaults for what requests leave open; transformers' names
    chat_template         instead of the tokenizer's own
    chat_template_kwargs  variables for the template unless a request sets them
    max_queue             sequences that may wait beyond those being decoded; more are refused with 429
    max_body_bytes        longest request body; longer ones are refused with 413
    request_timeout       seconds after which a request is ended; None: never
    shutdown_timeout      seconds that running requests get to finish after SIGTERM
    allowed_origins       web pages that may read answers (CORS); none by default
    otlp_traces_endpoint  where spans of requests are sent to; None: there are none
    """

    model_names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_logprobs: int = 20
    max_queue: int = 256
    max_body_bytes: int = 8 * 2**20
    request_timeout: float | None = None
    shutdown_timeout: float = 60.0
    allowed_origins: tuple[str, ...] = ()
    metrics_namespace: str = "foredraft"
    spec_decode_metrics: bool = False
    request_metrics: bool = False
    force_include_usage: bool = False
    otlp_traces_endpoint: str | None = None
    log_stats: bool = True
    log_requests: bool = False
    plan: PlanPage | None = None

    def __post_init__(self) -> None:
        if not self.model_names or not all(self.model_names):
            raise ConfigError("The served model has no name; give --served-model-name one.")
        if any(not key or not key.isascii() for key in self.api_keys):
            raise ConfigError("An API key is empty or not ASCII; give keys of plain characters.")
        for name, low in (("max_logprobs", 0), ("max_queue", 0), ("max_body_bytes", 1024), ("shutdown_timeout", 0)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}; give at least {low}.")
        unknown = sorted(self.generation_config.keys() - GENERATION_KEYS.keys())
        if unknown:
            raise ConfigError(
                f"override_generation_config has the key {unknown[0]!r}; it knows {', '.join(GENERATION_KEYS)}."
            )
        if self.request_timeout is not None and self.request_timeout <= 0:
            raise ConfigError(f"request_timeout is {self.request_timeout}; give seconds above 0, or none.")
        if self.metrics_namespace not in ("foredraft", "vllm"):
            raise ConfigError(f"metrics_namespace is {self.metrics_namespace!r}; give foredraft or vllm.")
