"""What the engine's thread reports, and who listens: `Observer` passes everything on to the metrics and the activity.

Metrics are for Prometheus, the activity for the status page and the log. Neither ever reaches into the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from foredraft.engine.engine import Engine
from foredraft.engine.outputs import Delta, RequestOutput
from foredraft.server.activity import Activity
from foredraft.server.metrics import Metrics

__all__ = ["EngineLoad", "Observer"]


class EngineLoad(NamedTuple):
    """How busy an engine is; `cache_usage` is the share of the cache's room that sequences hold. Preemptions and
    sequences that the drafter failed on are counted from the start.
    """

    running: int
    waiting: int
    cache_usage: float
    preemptions: int
    drafter_failures: int = 0

    @classmethod
    def of(cls, engine: Engine) -> EngineLoad:
        scheduler = engine.scheduler
        used = sum(sequence.cached for sequence in scheduler.running)
        failures = engine.drafting.failures if engine.drafting is not None else 0
        usage = used / engine.kv_room
        return cls(len(scheduler.running), len(scheduler.waiting), usage, scheduler.preemptions, failures)


@dataclass(slots=True)
class Observer:
    """Called by the engine's thread; all times are seconds."""

    metrics: Metrics
    activity: Activity

    def stepped(self, engine: Engine, deltas: list[Delta]) -> None:
        report = engine.report
        emitted = sum(len(delta.token_ids) for delta in deltas)
        self.metrics.step(report, emitted)
        if report.batch:  # a step that only reads prompts decides nothing
            self.metrics.decided(engine.controller.decision)
        self.activity.step(report, engine.controller.decision if report.batch else None, emitted)

    def loaded(self, load: EngineLoad) -> None:
        self.metrics.load(load.running, load.waiting, load.cache_usage, load.preemptions)
        self.metrics.drafter_failed(load.drafter_failures)
        self.activity.load = load

    def step_failed(self) -> None:
        self.metrics.engine_failures.inc()

    def request_failed(self) -> None:
        """One request, while the step went on."""
        self.metrics.request_failures.inc()

    def started(self, waited: float) -> None:
        self.metrics.queue_time.observe(waited)

    def first_token(self, since_arrival: float) -> None:
        self.metrics.time_to_first_token.observe(since_arrival)

    def next_tokens(self, since_last: float) -> None:
        self.metrics.inter_token_latency.observe(since_last)

    def finished(self, output: RequestOutput, latency: float, span: tuple[float, float]) -> None:
        """`span` is from the first token to the last."""
        self.metrics.finished(output, latency, span[1] - span[0])
        self.activity.finished += 1

    def aborted(self, output: RequestOutput) -> None:
        self.metrics.aborted(len(output.outputs))
        self.activity.aborted += 1
