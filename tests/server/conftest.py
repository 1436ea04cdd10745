"""One server of the tiny model for each test module, and the same model to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tiny_server import client_of, load_tiny, tiny_service

from foredraft.engine.llm import LLM
from foredraft.server.service import Service


@pytest.fixture(scope="module")
def plain(tiny_checkpoint: Path) -> LLM:
    """The same model, decoding plainly: what every answer must equal."""
    return load_tiny(tiny_checkpoint, speculative_config=None)


@pytest.fixture(scope="module")
def service(tiny_checkpoint: Path) -> Service:
    return tiny_service(lambda: load_tiny(tiny_checkpoint), spec_decode_metrics=True)


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[TestClient]:
    with client_of(service) as client:
        yield client
