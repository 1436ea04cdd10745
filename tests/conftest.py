"""Fixtures that several test folders share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from tiny_checkpoint import save_tiny_checkpoint

# Generated examples have no deadline on a busy machine, and tiny models run best on one thread.
settings.register_profile("foredraft", deadline=None, database=None)
settings.load_profile("foredraft")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model with a tokenizer and a chat template."""
    return save_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, fetched into foredraft's cache on first use."""
    from foredraft.target.default_model import fetch_default_model

    return fetch_default_model()
