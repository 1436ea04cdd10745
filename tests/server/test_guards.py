"""Keys, body limits, request ids, the access log, CORS."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from tiny_server import client_of, listening, load_tiny, tiny_service

BODY = {"prompt": "a secret prompt", "max_tokens": 3}


@pytest.fixture(scope="module")
def locked(tiny_checkpoint: Path) -> Iterator[TestClient]:
    service = tiny_service(
        lambda: load_tiny(tiny_checkpoint),
        api_keys=("first-key", "second-key"),
        max_body_bytes=2000,
        allowed_origins=("https://a.example",),
    )
    with client_of(service) as client:
        yield client


def key(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@pytest.mark.parametrize(
    "headers", [{}, key("wrong"), key(""), key("first-key2"), {"authorization": "Basic first-key"}]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_without_a_key_nothing_is_answered(locked: TestClient, path: str, headers: dict[str, str]) -> None:
    answer = locked.post(path, json=BODY, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/v1/models", "/v1//models", "//v1/models", "/v1/../v1/models", "/%761/models"])
def test_no_way_round_the_key(locked: TestClient, path: str) -> None:
    answer = locked.get(path)
    assert answer.status_code in (401, 404)
    assert "max_model_len" not in answer.text


def test_a_prefix_is_no_way_round_the_key(tiny_checkpoint: Path) -> None:
    """uvicorn's paths begin with the prefix."""
    service = tiny_service(lambda: load_tiny(tiny_checkpoint), api_keys=("key",))
    with listening(service, root_path="/llm") as address:
        for path in ("/v1/models", "/llm/v1/models", "/llm/llm/v1/models"):
            assert httpx2.get(address + path).status_code == 401
        assert httpx2.get(f"{address}/v1/models", headers=key("key")).status_code == 200
        assert httpx2.get(f"{address}/health").status_code == 200
        assert httpx2.head(f"{address}/health").status_code == 200


@pytest.mark.parametrize("name", ["first-key", "second-key"])
def test_each_key_opens(locked: TestClient, name: str) -> None:
    assert locked.post("/v1/completions", json=BODY, headers=key(name)).status_code == 200


def test_health_and_metrics_need_no_key(locked: TestClient) -> None:
    for path in ("/health", "/ping", "/metrics", "/version", "/", "/status.json"):
        assert locked.get(path).status_code == 200


def test_long_bodies_are_refused(locked: TestClient) -> None:
    long = json.dumps({**BODY, "prompt": "x" * 3000}).encode()
    headers = {**key("first-key"), "content-type": "application/json"}
    answer = locked.post("/v1/completions", content=long, headers=headers)
    assert answer.status_code == 413

    def pieces() -> Iterator[bytes]:  # without a content-length
        for start in range(0, len(long), 500):
            yield long[start : start + 500]

    assert locked.post("/v1/completions", content=pieces(), headers=headers).status_code == 413
    assert locked.post("/v1/completions", json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize("given", ["abc-1.2:3", "x" * 128])
def test_request_ids_are_kept(locked: TestClient, given: str) -> None:
    answer = locked.post("/v1/completions", json=BODY, headers={**key("first-key"), "x-request-id": given})
    assert answer.headers["x-request-id"] == given
    assert answer.json()["id"] == f"cmpl-{given}"


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "ä".encode("latin-1")])
def test_odd_request_ids_are_replaced(locked: TestClient, given: Any) -> None:
    answer = locked.get("/health", headers={"x-request-id": given})
    assert len(answer.headers["x-request-id"]) == 32
    assert locked.get("/nothing").headers["x-request-id"]


def test_the_access_log_has_counts_and_no_text(locked: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for stream in (False, True):
            locked.post("/v1/completions", json={**BODY, "stream": stream}, headers=key("first-key"))
        locked.post("/v1/completions", json={**BODY, "temperature": -1}, headers=key("first-key"))
    entries = [json.loads(one.getMessage()) for one in caplog.records if one.name == "foredraft.access"]
    assert [(one["status"], one["streamed"]) for one in entries] == [(200, False), (200, True), (400, False)]
    for entry in entries[:2]:
        assert (entry["prompt_tokens"], entry["completion_tokens"]) == (len("a secret prompt"), 3)
        assert entry["path"] == "/v1/completions"
        assert entry["ms"] > 0
    assert "secret" not in caplog.text
    assert "first-key" not in caplog.text


def test_prompts_are_logged_only_on_demand(tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = tiny_service(lambda: load_tiny(tiny_checkpoint), log_requests=True)
    with client_of(service) as client, caplog.at_level(logging.INFO):
        client.post("/v1/completions", json=BODY)
    assert "a secret prompt" in caplog.text


def test_pages_elsewhere_read_answers_only_if_allowed(locked: TestClient) -> None:
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    allowed = locked.options("/v1/completions", headers={"origin": "https://a.example", **ask})
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    other = locked.options("/v1/completions", headers={"origin": "https://b.example", **ask})
    assert "access-control-allow-origin" not in other.headers


def test_cors_is_off_by_default(client: TestClient) -> None:
    answer = client.get("/health", headers={"origin": "https://a.example"})
    assert "access-control-allow-origin" not in answer.headers
