"""What happened lately, in numbers that a person reads: for the status page and for the log line every ten seconds.

"Plain" is an estimate: what the controller measured a plain step of the same batch to cost, taken over the same tokens.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foredraft.engine.decision import Decision, Reason
from foredraft.types import StepReport

if TYPE_CHECKING:
    from foredraft.server.observer import EngineLoad

__all__ = ["Activity", "Window"]

BUCKET_SECONDS = 1.0
WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class Window:
    """Sums over steps. Seconds are those of steps; `plain_seconds` what the same tokens would have taken plainly, and
    `reasons` counts the controller's decisions by why.
    """

    started: float = 0.0
    steps: int = 0
    sequence_steps: int = 0
    emitted: int = 0
    prompt_tokens: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    rejections: int = 0
    per_position: list[int] = field(default_factory=list)
    reasons: Counter[Reason] = field(default_factory=Counter)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    host_seconds: float = 0.0
    plain_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.verify_seconds + self.host_seconds

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification, the bonus included; vLLM's definition counts steps with a draft only."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def alpha(self) -> float | None:
        """P(the next draft token is right): accepted ones over those that were looked at; exact for chains."""
        looked_at = self.accepted + self.rejections
        return self.accepted / looked_at if looked_at else None

    @property
    def draft_length(self) -> float:
        return self.drafted / self.drafts if self.drafts else 0.0

    @property
    def cost_ratio(self) -> float | None:
        """Time to draft a token over the time of a verification."""
        if not self.drafted or not self.verify_seconds:
            return None
        return (self.draft_seconds / self.drafted) / (self.verify_seconds / self.steps)

    def add(self, other: Window) -> None:
        for name in self.__slots__:
            if name not in ("started", "per_position", "reasons"):
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reasons.update(dict(other.reasons))  # a copy: the engine's thread may be adding a reason
        self.per_position += [0] * (len(other.per_position) - len(self.per_position))
        for position, count in enumerate(other.per_position):
            self.per_position[position] += count


class Activity:
    """Written by the engine's thread, read by anyone: readers get sums of copies, never the window that grows."""

    def __init__(self, method: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.method = method
        self.clock = clock
        self.started = clock()
        self.finished = 0
        self.aborted = 0
        self.load: EngineLoad | None = None
        self.decision: Decision | None = None
        self._stepped = False
        self._recent: deque[Window] = deque()

    def step(self, report: StepReport, decision: Decision | None, emitted: int) -> None:
        now = self.clock()
        if not self._recent or now - self._recent[-1].started >= BUCKET_SECONDS:
            self._recent.append(Window(now))
            while now - self._recent[0].started > WINDOW_SECONDS + BUCKET_SECONDS:
                self._recent.popleft()
        self._stepped = True
        self._recent[-1].add(_window(report, decision, emitted))
        if decision is not None:
            self.decision = decision

    def recent(self, seconds: float) -> Window:
        """The sums of the last `seconds`, at most a minute."""
        since = self.clock() - seconds
        total = Window(since)
        for window in list(self._recent):
            if window.started >= since:
                total.add(window)
        return total

    def log_line(self, seconds: float) -> str | None:
        """vLLM's words; None when nothing happened."""
        window = self.recent(seconds)
        if not window.steps or self.load is None:
            return None
        line = (
            f"Avg prompt throughput: {window.prompt_tokens / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {window.emitted / seconds:.1f} tokens/s, "
            f"Running: {self.load.running} reqs, Waiting: {self.load.waiting} reqs, "
            f"GPU KV cache usage: {self.load.cache_usage:.1%}"
        )
        if window.drafts:
            rates = ", ".join(f"{count / window.drafts:.3f}" for count in window.per_position)
            line += (
                f"\nSpecDecoding metrics: Mean acceptance length: {window.acceptance_length:.2f}, "
                f"Accepted throughput: {window.accepted / seconds:.2f} tokens/s, "
                f"Drafted throughput: {window.drafted / seconds:.2f} tokens/s, "
                f"Accepted: {window.accepted} tokens, Drafted: {window.drafted} tokens, "
                f"Per-position acceptance rate: {rates}, "
                f"Avg Draft acceptance rate: {100 * window.accepted / window.drafted:.1f}%"
            )
        return line

    def summary(self, seconds: float = 10.0) -> dict[str, Any]:
        """What the status page shows; rates are over the last `seconds`."""
        window = self.recent(seconds)
        load, decision = self.load, self.decision
        return {
            "uptime_seconds": self.clock() - self.started,
            "window_seconds": seconds,
            "running": load.running if load else 0,
            "waiting": load.waiting if load else 0,
            "cache_usage": load.cache_usage if load else 0.0,
            "finished": self.finished,
            "aborted": self.aborted,
            "tokens_per_second": window.emitted / seconds,
            "prompt_tokens_per_second": window.prompt_tokens / seconds,
            "speedup_over_plain": window.plain_seconds / window.seconds if window.seconds else None,
            "drafters": [_drafter(self.method, window)] if self.method != "off" else [],
            "step_seconds": {
                "draft": window.draft_seconds,
                "verify": window.verify_seconds,
                "host": window.host_seconds,
            },
            "decision": None if decision is None else {**decision._asdict(), "gain": decision.gain},
            "explanation": self._explanation(decision),
            "reasons": [
                {"reason": reason.value, "words": reason.words, "steps": steps}
                for reason, steps in window.reasons.most_common()
            ],
        }

    def _explanation(self, decision: Decision | None) -> str:
        if decision is not None:
            return decision.sentence
        if self.method == "off":
            return "Decodes plainly: there is no drafter."
        if not self._stepped:
            return "Nothing was decoded yet."
        return "Nothing is weighed: every draft is verified, up to the configured number."


def _drafter(method: str, window: Window) -> dict[str, Any]:
    return {
        "method": method,
        "drafted": window.drafted,
        "accepted": window.accepted,
        "acceptance_rate": window.accepted / window.drafted if window.drafted else None,
        "acceptance_length": window.acceptance_length if window.drafts else None,
        "survival": [count / window.drafts for count in window.per_position] if window.drafts else [],
    }


def _window(report: StepReport, decision: Decision | None, emitted: int) -> Window:
    """One step."""
    seconds = report.draft_seconds + report.verify_seconds + report.host_seconds
    plain = seconds
    if decision is not None and decision.nodes and decision.plain_tokens:
        plain = emitted * decision.plain_milliseconds / decision.plain_tokens / 1e3
    pairs = list(zip(report.drafted, report.accepted, strict=True))
    return Window(
        steps=1,
        sequence_steps=report.batch,
        emitted=emitted,
        prompt_tokens=report.prompt_rows,
        drafts=sum(drafted > 0 for drafted, _ in pairs),
        drafted=sum(report.drafted),
        accepted=sum(report.accepted),
        rejections=sum(drafted > accepted for drafted, accepted in pairs),
        per_position=list(report.accepted_per_depth),
        reasons=Counter() if decision is None else Counter([decision.reason]),
        draft_seconds=report.draft_seconds,
        verify_seconds=report.verify_seconds,
        host_seconds=report.host_seconds,
        plain_seconds=plain,
    )
