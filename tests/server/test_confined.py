"""A request that fails alone: its client is told, the others get what they would have got, and nobody waits in vain."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tiny_server import client_of, load_tiny, tiny_service

from foredraft.engine.contained import ContainedConstraint
from foredraft.engine.llm import LLM
from foredraft.server import tickets
from foredraft.server.service import Service
from foredraft.types import SamplingParams

BODY = {"prompt": "Once upon", "max_tokens": 30, "temperature": 0}
VICTIM = {"prompt": "Twice upon", "max_tokens": 30, "temperature": 0}


class TroubleError(Exception):
    pass


@contextmanager
def serving(checkpoint: Path, **settings: Any) -> Iterator[tuple[Service, TestClient]]:
    service = tiny_service(lambda: load_tiny(checkpoint), spec_decode_metrics=True, **settings)
    with client_of(service) as client:
        yield service, client


def together(client: TestClient, *bodies: dict[str, Any]) -> list[Any]:
    """Asked at the same time."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda body: client.post("/v1/completions", json=body), bodies))


def text(llm: LLM, body: dict[str, Any]) -> str:
    params = SamplingParams(temperature=0, max_tokens=body["max_tokens"])
    return llm.generate(body["prompt"], params)[0].outputs[0].text


def counter(client: TestClient, name: str) -> float:
    [line] = [line for line in client.get("/metrics").text.splitlines() if line.startswith(f"foredraft_{name}_total{{")]
    return float(line.rpartition(" ")[2])


def test_a_drafter_that_raises_leaves_its_request_plain(
    tiny_checkpoint: Path, plain: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tiny_checkpoint) as (service, client):
        drafter: Any = service.llm.engine.drafter
        propose = drafter.propose
        victim = service.llm.tokenizer.encode(VICTIM["prompt"])

        def fail(batch: Any, budget: Any) -> Any:
            if any(sequence.tokens[: len(victim)] == victim for sequence in batch):
                raise TroubleError("in the third layer")
            return propose(batch, budget)

        drafter.propose = fail
        answers = together(client, BODY, VICTIM, {**BODY, "prompt": "Thrice"})
        assert [answer.status_code for answer in answers] == [200] * 3
        for answer, body in zip(answers, (BODY, VICTIM, {**BODY, "prompt": "Thrice"}), strict=True):
            assert answer.json()["choices"][0]["text"] == text(plain, body)
        failed = ["drafter_failed" in answer.json()["metrics"]["speculative_decoding"] for answer in answers]
        assert failed == [False, True, False]
        assert counter(client, "drafter_failures") == 1
        assert counter(client, "engine_failures") == 0
        assert "in the third layer" in caplog.text
        assert "in the third layer" not in answers[1].text
        assert client.get("/health").status_code == 200


class BrokenForm:
    def masks(self, tokens: list[int], paths: Collection[tuple[int, ...]]) -> list[bytes | None]:
        if len(tokens) > 20:
            raise TroubleError("no such rule")
        return [b"\xff" * 40] * len(paths)

    def forced(self, tokens: list[int], limit: int) -> list[int]:
        return []

    def dead_end(self, tokens: list[int]) -> str | None:
        return None


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_raises_fails_its_request_only(tiny_checkpoint: Path, plain: LLM, stream: bool) -> None:
    with serving(tiny_checkpoint) as (service, client):
        grammars = service.llm.engine.grammars
        open_form = grammars.open
        grammars.open = lambda params, *rest: (  # type: ignore[method-assign]
            ContainedConstraint(BrokenForm()) if params.structured else open_form(params, *rest)
        )
        asked = {**VICTIM, "guided_regex": ".*", "stream": stream}
        other, failed = together(client, BODY, asked)
        assert other.json()["choices"][0]["text"] == text(plain, BODY)
        if stream:
            assert failed.status_code == 200
            events = failed.text.split("\n\n")
            assert '"type":"server_error"' in events[-3]
            assert events[-2] == "data: [DONE]"
        else:
            assert failed.status_code == 500
            assert failed.json()["error"]["type"] == "server_error"
        assert "no such rule" not in failed.text
        assert counter(client, "request_failures") == 1
        assert service.worker.open_sequences == 0
        service.llm.engine.check_integrity()


class Panic(BaseException):
    """As compiled code raises it."""


@pytest.mark.parametrize("error", [Panic(), SystemExit(), TroubleError()])
def test_whatever_a_step_raises_is_an_answer(tiny_checkpoint: Path, plain: LLM, error: BaseException) -> None:
    with serving(tiny_checkpoint) as (service, client):
        engine = service.llm.engine
        step = engine.step

        def fail() -> Any:
            engine.step = step  # type: ignore[method-assign]
            raise error

        engine.step = fail  # type: ignore[method-assign]
        assert client.post("/v1/completions", json=BODY).status_code == 500
        assert client.post("/v1/completions", json=BODY).json()["choices"][0]["text"] == text(plain, BODY)


def test_a_thread_that_breaks_down_leaves_nobody_waiting(tiny_checkpoint: Path) -> None:
    with serving(tiny_checkpoint) as (service, client):
        decoder: Any = service.worker._decoder

        def fail(*_: object) -> Any:
            raise Panic

        decoder.advance = decoder.start_over = fail
        waiting = client.post("/v1/completions", json=BODY)
        assert (waiting.status_code, waiting.json()["error"]["type"]) == (503, "overloaded_error")
        assert client.get("/health").status_code == 503
        assert client.post("/v1/completions", json=BODY).status_code == 503
        assert service.worker.open_sequences == 0


def test_a_step_that_hangs_does_not_hold_a_client_beyond_its_deadline(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tickets, "GRACE_SECONDS", 0.1)
    go = threading.Event()
    with serving(tiny_checkpoint, request_timeout=0.2) as (service, client):
        step = service.llm.engine.step

        def hang() -> Any:
            assert go.wait(60)
            return step()

        service.llm.engine.step = hang  # type: ignore[method-assign]
        answer = client.post("/v1/completions", json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")
        go.set()
