"""What the training subcommands share: the model is loaded, the data made if there is none, the drafter trained."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from foredraft.cli.starting import starting
from foredraft.cli.terminal import say
from foredraft.cli.train_progress import duration, shown_progress
from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from foredraft.training.data import DataProgress
    from foredraft.training.prompts import Prompts

__all__ = ["PARALLEL", "Asked", "Course", "Setup", "check_folder", "run", "set_threads", "write_data"]

PARALLEL = 32
"""Sequences that are decoded together for data."""
THREADS_PER_CORE = 4


class Setup(NamedTuple):
    """Which model, where to, from what data, on what machine."""

    model: str
    output: Path
    data: Path | None
    tokens: int
    threads: int | None
    device: str
    quantization: str | None
    dtype: str
    revision: str | None
    trust_remote_code: bool
    offline: bool


class Course(NamedTuple):
    """How to train."""

    loss: str
    epochs: float
    batch_tokens: int
    accumulate: int
    learning_rate: float | None
    max_length: int
    checkpoint_minutes: float
    seed: int


class Asked(NamedTuple):
    """How data is made."""

    seed: int = 0
    max_tokens: int = 320
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0)
    prompts: Prompts | None = None
    keep_states: bool = True
    max_num_seqs: int = PARALLEL
    max_model_len: int | None = None


def run(kind: str, setup: Setup, course: Course, asked: Mapping[str, Any]) -> None:
    """Train a drafter of that kind; `asked` are its own options."""
    if setup.data is not None and not setup.data.is_dir():
        raise ConfigError(f"--data is {setup.data}, which is no folder; make data with `foredraft train data`")
    check_folder(setup.output)
    set_threads(setup.threads)
    with starting(setup.model, offline=setup.offline):
        from foredraft.training.loop import TrainPlan, TrainProgress
        from foredraft.training.losses import Objective
        from foredraft.training.opening import open_training_target
        from foredraft.training.options import LEARNING_RATES, DrafterOptions, Kind
        from foredraft.training.run import Beginning, run_training

        if course.loss not in list(Objective):
            raise ConfigError(f"--loss is {course.loss!r}; give {' or '.join(Objective)}")
        chosen = DrafterOptions(objective=Objective(course.loss), seed=course.seed, **asked)
        rate = LEARNING_RATES[Kind(kind)] if course.learning_rate is None else course.learning_rate
        plan = TrainPlan(
            epochs=course.epochs,
            batch_tokens=course.batch_tokens,
            accumulate=course.accumulate,
            learning_rate=rate,
            max_length=course.max_length,
            checkpoint_minutes=course.checkpoint_minutes,
            seed=course.seed,
        )
    folder = setup.data
    if folder is None:
        folder = setup.output / "data"
        write_data(setup, folder, Asked())
    with starting(setup.model, offline=setup.offline):
        target = open_training_target(
            setup.model,
            dtype=setup.dtype,
            quantization=setup.quantization,
            device=setup.device,
            revision=setup.revision,
            trust_remote_code=setup.trust_remote_code,
            offline=setup.offline,
        )

    def begin(known: Beginning) -> None:
        say(
            f"{known.parameters / 1e6:.1f} million parameters to train on {known.records} answers with {known.tokens} "
            f"tokens ({known.stored} with kept states), measured on {known.held_out} others; about "
            f"{known.bytes / 1e9:.1f} GB of memory"
        )

    told = False
    with shown_progress(kind) as show:

        def progress(state: TrainProgress) -> None:
            nonlocal told
            speed = state.tokens / max(state.seconds, 1e-9)
            if not told and state.seconds > 20:
                told = True
                done = state.step
                say(f"about {duration(state.seconds / max(1, done) * (state.steps - done))} for {state.steps} steps")
            length = "" if state.acceptance is None else f" · acceptance length {state.acceptance.length:.2f}"
            show(state.step, state.steps, f"loss {state.loss:.3f}{length} · {speed:.0f} tokens/s")

        trained = run_training(Kind(kind), target, folder, setup.output, chosen, plan, begin=begin, progress=progress)
    say(
        f"{setup.output}: simulated acceptance length {trained.acceptance.length:.2f} after {trained.steps} steps "
        f"({duration(trained.seconds)})"
    )


def write_data(setup: Setup, folder: Path, asked: Asked) -> DataProgress:
    """Make `setup.tokens` of data in `folder`, or go on with what is there."""
    with starting(setup.model, offline=setup.offline):
        from foredraft.engine.llm import LLM
        from foredraft.training.data import DataPlan, make_data
        from foredraft.training.recording import usual_taps

        plan = DataPlan(setup.tokens, asked.seed, asked.max_tokens, asked.temperatures, asked.prompts)
        llm = LLM(
            setup.model,
            dtype=setup.dtype,
            quantization=setup.quantization,
            device=setup.device,
            max_model_len=asked.max_model_len,
            max_num_seqs=asked.max_num_seqs,
            revision=setup.revision,
            trust_remote_code=setup.trust_remote_code,
            offline=setup.offline,
        )
    with shown_progress("data") as show:

        def progress(state: DataProgress) -> None:
            speed = state.decoded / max(state.seconds, 1e-9)
            what = f"{state.tokens} tokens in {state.records} answers · {speed:.0f} tokens/s"
            show(state.tokens, setup.tokens, what)

        taps = usual_taps(llm.target) if asked.keep_states else ()
        return make_data(llm, folder, replace(plan, taps=taps), progress)


def check_folder(output: Path) -> None:
    """Raise ConfigError if there can't be a folder of that name."""
    for place in (output, *output.parents):
        if place.exists() and not place.is_dir():
            raise ConfigError(f"--output is {output}, and {place} is a file; give the name of a folder")


def set_threads(threads: int | None) -> None:
    """Before anything is loaded: kernels take as many as torch has."""
    if threads is None:
        return
    if threads < 1:
        raise ConfigError(f"--threads is {threads}; give at least 1")
    cores = os.cpu_count() or 1
    if threads > THREADS_PER_CORE * cores:
        raise ConfigError(
            f"--threads is {threads}, and this machine has {cores} cores; give at most {THREADS_PER_CORE * cores}"
        )
    import torch

    torch.set_num_threads(threads)
