"""The engine's thread when things go wrong: failing steps, full queues, deadlines, loading, stopping."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tiny_server import client_of, load_tiny, tiny_service

from foredraft.engine.llm import LLM
from foredraft.errors import LoadError
from foredraft.server.app import create_app
from foredraft.server.service import LONG_BODY, Service

BODY = {"prompt": "Once upon", "max_tokens": 12}


class Gate:
    """Holds the engine before each step until it is opened, and may make steps fail."""

    def __init__(self, llm: LLM) -> None:
        self.open = threading.Event()
        self.fail: Exception | None = None
        self._step = llm.engine.step
        llm.engine.step = self  # type: ignore[method-assign, assignment]

    def __call__(self) -> Any:
        assert self.open.wait(20)
        if self.fail is not None:
            failure, self.fail = self.fail, None
            raise failure
        return self._step()


@contextmanager
def gated(tiny_checkpoint: Path, slots: int = 1, **settings: Any) -> Iterator[tuple[Service, TestClient, Gate]]:
    service = tiny_service(lambda: load_tiny(tiny_checkpoint, max_num_seqs=slots), **settings)
    with client_of(service) as client:
        gate = Gate(service.llm)
        yield service, client, gate
        gate.open.set()


@contextmanager
def asking(client: TestClient) -> Iterator[Callable[..., Future[Any]]]:
    """Ask in the background."""
    with ThreadPoolExecutor() as pool:
        yield lambda **fields: pool.submit(client.post, "/v1/completions", json={**BODY, **fields})


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_a_failing_step_fails_its_requests_and_no_others(tiny_checkpoint: Path, plain: LLM) -> None:
    with gated(tiny_checkpoint) as (service, client, gate), asking(client) as ask:
        first = ask()
        wait_until(lambda: service.worker.open_sequences == 1)
        second = ask(prompt="Another")
        wait_until(lambda: service.worker.open_sequences == 2)
        step = gate._step

        def fail_in_the_middle() -> Any:
            gate._step = step
            step()  # the first request is running now, and has state in the engine
            raise RuntimeError("the third layer is on fire")

        gate._step = fail_in_the_middle
        gate.open.set()
        failed, answered = first.result(20), second.result(20)
        assert failed.status_code == 500
        assert failed.json()["error"]["type"] == "server_error"
        assert "fire" not in failed.text
        assert answered.status_code == 200
        assert answered.json()["choices"][0]["text"] == plain.generate("Another")[0].outputs[0].text[:12]
        again = client.post("/v1/completions", json=BODY)
        assert again.json()["choices"][0]["text"] == plain.generate("Once upon")[0].outputs[0].text[:12]
        assert client.get("/health").status_code == 200
        assert service.worker.open_sequences == 0
        service.llm.engine.check_integrity()
        assert "foredraft_engine_failures_total" in client.get("/metrics").text


def test_a_failure_in_a_stream_is_an_event(tiny_checkpoint: Path) -> None:
    with gated(tiny_checkpoint) as (_, client, gate):
        steps = 0
        step = gate._step

        def fail_third() -> Any:
            nonlocal steps
            steps += 1
            if steps == 3:
                raise RuntimeError("no")
            return step()

        gate._step = fail_third
        gate.open.set()
        answer = client.post("/v1/completions", json={**BODY, "stream": True, "speculative": False})
        assert answer.status_code == 200
        events = answer.text.removesuffix("\n\n").split("\n\n")
        assert '"type": "server_error"' in events[-2] or '"type":"server_error"' in events[-2]
        assert events[-1] == "data: [DONE]"


def test_a_bug_outside_the_engine_leaves_nobody_waiting(tiny_checkpoint: Path) -> None:
    with gated(tiny_checkpoint) as (service, client, gate):
        gate.open.set()
        observer = service.worker._observer
        original = observer.metrics.step

        def stumble(*_: Any) -> None:
            observer.metrics.step = original  # type: ignore[method-assign]
            raise RuntimeError("no")

        observer.metrics.step = stumble  # type: ignore[method-assign]
        assert client.post("/v1/completions", json=BODY).status_code == 500
        assert client.post("/v1/completions", json=BODY).status_code == 200
        assert service.llm.engine.target.cache.free_slots == 1


def test_a_full_queue_is_429_with_retry_after(tiny_checkpoint: Path) -> None:
    with gated(tiny_checkpoint, max_queue=2) as (service, client, gate), asking(client) as ask:
        accepted = [ask() for _ in range(3)]
        wait_until(lambda: service.worker.open_sequences == 3)
        refused = client.post("/v1/completions", json=BODY)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert client.get("/load").json() == {"server_load": 3}
        assert client.post("/v1/completions", json={**BODY, "n": 5}).status_code == 400
        gate.open.set()
        assert [one.result(20).status_code for one in accepted] == [200] * 3
        assert client.post("/v1/completions", json=BODY).status_code == 200


def test_deadlines(tiny_checkpoint: Path) -> None:
    with gated(tiny_checkpoint, request_timeout=0.2) as (service, client, gate), asking(client) as ask:
        late = ask()
        wait_until(lambda: service.worker.open_sequences == 1)
        time.sleep(0.25)
        gate.open.set()
        answer = late.result(20)
        # the one step that was under way may have given it tokens already
        assert answer.status_code in (503, 504)
        assert answer.json()["error"]["code"] == "deadline"
        assert service.worker.open_sequences == 0
        assert service.llm.engine.target.cache.free_slots == 1


def test_health_before_during_and_after(tiny_checkpoint: Path) -> None:
    go = threading.Event()

    def load() -> LLM:
        assert go.wait(20)
        return load_tiny(tiny_checkpoint)

    service = tiny_service(load)
    with TestClient(create_app(service)) as client:
        for path in ("/health", "/v1/models"):
            early = client.get(path)
            assert early.status_code == 503
            assert int(early.headers["retry-after"]) > 0
        assert client.post("/v1/completions", json=BODY).status_code == 503
        assert client.get("/metrics").status_code == 200
        go.set()
        service.worker.wait_until_settled(60)
        assert client.get("/health").json() == {"status": "ok"}
        service.worker.drain()
        assert client.get("/health").status_code == 503
        refused = client.post("/v1/completions", json=BODY)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    service = tiny_service(lambda: load_tiny(tmp_path))
    with TestClient(create_app(service)) as client:
        with pytest.raises(LoadError):
            service.worker.wait_until_settled(60)
        assert client.get("/health").status_code == 503


def test_stopping_answers_what_runs(tiny_checkpoint: Path) -> None:
    with gated(tiny_checkpoint) as (service, client, gate), asking(client) as ask:
        running = ask()
        wait_until(lambda: service.worker.open_sequences == 1)
        stopper = threading.Thread(target=service.worker.stop)
        stopper.start()
        gate.open.set()
        stopper.join(10)
        assert running.result(20).status_code in (200, 503)
        assert not stopper.is_alive()


def test_drop_running_leaves_a_clean_engine(tiny_checkpoint: Path, plain: LLM) -> None:
    """Also when the drafter can't even let go of its sequences."""
    from foredraft.types import SamplingParams

    llm = load_tiny(tiny_checkpoint, max_num_seqs=2)
    params = SamplingParams(temperature=0, max_tokens=20, n=2)
    requests = [llm.add(prompt, params) for prompt in ("One", "Two", "Three")]
    for _ in range(3):
        llm.engine.step()

    def fail(sequence: object) -> None:
        raise RuntimeError("no")

    drafter = llm.engine.drafter
    assert drafter is not None
    drafter.end = fail  # type: ignore[method-assign]
    dropped = llm.engine.drop_running()
    del drafter.end
    assert dropped == [requests[0].id]
    llm.engine.check_integrity()
    while not llm.engine.idle:
        llm.engine.step()
    for request, prompt in zip(requests[1:], ("Two", "Three"), strict=True):
        [wanted] = plain.generate(prompt, params)
        assert [one.token_ids for one in request.result().outputs] == [one.token_ids for one in wanted.outputs]
    assert llm.engine.target.cache.free_slots == 2


