"""The nouns that every layer shares. Imports no torch.

`SamplingParams` is what a caller asks for, `Sequence` is one choice being decoded, `StepReport` is what one engine step
measured. Names and defaults of `SamplingParams` are vLLM's. `StructuredOutput` is a wish for text of a given form;
`Constraint` is what the engine makes of it for one sequence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import NoneType
from typing import Protocol

from foredraft.errors import ConfigError
from foredraft.token_counts import TokenCounts

__all__ = [
    "Batch",
    "Chunk",
    "Constraint",
    "FinishReason",
    "SamplingParams",
    "Sequence",
    "StepReport",
    "StructuredOutput",
]

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1000
LOWEST_TEMPERATURE = 1e-5  # vLLM's bound: below it, logits divided by the temperature could overflow


class FinishReason(StrEnum):
    """Why a sequence ended; the values are OpenAI's and vLLM's."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class StructureKind(StrEnum):
    """The ways to describe a form of text; the names are those of vLLM's structured outputs."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """The form that an answer must have.

    kind  "json_object" (any, without a text), "json_schema", "regex", "grammar" (Lark or GBNF) or "choice"
    text  the schema as JSON, the regular expression, the grammar, or the choices as a JSON list of strings

    Raises ConfigError for another kind. Whether the text makes sense is found out when a request comes with it.
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in list(StructureKind):
            raise ConfigError(f"The structured output's kind is {self.kind!r}; give one of {', '.join(StructureKind)}.")
        if not isinstance(self.text, str):
            raise ConfigError(f"The {self.kind} is {self.text!r}; give it as a text.")

    @classmethod
    def one_of(cls, choices: Collection[str]) -> StructuredOutput:
        """The answer is one of these texts."""
        return cls(StructureKind.CHOICE, json.dumps(list(choices)))


class Constraint(Protocol):
    """Which tokens the form of a sequence's answer allows. Its state is a function of the committed tokens alone, so
    that questions about drafts, in any order, change no later answer.

    `tokens` is always the sequence's own list, prompt included; a path is what a draft adds to it.
    """

    def masks(self, tokens: list[int], paths: Collection[tuple[int, ...]]) -> list[bytes | None]:
        """What may come after each path: a bit per token, lowest bit first. None where nothing may, or where the path
        itself is not allowed.
        """
        ...

    def forced(self, tokens: list[int], limit: int) -> list[int]:
        """The only possible continuation, at most `limit` tokens; empty where there is a choice."""
        ...

    def dead_end(self, tokens: list[int]) -> str | None:
        """Why nothing may come after `tokens[:]`; None if something may. "" means that the form is complete."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the tokens of one request.

    `temperature` 0 is greedy. `top_k` 0 or -1, `top_p` 1 and `min_p` 0 switch that filter off. `seed` None draws a
    random seed, which the result reports. `max_tokens` None means as many as the model's context holds. `logprobs` k
    returns the raw log-probabilities of the emitted token and of the k most likely ones. `speculative` False decodes
    this request plainly; `num_speculative_tokens` caps its draft nodes per step. `prediction` is a text the caller
    expects as the answer (OpenAI's Predicted Outputs). `structured` is the form that the answer must have. Requests of
    different `cache_salt` share neither cached prompts nor stored texts to draft from. Raises ConfigError, naming the
    value and the allowed range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] | list[str] | str = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    speculative: bool = True
    num_speculative_tokens: int | None = None
    prediction: str | None = None
    structured: StructuredOutput | None = None
    cache_salt: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.stop, (str, Collection, NoneType)):
            raise ConfigError(f"stop is {self.stop!r}; give a string or several.")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        for name in _WHOLE_NUMBERS:
            if not isinstance(getattr(self, name), (int, NoneType)):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; give a whole number.")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or math.isnan(value) or not low <= value <= high:
                raise ConfigError(f"{name} is {value!r}; give {_between(low, high)}.")
        if self.top_p == 0:
            raise ConfigError("top_p is 0, which keeps no token; give a number above 0, up to 1.")
        if self.repetition_penalty == 0:
            raise ConfigError("repetition_penalty is 0; give a number above 0 (1 is off).")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; give at least 1, or none for as many as fit.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}; lower it.")
        if self.logprobs is not None and not 0 <= self.logprobs <= 1024:
            raise ConfigError(f"logprobs is {self.logprobs}; give a number from 0 to 1024.")
        if self.num_speculative_tokens is not None and self.num_speculative_tokens < 0:
            raise ConfigError(f"num_speculative_tokens is {self.num_speculative_tokens}; give 0 (plain) or more.")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise ConfigError(f"seed is {self.seed}; give an integer of at most 64 bits.")
        if len(stop) > MAX_STOP_STRINGS:
            raise ConfigError(f"stop has {len(stop)} strings; give at most {MAX_STOP_STRINGS}.")
        for text in stop:
            if not isinstance(text, str):
                raise ConfigError(f"stop has {text!r}; give strings.")
            if not text:
                raise ConfigError("stop has an empty string; remove it.")
            if len(text) > MAX_STOP_LENGTH:
                raise ConfigError(f"stop has a string of {len(text)} characters; give at most {MAX_STOP_LENGTH}.")
        for token, bias in (self.logit_bias or {}).items():
            if not isinstance(bias, (int, float)) or math.isnan(bias) or abs(bias) > 100:
                raise ConfigError(f"logit_bias of token {token} is {bias}; give a number from -100 to 100.")

    @property
    def greedy(self) -> bool:
        return self.temperature < LOWEST_TEMPERATURE

    @property
    def penalised(self) -> bool:
        """Whether the logits depend on which tokens came before (penalties)."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


