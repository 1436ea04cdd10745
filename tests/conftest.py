"""Fixtures that several test folders share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from tiny_checkpoint import save_tiny_checkpoint

# Generated examples have no deadline on a busy machine, and tiny models run best on one thread.
settings.register_profile("foredraft", deadline=None, database=None)
settings.load_profile("foredraft")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """`serve` sets up the logging of its process, which here is that of all tests."""
    loggers = [logging.getLogger(name) for name in (None, "foredraft", "foredraft.access")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model with a tokenizer and a chat template."""
    return save_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, fetched into foredraft's cache on first use."""
    from foredraft.target.default_model import fetch_default_model

    return fetch_default_model()