def test_long_prompts_are_read_beside_short_ones(tiny_checkpoint: Path) -> None:
    held = threading.Event()
    service = tiny_service(lambda: load_tiny(tiny_checkpoint))
    with client_of(service):

        async def read() -> int:
            long = asyncio.create_task(service.read(lambda _: held.wait(20), LONG_BODY + 1))
            await asyncio.sleep(0.05)
            short = await service.read(lambda reader: len(reader.encode("Once upon a time")), 20)
            assert not long.done()
            held.set()
            assert await long
            return short

        assert asyncio.run(read()) > 0


def test_a_full_server_refuses_long_prompts_unread(tiny_checkpoint: Path) -> None:
    with gated(tiny_checkpoint, max_queue=0) as (service, client, gate), asking(client) as ask:
        running = ask()
        wait_until(lambda: service.worker.open_sequences == 1)
        assert client.post("/v1/completions", json={**BODY, "prompt": "long " * LONG_BODY}).status_code == 429
        gate.open.set()
        assert running.result(20).status_code == 200
        assert client.post("/v1/completions", json={**BODY, "prompt": "long " * LONG_BODY}).status_code == 400


def test_latencies_are_those_of_each_choice(tiny_checkpoint: Path) -> None:
    """Several choices emit in one step, which says nothing about the time between one's tokens."""
    gaps: list[float] = []
    with gated(tiny_checkpoint, slots=4) as (service, client, gate):
        service.metrics.inter_token_latency.observe = gaps.append  # type: ignore[method-assign]
        gate.open.set()
        assert client.post("/v1/completions", json={**BODY, "n": 4, "ignore_eos": True}).status_code == 200
    assert gaps
    assert min(gaps) > 1e-5
