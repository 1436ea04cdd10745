"""A target and its answers, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from material import make_answers

from foredraft.training.opening import TrainingTarget, open_training_target


@pytest.fixture(scope="session")
def answers(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_answers(tiny_checkpoint, tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="session")
def training_target(tiny_checkpoint: Path) -> TrainingTarget:
    return open_training_target(str(tiny_checkpoint))
