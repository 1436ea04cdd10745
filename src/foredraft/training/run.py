"""One training run from end to end: data read, drafter built, memory checked, trained, written with its card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from foredraft.training.card import write_card
from foredraft.training.estimate import estimate_memory, refuse_if_too_large
from foredraft.training.examples import load_split
from foredraft.training.loop import Trained, TrainPlan, TrainProgress, train
from foredraft.training.opening import TrainingTarget, check_data
from foredraft.training.options import DrafterOptions, Kind
from foredraft.training.provenance import identity_of, provenance_of
from foredraft.training.target_states import StateSource, read_matrices
from foredraft.training.tasks import build_task

__all__ = ["Beginning", "run_training"]


class Beginning(NamedTuple):
    """What is known before the first step: trained parameters, bytes of memory, records, their answers' tokens, how
    many records have their states on disk, and measured texts."""

    parameters: int
    bytes: int
    records: int
    tokens: int
    stored: int
    held_out: int


def run_training(
    kind: Kind,
    target: TrainingTarget,
    data: Path,
    folder: Path,
    options: DrafterOptions,
    plan: TrainPlan,
    *,
    begin: Callable[[Beginning], None] = lambda _: None,
    progress: Callable[[TrainProgress], None] = lambda _: None,
) -> Trained:
    """Train and write a drafter into `folder`. Raises ConfigError for bad input, CapacityError when memory or disk
    don't suffice."""
    check_data(data, target)
    longest = min(plan.max_length, target.longest)
    split = load_split(data, target.decoder.vocab_size, max_length=longest)
    matrices = read_matrices(target.decoder, target.prepared.name)
    task = build_task(kind, target, matrices, split.train, options)
    source = StateSource(data, target.decoder, task.taps, longest)
    needed = estimate_memory(task.module, task.activation_bytes(max(plan.batch_tokens, longest)))
    refuse_if_too_large(needed, target.decoder.device, plan.batch_tokens)
    tokens = sum(len(record.answer) for record in split.train)
    stored = sum(source.stored(record) for record in split.train)
    begin(Beginning(needed.parameters, needed.bytes, len(split.train), tokens, stored, len(split.held_out)))
    trained = train(task, source, split, plan, folder, identity_of(target, data, options), progress)
    provenance = provenance_of(target, data, options, plan, len(split.train), tokens)
    provenance["acceptance"] = trained.acceptance.as_dict()
    task.save(folder, provenance)
    write_card(folder, task.kind, needed.parameters, task.usage(trained.acceptance), trained, provenance)
    return trained
