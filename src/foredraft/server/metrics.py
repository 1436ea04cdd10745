"""Prometheus metrics: vLLM's, under `foredraft_` or, for its dashboards and benchmark, under `vllm:`; and some of our
own, always under `foredraft_`.

They live in a registry of their own, so two servers in a process don't meet. Definitions that may surprise: an
inter-token latency is the time between two steps that emitted something for a request, and such a step may emit several
tokens; accepted drafts count as soon as the target agreed, even beyond a stop.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from foredraft.engine.decision import Decision, Reason
from foredraft.engine.outputs import RequestOutput
from foredraft.types import StepReport

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCIES = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10)
STEPS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
LABELS = ("model_name", "engine")
REASONS = ("stop", "length", "abort")
USUAL_REFUSALS = (400, 401, 429, 500, 503)
PHASES = ("draft", "verify", "host")


class Metrics:
    """All metrics of one server. `namespace` is foredraft or vllm, `method` the drafter's name, `engine` what tells it
    from its fellows where several are scraped together.
    """

    def __init__(self, model_name: str, namespace: str = "foredraft", method: str = "off", engine: str = "0") -> None:
        self.registry = CollectorRegistry()
        self._values = (model_name, engine)
        self._method = method
        self._preemptions = 0
        self._failed_drafts = 0
        self._define_requests("vllm:" if namespace == "vllm" else "foredraft_")
        self._define_speculation("vllm:" if namespace == "vllm" else "foredraft_")
        self._define_own("foredraft_")

    def _define_requests(self, prefix: str) -> None:
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self._running = gauge(f"{prefix}num_requests_running", "Sequences that are being decoded.")
        self._waiting = gauge(f"{prefix}num_requests_waiting", "Sequences that wait for a slot.")
        self._usage = gauge(f"{prefix}kv_cache_usage_perc", "Share of the KV cache's room in use; 1 is all of it.")
        self._prompt_tokens = counter(f"{prefix}prompt_tokens", "Prompt tokens computed.")
        self._generated = counter(f"{prefix}generation_tokens", "Tokens emitted.")
        self._preempted = counter(f"{prefix}num_preemptions", "Sequences taken back to the queue for lack of room.")
        self._prefix_queries = counter(f"{prefix}prefix_cache_queries", "Prompt tokens looked up in the cache.")
        self._prefix_hits = counter(f"{prefix}prefix_cache_hits", "Prompt tokens found there.")
        success = Counter(
            f"{prefix}request_success",
            "Choices that ended, by reason.",
            [*LABELS, "finished_reason"],
            registry=self.registry,
        )
        self._success = {reason: success.labels(*self._values, reason) for reason in REASONS}
        self.time_to_first_token = histogram(f"{prefix}time_to_first_token_seconds", "From arrival on.", LATENCIES)
        self.inter_token_latency = histogram(f"{prefix}inter_token_latency_seconds", "Between steps that emit.", GAPS)
        self._per_token = histogram(
            f"{prefix}request_time_per_output_token_seconds", "After the first token, per token.", GAPS
        )
        self._latency = histogram(f"{prefix}e2e_request_latency_seconds", "From arrival to the last token.", LATENCIES)
        self.queue_time = histogram(
            f"{prefix}request_queue_time_seconds", "From arrival to being scheduled.", LATENCIES
        )
        self._iteration = histogram(f"{prefix}iteration_tokens_total", "Prompt and emitted tokens of a step.", SIZES)
        self._prompt_sizes = histogram(f"{prefix}request_prompt_tokens", "Prompt tokens per request.", SIZES)
        self._answer_sizes = histogram(f"{prefix}request_generation_tokens", "Emitted tokens per choice.", SIZES)

    def _define_speculation(self, prefix: str) -> None:
        labels, values, registry = [*LABELS, "method"], (*self._values, self._method), self.registry

        def counter(name: str, about: str) -> Counter:
            return Counter(f"{prefix}spec_decode_{name}", about, labels, registry=registry).labels(*values)

        self._drafts = counter("num_drafts", "Sequences' steps that verified a draft.")
        self._drafted = counter("num_draft_tokens", "Draft tokens verified.")
        self._accepted = counter("num_accepted_tokens", "Draft tokens accepted, the bonus excluded.")
        self._positions = Counter(
            f"{prefix}spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by their place in the draft.",
            [*labels, "position"],
            registry=registry,
        )
        self._positions.labels(*values, "0")  # there from the start, as a dashboard expects

    def _define_own(self, prefix: str) -> None:
        self._budget = self._gauge(f"{prefix}controller_budget", "Draft tokens that the last step verified.")
        self._gain = self._gauge(
            f"{prefix}controller_expected_gain", "Speedup over a plain step that the controller expects."
        )
        self._expected = self._gauge(
            f"{prefix}controller_expected_tokens", "Tokens that the controller expects of a sequence in the step."
        )
        self._pass = self._gauge(
            f"{prefix}controller_pass_seconds", "Time of a target pass of the chosen size, as measured before."
        )
        decisions = Counter(
            f"{prefix}controller_decisions",
            "Steps by the controller's reason to verify as many drafts as it did.",
            [*LABELS, "reason"],
            registry=self.registry,
        )
        self._decisions = {reason: decisions.labels(*self._values, reason.value) for reason in Reason}
        seconds = Histogram(
            f"{prefix}step_seconds",
            "Where a step's time goes.",
            [*LABELS, "phase"],
            buckets=STEPS,
            registry=self.registry,
        )
        self._seconds = {phase: seconds.labels(*self._values, phase) for phase in PHASES}
        self.engine_failures = self._counter(f"{prefix}engine_failures", "Steps that raised an error.")
        self.request_failures = self._counter(f"{prefix}request_failures", "Requests that failed alone in their step.")
        self._drafter_failures = self._counter(
            f"{prefix}drafter_failures", "Sequences decoded plainly because the drafter raised an error."
        )
        rejected = Counter(
            f"{prefix}requests_rejected", "Answers that were errors, by status.", ["status"], registry=self.registry
        )
        for status in USUAL_REFUSALS:
            rejected.labels(str(status))  # there from the start, as a dashboard expects
        self.rejected: Callable[[int], None] = lambda status: rejected.labels(str(status)).inc()

    def render(self) -> bytes:
        """The exposition format that Prometheus scrapes."""
        return generate_latest(self.registry)

    def step(self, report: StepReport, emitted: int) -> None:
        """Add a step's counts and times."""
        self._prompt_tokens.inc(report.prompt_rows)
        self._generated.inc(emitted)
        self._iteration.observe(report.prompt_rows + emitted)
        self._drafts.inc(sum(drafted > 0 for drafted in report.drafted))
        self._drafted.inc(sum(report.drafted))
        self._accepted.inc(sum(report.accepted))
        for position, count in enumerate(report.accepted_per_depth):
            self._positions.labels(*self._values, self._method, str(position)).inc(count)
        self._budget.set(sum(report.drafted))
        for phase, histogram in self._seconds.items():
            histogram.observe(getattr(report, f"{phase}_seconds"))

    def load(self, running: int, waiting: int, usage: float, preemptions: int) -> None:
        self._running.set(running)
        self._waiting.set(waiting)
        self._usage.set(usage)
        self._preempted.inc(preemptions - self._preemptions)
        self._preemptions = preemptions

    def drafter_failed(self, sequences: int) -> None:
        """So many since the start."""
        self._drafter_failures.inc(sequences - self._failed_drafts)
        self._failed_drafts = sequences

    def decided(self, decision: Decision | None) -> None:
        """A step that decoded; None where no controller weighs anything."""
        if decision is None:
            self._gain.set(1.0)
            return
        self._gain.set(decision.gain)
        self._expected.set(decision.tokens_per_cycle)
        self._pass.set(decision.pass_milliseconds / 1e3)
        self._decisions[decision.reason].inc()

    def finished(self, output: RequestOutput, latency: float, decoding: float) -> None:
        """A request is over; `decoding` is from its first token to its last."""
        self._latency.observe(latency)
        self._prompt_sizes.observe(len(output.prompt_token_ids))
        self._prefix_queries.inc(len(output.prompt_token_ids))
        self._prefix_hits.inc(output.num_cached_tokens)
        for choice in output.outputs:
            self._success[choice.finish_reason or "abort"].inc()
            self._answer_sizes.observe(len(choice.token_ids))
        longest = max((len(choice.token_ids) for choice in output.outputs), default=0)
        if longest > 1:
            self._per_token.observe(decoding / (longest - 1))

    def aborted(self, choices: int) -> None:
        self._success["abort"].inc(choices)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(name, about, LABELS, registry=self.registry).labels(*self._values)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(name, about, LABELS, registry=self.registry).labels(*self._values)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, about, LABELS, buckets=buckets, registry=self.registry).labels(*self._values)