_WHOLE_NUMBERS = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "num_speculative_tokens")
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("n", 1, 128),
    ("temperature", 0, 100),
    ("top_p", 0, 1),
    ("top_k", -1, math.inf),
    ("min_p", 0, 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("repetition_penalty", 0, 100),
    ("min_tokens", 0, math.inf),
)


def _between(low: float, high: float) -> str:
    return f"{low:g} or more" if math.isinf(high) else f"a number from {low:g} to {high:g}"


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request while it is decoded.

    `tokens` is the prompt and everything committed; its last entry is the root, whose keys and values are not cached
    yet. `cached` counts the leading tokens whose keys and values are in the cache slot `slot` (None while waiting).
    `counts` is brought up to date by whoever needs it.
    """

    id: int
    params: SamplingParams
    tokens: list[int]
    prompt_length: int
    seed: int
    choice: int = 0
    request_id: str = ""
    prediction: tuple[int, ...] = ()
    slot: int | None = None
    cached: int = 0
    prompt_tokens_cached: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    constraint: Constraint | None = None
    counts: TokenCounts = field(default_factory=TokenCounts)

    @property
    def output(self) -> list[int]:
        """The committed tokens after the prompt."""
        return self.tokens[self.prompt_length :]

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still to be computed, the root included; 1 in steady decoding."""
        return len(self.tokens) - self.cached

    @property
    def remaining(self) -> int | None:
        """Tokens it may still emit; None when only the context limits it."""
        return None if self.params.max_tokens is None else self.params.max_tokens - self.output_length


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's work in a step: its next `count` tokens that aren't cached yet."""

    sequence: Sequence
    count: int

    @property
    def decodes(self) -> bool:
        """Whether the chunk ends with the root, so that the step emits tokens for it. Asked before the step commits."""
        return self.count == self.sequence.pending


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes: prompt chunks and decoding sequences alike."""

    chunks: tuple[Chunk, ...]

    @property
    def decoding(self) -> list[Sequence]:
        """The sequences that emit tokens in this step, in the order of their chunks."""
        return [chunk.sequence for chunk in self.chunks if chunk.decodes]


@dataclass(slots=True)
class StepReport:
    """What one engine step did and how long its parts took; the only thing that control, metrics and benchmarks read.

    `drafted` and `accepted` have one entry per decoding row, `accepted_per_depth[d]` counts rows that accepted at least
    d + 1 draft tokens. `rows` counts all rows in the target pass (prompt, roots and draft nodes), `cached_tokens` the
    keys that they attended to. `accepted` includes drafts beyond a stop, which were right but not emitted.
    """

    method: str
    batch: int
    rows: int
    prompt_rows: int
    cached_tokens: int
    sequence_ids: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    accepted_per_depth: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    host_seconds: float = 0.0
