"""OpenTelemetry: a span for each request that reached the engine's queue, under vLLM's names (extra `otel`).

A span is made when its request is over, with the times it had, so tracing adds nothing while tokens are decoded. It
belongs to the trace that the client's `traceparent` header names, if there is one, and holds counts and times, never
any text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from foredraft.engine.outputs import SpeculationStats
from foredraft.errors import ConfigError
from foredraft.server.api_errors import CLIENT_LEFT, as_api_error
from foredraft.server.tickets import Ticket

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.util.types import AttributeValue

__all__ = ["RequestTraces"]

SPAN = "llm_request"
SCOPE = "foredraft.server"
DEFAULT_PATH = "/v1/traces"


class RequestTraces:
    """Records requests with a tracer of `provider`."""

    def __init__(self, provider: TracerProvider, model: str, method: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer(SCOPE)
        self._propagator = TraceContextTextMapPropagator()
        self._fixed: dict[str, AttributeValue] = {"gen_ai.response.model": model, "foredraft.method": method}

    @classmethod
    def sent_to(cls, endpoint: str, model: str, method: str) -> RequestTraces:
        """Spans go to a collector, by OTLP over HTTP. Raises ConfigError without the extra, or for another address."""
        address = urlsplit(endpoint)
        if address.scheme not in ("http", "https") or not address.netloc:
            raise ConfigError(
                f"--otlp-traces-endpoint is {endpoint!r}; spans are sent over HTTP, so give an address like "
                f"http://localhost:4318{DEFAULT_PATH}."
            )
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ConfigError(
                "--otlp-traces-endpoint needs OpenTelemetry, which is not installed; run pip install 'foredraft[otel]'"
            ) from error
        # The variable OTEL_SERVICE_NAME comes before our own name.
        resource = Resource.create({SERVICE_NAME: "foredraft"}).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        whole = address if address.path.strip("/") else address._replace(path=DEFAULT_PATH)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=whole.geturl())))
        return cls(provider, model, method)

    def record(self, ticket: Ticket, operation: str, headers: Mapping[str, str]) -> None:
        """A request is over, well or not. `operation` is "chat" or "text_completion"."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        ended = ticket.ended or time.monotonic()
        now = time.time_ns() - round((time.monotonic() - ended) * 1e9)
        span = self._tracer.start_span(
            SPAN,
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            start_time=now - round((ended - ticket.created) * 1e9),
            attributes={
                **self._fixed,
                "gen_ai.operation.name": operation,
                **_wishes(ticket),
                **_outcome(ticket),
                **_latencies(ticket, ended),
            },
        )
        if (status := _error_status(ticket)) is not None:
            span.set_attribute("error.type", str(status))
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR))
        span.end(now)

    def close(self) -> None:
        """Send what wasn't sent yet."""
        self._provider.shutdown()


def _wishes(ticket: Ticket) -> dict[str, AttributeValue]:
    params = ticket.jobs[0].params
    wishes: dict[str, AttributeValue] = {
        "gen_ai.request.id": ticket.id,
        "gen_ai.request.n": params.n,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
    }
    if params.max_tokens is not None:
        wishes["gen_ai.request.max_tokens"] = params.max_tokens
    return wishes


def _outcome(ticket: Ticket) -> dict[str, AttributeValue]:
    choices = [choice for result in ticket.done_results for choice in result.output.outputs]
    total = SpeculationStats()
    for choice in choices:
        total.add(choice.speculative_decoding)
    return {
        "gen_ai.usage.prompt_tokens": sum(len(job.prompt) for job in ticket.jobs),
        "gen_ai.usage.completion_tokens": sum(len(choice.token_ids) for choice in choices),
        "gen_ai.usage.num_sequences": ticket.choices,
        "gen_ai.response.finish_reasons": [str(choice.finish_reason) for choice in choices],
        "foredraft.acceptance_length": total.acceptance_length,
        "foredraft.num_draft_tokens": total.drafted,
        "foredraft.num_accepted_draft_tokens": total.accepted,
        "foredraft.drafter_failed": total.drafter_failed,
    }


def _error_status(ticket: Ticket) -> int | None:
    """HTTP's code for how it failed; None if it didn't."""
    if not ticket.over:
        return CLIENT_LEFT
    return None if ticket.failure is None else as_api_error(ticket.failure).status


def _latencies(ticket: Ticket, ended: float) -> dict[str, AttributeValue]:
    """Seconds; those of phases that the request didn't reach are left out."""
    found = {"gen_ai.latency.e2e": ended - ticket.created}
    if ticket.started is not None:
        found["gen_ai.latency.time_in_queue"] = ticket.started - ticket.created
        found["gen_ai.latency.time_in_model_inference"] = ended - ticket.started
    if ticket.started is not None and ticket.first_token is not None:
        found["gen_ai.latency.time_to_first_token"] = ticket.first_token - ticket.created
        found["gen_ai.latency.time_in_model_prefill"] = ticket.first_token - ticket.started
        found["gen_ai.latency.time_in_model_decode"] = ended - ticket.first_token
    return dict(found)
