"""Spans of requests: vLLM's names, the client's trace, and times that add up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tiny_server import client_of, load_tiny, tiny_service

from foredraft.errors import ConfigError
from foredraft.server.service import Service
from foredraft.server.tracing import RequestTraces

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
BODY = {"prompt": "Once upon", "max_tokens": 30, "temperature": 0}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
LATENCY = "gen_ai.latency."


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def service(tiny_checkpoint: Path, exporter: InMemorySpanExporter) -> Service:
    service = tiny_service(lambda: load_tiny(tiny_checkpoint))
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    service.traces = RequestTraces(provider, "tiny", "prediction")
    return service


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[TestClient]:
    with client_of(service) as client:
        yield client


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Any:
    exporter.clear()
    return exporter.get_finished_spans


def values(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_span_tells(client: TestClient, spans: Any, stream: bool) -> None:
    body = {**BODY, "n": 2, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    answer = client.post(TEXT, json=body, headers={"x-request-id": "my-request"})
    [span] = spans()
    found = values(span)
    assert (span.name, span.kind) == ("llm_request", SpanKind.SERVER)
    assert found["gen_ai.request.id"] == "my-request"
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.response.model"] == "tiny"
    asked = ("n", "max_tokens", "temperature", "top_p")
    assert [found[f"gen_ai.request.{name}"] for name in asked] == [2, 30, 0.5, 0.9]
    if not stream:
        usage = answer.json()["usage"]
        assert found["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
        assert found["gen_ai.usage.completion_tokens"] == usage["completion_tokens"]
    assert found["gen_ai.usage.num_sequences"] == 2
    assert set(found["gen_ai.response.finish_reasons"]) <= {"stop", "length"}
    assert found["foredraft.acceptance_length"] > 1
    assert found["foredraft.num_draft_tokens"] >= found["foredraft.num_accepted_draft_tokens"] > 0
    assert span.status.status_code is StatusCode.UNSET
    assert "error.type" not in found
    assert not any("upon" in str(value) for value in found.values())


def test_times_add_up(client: TestClient, spans: Any) -> None:
    client.post(CHAT, json={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20})
    [span] = spans()
    found = values(span)
    assert found["gen_ai.operation.name"] == "chat"
    times = {name.removeprefix(LATENCY): value for name, value in found.items() if name.startswith(LATENCY)}
    assert min(times.values()) >= 0
    queue, prefill, decode = (times[f"time_in_{name}"] for name in ("queue", "model_prefill", "model_decode"))
    assert queue + prefill == pytest.approx(times["time_to_first_token"])
    assert prefill + decode == pytest.approx(times["time_in_model_inference"])
    assert queue + prefill + decode == pytest.approx(times["e2e"])
    assert span.start_time is not None
    assert span.end_time is not None
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(times["e2e"], abs=1e-6)


def test_the_clients_trace_goes_on(client: TestClient, spans: Any) -> None:
    client.post(TEXT, json=BODY, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    client.post(TEXT, json=BODY, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})  # not sampled there, nor here
    client.post(TEXT, json=BODY, headers={"traceparent": "nonsense"})
    inside, outside = spans()
    assert f"{inside.context.trace_id:032x}" == TRACE
    assert f"{inside.parent.span_id:016x}" == PARENT
    assert outside.parent is None


@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_is_told_once(client: TestClient, service: Service, spans: Any, stream: bool) -> None:
    step = service.llm.engine.step

    def fail() -> Any:
        service.llm.engine.step = step  # type: ignore[method-assign]
        raise RuntimeError

    service.llm.engine.step = fail  # type: ignore[method-assign]
    assert client.post(TEXT, json={**BODY, "stream": stream}).status_code == 500
    [span] = spans()
    assert span.status.status_code is StatusCode.ERROR
    assert values(span)["error.type"] == "500"
    assert f"{LATENCY}time_to_first_token" not in values(span)


def test_refused_requests_have_no_span(client: TestClient, spans: Any) -> None:
    assert client.post(TEXT, json={**BODY, "temperature": -1}).status_code == 400
    assert spans() == ()


class Collector(BaseHTTPRequestHandler):
    """What an OpenTelemetry collector is to a sender."""

    received: list[tuple[str, bytes]]

    def do_POST(self) -> None:  # the library's name
        self.received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return None


@pytest.mark.parametrize(("service_name", "shown"), [(None, "foredraft"), ("mine", "mine")])
def test_spans_arrive_at_a_collector(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, service_name: str | None, shown: str
) -> None:
    if service_name is not None:
        monkeypatch.setenv("OTEL_SERVICE_NAME", service_name)
    Collector.received = []
    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = Thread(target=collector.serve_forever)
    thread.start()
    try:
        endpoint = f"http://127.0.0.1:{collector.server_port}"
        with client_of(tiny_service(lambda: load_tiny(tiny_checkpoint), otlp_traces_endpoint=endpoint)) as client:
            assert client.post(TEXT, json=BODY).status_code == 200
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    [(path, body)] = Collector.received
    assert path == "/v1/traces"
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    assert [scope.spans[0].name for scope in resource.scope_spans] == ["llm_request"]
    names = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert names["service.name"] == shown


@pytest.mark.parametrize("endpoint", ["localhost:4317", "grpc://localhost:4317", "http://", ""])
def test_other_addresses_are_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint is '.*http://localhost:4318/v1/traces\.$"):
        tiny_service(load_nothing, otlp_traces_endpoint=endpoint)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from foredraft.cli.main import main

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SystemExit) as ended:
        main(["serve", "/nowhere", "--offline", "--otlp-traces-endpoint", "http://localhost:4318"])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert "pip install 'foredraft[otel]'" in error
    assert "Traceback" not in error


def load_nothing() -> Any:
    raise AssertionError
