"""Decodes one prompt for a command and times it. The text is handed on as it comes; the figures are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foredraft.engine.outputs import Delta, RequestOutput, SpeculationStats

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine
    from foredraft.engine.requests import Request
    from foredraft.types import StepReport

__all__ = ["Decoded", "decode"]


@dataclass(slots=True)
class Decoded:
    """What came out, and the seconds it took: in all, to the first token, and by part of the engine's step."""

    result: RequestOutput
    seconds: float = 0.0
    first_token_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    host_seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Emitted tokens over all choices."""
        return sum(len(output.token_ids) for output in self.result.outputs)

    @property
    def throughput(self) -> float:
        """Tokens per second, the prompt's pass included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def statistics(self) -> SpeculationStats:
        """Speculation over all choices."""
        total = SpeculationStats(limit=max(output.speculative_decoding.limit for output in self.result.outputs))
        for output in self.result.outputs:
            total.add(output.speculative_decoding)
        return total

    @property
    def cut(self) -> bool:
        """Whether a choice ended because it reached its length limit."""
        return any(output.finish_reason == "length" for output in self.result.outputs)

    def observe(self, report: StepReport) -> None:
        self.draft_seconds += report.draft_seconds
        self.verify_seconds += report.verify_seconds
        self.host_seconds += report.host_seconds


def decode(engine: Engine, request: Request, on_delta: Callable[[Delta], None] = lambda _: None) -> Decoded:
    """Run the engine until `request`, its only one, is done. An error or Ctrl-C in the middle aborts the request; what
    keeps the request from going on is raised.
    """
    decoded = Decoded(request.result())
    began = time.perf_counter()
    try:
        while not request.result().finished:
            deltas = engine.checked_step()
            decoded.observe(engine.report)
            for delta in deltas:
                decoded.first_token_seconds = decoded.first_token_seconds or time.perf_counter() - began
                on_delta(delta)
    finally:
        decoded.seconds = time.perf_counter() - began
        engine.abort(request.id)
        decoded.result = request.result()
    return decoded
