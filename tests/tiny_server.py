"""Servers of tiny models: in this process, behind a test client or on a real socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi.testclient import TestClient

from foredraft.engine.llm import LLM
from foredraft.server.app import create_app, create_service
from foredraft.server.service import Service
from foredraft.server.settings import ServerSettings

DRAFTING = {"method": "prediction", "controller": "off", "num_speculative_tokens": 6}


def load_tiny(path: Path, **more: object) -> LLM:
    """The tiny model with drafts in every step."""
    options = {"speculative_config": DRAFTING, "max_num_seqs": 4, "dtype": "float64", **more}
    return LLM(str(path), **options)  # type: ignore[arg-type]


def tiny_service(load: Callable[[], LLM], *, method: str = "prediction", **settings: object) -> Service:
    options = {"model_names": ("tiny", "also-tiny"), "log_stats": False, **settings}
    return create_service(load, ServerSettings(**options), method=method)  # type: ignore[arg-type]


@contextmanager
def client_of(service: Service) -> Iterator[TestClient]:
    """A client in this process, once the model is loaded."""
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        service.worker.wait_until_settled(60)
        yield client


@contextmanager
def listening(service: Service, root_path: str = "") -> Iterator[str]:
    """A real server on a free port; its address."""
    config = uvicorn.Config(create_app(service), port=0, root_path=root_path, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        service.worker.wait_until_settled(60)
        while not server.started:
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
