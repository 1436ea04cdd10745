"""What a caller gets back; names are vLLM's.

`SpeculationStats` counts one request's (or one run's) speculation, with vLLM's keys in `as_dict`. Accepted tokens never
include the bonus token; the acceptance length does (1.0 is plain decoding).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from foredraft.engine.text import Piece
from foredraft.types import FinishReason

__all__ = ["CompletionOutput", "Delta", "Logprob", "RequestOutput", "SpeculationStats"]


class Logprob(NamedTuple):
    """A token's raw log-probability and its rank among all tokens (1 is the most likely).

    bytes  what it adds to the UTF-8 of the text, be it a part of a character; nothing for a special token where the
           text is without those
    """

    logprob: float
    rank: int
    decoded_token: str | None = None
    bytes: tuple[int, ...] | None = None  # numbers, so that it can be written as JSON


@dataclass(slots=True)
class SpeculationStats:
    """Counts over verification steps: a step with no draft counts as a step, too, but not among `drafts`. `limit` is
    the configured draft length; `drafter_failed` tells whether the drafter raised an error, after which decoding went
    on plainly.
    """

    limit: int = 0
    steps: int = 0
    drafts: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    drafter_failed: bool = False

    def observe(self, drafted: int, accepted: int, emitted: int) -> None:
        """Add one sequence's part in one step."""
        self.steps += 1
        self.drafts += drafted > 0
        self.drafted += drafted
        self.accepted += accepted
        self.emitted += emitted
        self.accepted_per_position += [0] * (accepted - len(self.accepted_per_position))
        for position in range(accepted):
            self.accepted_per_position[position] += 1

    def add(self, other: SpeculationStats) -> None:
        self.steps += other.steps
        self.drafts += other.drafts
        self.emitted += other.emitted
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.drafter_failed |= other.drafter_failed
        longer = max(len(self.accepted_per_position), len(other.accepted_per_position))
        mine = self.accepted_per_position + [0] * (longer - len(self.accepted_per_position))
        theirs = other.accepted_per_position + [0] * (longer - len(other.accepted_per_position))
        self.accepted_per_position = [a + b for a, b in zip(mine, theirs, strict=True)]

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per target step, the bonus included; 1.0 when nothing ran."""
        return self.emitted / self.steps if self.steps else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens per draft token; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def as_dict(self) -> dict[str, object]:
        """vLLM's per-request object `metrics.speculative_decoding`; the histogram counts steps that accepted 0, 1, 2
        ... drafts. With `drafter_failed` only if it did.
        """
        survivors = [self.steps, *self.accepted_per_position, 0]
        return {
            "mean_acceptance_length": self.acceptance_length,
            "draft_acceptance_rate": self.acceptance_rate,
            "acceptance_histogram": [this - longer for this, longer in pairwise(survivors)],
            "num_spec_steps": self.steps,
            "num_accepted_draft_tokens": self.accepted,
            "num_draft_tokens": self.drafted,
            "num_spec_tokens": self.limit,
            **({"drafter_failed": True} if self.drafter_failed else {}),
        }


@dataclass(slots=True)
class CompletionOutput:
    """One choice of a request. `drafted[i]` tells whether token i was an accepted draft."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    seed: int = 0
    speculative_decoding: SpeculationStats = field(default_factory=SpeculationStats)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request with all its choices. `num_cached_tokens` prompt tokens were found in the cache."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0

    @property
    def finished(self) -> bool:
        return all(output.finished for output in self.outputs)


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one choice: tokens, the text that is now certain, and how the choice ended, if it did."""

    request_id: str
    index: int
    token_ids: list[int]
    drafted: list[bool]
    pieces: list[Piece]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)
