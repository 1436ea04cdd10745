"""After a signal: no new requests, health checks that say so, and an end for everything that runs."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from tiny_server import load_tiny, tiny_service

from foredraft.server.app import create_app
from foredraft.server.run import DrainingServer
from foredraft.server.service import Service

TEXT = "/v1/completions"
BODY = {"model": "tiny", "prompt": "Once", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
STEP_SECONDS = 0.05


@contextmanager
def slow_server(service: Service) -> Iterator[tuple[DrainingServer, str]]:
    """A server whose steps take a while, as `serve` runs it; its address."""
    server = DrainingServer(
        uvicorn.Config(create_app(service), port=0, log_config=None, timeout_graceful_shutdown=5), service
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        service.worker.wait_until_settled(60)
        step = service.llm.engine.step

        def slowly() -> Any:
            time.sleep(STEP_SECONDS)
            return step()

        service.llm.engine.step = slowly  # type: ignore[method-assign]
        while not server.started:
            time.sleep(0.01)
        yield server, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join(30)
        assert not thread.is_alive()


def test_while_requests_end_the_server_says_that_it_takes_no_more(tiny_checkpoint: Path) -> None:
    with (
        slow_server(tiny_service(lambda: load_tiny(tiny_checkpoint), shutdown_timeout=60)) as (server, address),
        httpx2.stream("POST", address + TEXT, json={**BODY, "max_tokens": 40, "stream": True}) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        server.handle_exit(signal.SIGTERM, None)
        for _ in range(3):
            health = httpx2.get(f"{address}/health")
            assert (health.status_code, health.json()) == (503, {"status": "draining"})
        refused = httpx2.post(address + TEXT, json=BODY)
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_what_takes_too_long_ends_with_an_error(tiny_checkpoint: Path) -> None:
    got: dict[str, Any] = {}
    begun = threading.Event()
    with slow_server(tiny_service(lambda: load_tiny(tiny_checkpoint), shutdown_timeout=0.5)) as (server, address):

        def read() -> None:
            with httpx2.stream("POST", address + TEXT, json={**BODY, "stream": True}, timeout=60) as stream:
                lines = stream.iter_lines()
                next(lines)
                begun.set()
                got["stream"] = [line for line in lines if line]

        def wait() -> None:
            got["whole"] = httpx2.post(address + TEXT, json=BODY, timeout=60)

        asked = [threading.Thread(target=target) for target in (read, wait)]
        for thread in asked:
            thread.start()
        assert begun.wait(30)
        server.handle_exit(signal.SIGTERM, None)
        for thread in asked:
            thread.join(30)
    assert got["stream"][-1] == "data: [DONE]"
    assert "shutting down" in json.loads(got["stream"][-2].removeprefix("data: "))["error"]["message"]
    assert got["whole"].status_code == 503
    assert got["whole"].headers["retry-after"]
    assert "shutting down" in got["whole"].json()["error"]["message"]
