"""A run that is killed with SIGKILL, anywhere, ends with the weights of one that wasn't."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from foredraft.errors import CapacityError, ConfigError
from foredraft.training import checkpoints, estimate
from foredraft.training.loop import TrainPlan, TrainProgress
from foredraft.training.opening import TrainingTarget
from foredraft.training.options import DrafterOptions, Kind
from foredraft.training.records import STATES
from foredraft.training.run import run_training

OPTIONS = DrafterOptions(steps=2, draft_vocab_size=32)
PLAN = TrainPlan(epochs=6, batch_tokens=200, accumulate=2, evaluations=0, checkpoint_minutes=0)
SCRIPT = """
import sys, torch
from pathlib import Path
from foredraft.training.loop import TrainPlan
from foredraft.training.opening import open_training_target
from foredraft.training.options import DrafterOptions, Kind
from foredraft.training.run import run_training
torch.set_num_threads(1)
model, data, folder = sys.argv[1:]
plan = TrainPlan(epochs=6, batch_tokens=200, accumulate=2, evaluations=0, checkpoint_minutes=0)
options = DrafterOptions(steps=2, draft_vocab_size=32)
run_training(Kind.EAGLE, open_training_target(model), Path(data), Path(folder), options, plan,
             progress=lambda state: print(state.step, flush=True))
"""


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_killed_and_resumed_is_the_same_to_the_bit(
    training_target: TrainingTarget, tiny_checkpoint: Path, answers: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    run_training(Kind.EAGLE, training_target, answers, whole, OPTIONS, PLAN)
    killed = tmp_path / "killed"
    arguments = [sys.executable, "-c", SCRIPT, str(tiny_checkpoint), str(answers), str(killed)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 5:
            process.send_signal(signal.SIGKILL)
            break
    assert process.wait(60) == -signal.SIGKILL
    assert not (killed / "model.safetensors").exists()
    steps: list[int] = []
    run_training(
        Kind.EAGLE, training_target, answers, killed, OPTIONS, PLAN, progress=lambda state: steps.append(state.step)
    )
    assert steps[0] >= 5
    expected, found = weights(whole), weights(killed)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


class Stopped(Exception):  # noqa: N818 - an interruption, not an error
    pass


def interrupt_after(step: int) -> object:
    def progress(state: TrainProgress) -> None:
        if state.step >= step:
            raise Stopped

    return progress


def test_a_checkpoint_of_another_run_is_not_taken_over(
    training_target: TrainingTarget, answers: Path, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        run_training(
            Kind.EAGLE,
            training_target,
            answers,
            tmp_path,
            OPTIONS,
            PLAN,
            progress=interrupt_after(3),  # type: ignore[arg-type]
        )
    with pytest.raises(ConfigError, match="holds a checkpoint of a run with another plan; give the same arguments"):
        run_training(Kind.EAGLE, training_target, answers, tmp_path, OPTIONS, replace(PLAN, learning_rate=1e-4))
    with pytest.raises(ConfigError, match="another options"):
        run_training(Kind.EAGLE, training_target, answers, tmp_path, replace(OPTIONS, noise=0.0), PLAN)


def test_a_checkpoint_that_was_cut_off_is_named(training_target: TrainingTarget, answers: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\x03\x04 half a checkpoint")
    with pytest.raises(ConfigError, match=r"checkpoint\.pt can't be read .* delete it to start again"):
        run_training(Kind.MEDUSA, training_target, answers, tmp_path, OPTIONS, PLAN)


def test_a_disk_without_room_is_refused_before_the_first_step(
    training_target: TrainingTarget, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(checkpoints.shutil.disk_usage(tmp_path))(10**9, 10**9, 1000)
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CapacityError, match=r"checkpoints need 0\.0 GB on the disk of .* make room"):
        run_training(Kind.EAGLE, training_target, answers, tmp_path, OPTIONS, PLAN)


def test_what_does_not_fit_into_memory_is_refused_before_the_first_step(
    training_target: TrainingTarget, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "free_memory", lambda _: 1000)
    with pytest.raises(
        CapacityError, match=r"training needs about .* GB and 0\.0 GB of memory are free; lower --batch"
    ):
        run_training(Kind.EAGLE3, training_target, answers, tmp_path, OPTIONS, PLAN)


def test_a_full_disk_keeps_the_checkpoint_before(
    training_target: TrainingTarget, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stopped):
        run_training(
            Kind.EAGLE,
            training_target,
            answers,
            tmp_path,
            OPTIONS,
            PLAN,
            progress=interrupt_after(3),  # type: ignore[arg-type]
        )
    before = (tmp_path / "checkpoint.pt").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.os, "fsync", full)
    with pytest.raises(CapacityError, match=r"No space left on device\); the checkpoint before is kept"):
        run_training(Kind.EAGLE, training_target, answers, tmp_path, OPTIONS, PLAN)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_a_loss_that_is_no_number_is_a_sentence(training_target: TrainingTarget, answers: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(answers, tmp_path / "data"))
    states = data / STATES
    states.write_bytes(b"\xc0\x7f" * (states.stat().st_size // 2))  # bfloat16's NaN
    with pytest.raises(ConfigError, match=r"the loss became nan at step 1; lower --learning-rate"):
        run_training(Kind.EAGLE, training_target, data, tmp_path / "head", OPTIONS, PLAN)


def test_states_that_end_early_are_a_sentence(training_target: TrainingTarget, answers: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(answers, tmp_path / "data"))
    os.truncate(data / STATES, 1000)
    with pytest.raises(ConfigError, match=r"states\.bin ends before the states of answer"):
        run_training(Kind.EAGLE, training_target, data, tmp_path / "head", OPTIONS, PLAN)


def test_answers_of_another_model_are_refused(training_target: TrainingTarget, answers: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(answers, tmp_path / "data"))
    made = json.loads((data / "data.json").read_text()) | {"model": "another", "fingerprint": "f", "vocab_size": 9}
    (data / "data.json").write_text(json.dumps(made))
    with pytest.raises(ConfigError, match=r"holds answers of another \(vocabulary of 9\), not of .* make new data"):
        run_training(Kind.EAGLE, training_target, data, tmp_path / "head", OPTIONS, PLAN)


def test_seconds_are_counted_over_both_halves(training_target: TrainingTarget, answers: Path, tmp_path: Path) -> None:
    def slow(state: TrainProgress) -> None:
        time.sleep(0.05)
        if state.step >= 4:
            raise Stopped

    with pytest.raises(Stopped):
        run_training(Kind.MEDUSA, training_target, answers, tmp_path, OPTIONS, PLAN, progress=slow)
    done = run_training(Kind.MEDUSA, training_target, answers, tmp_path, OPTIONS, PLAN)
    assert done.seconds > 0.15
