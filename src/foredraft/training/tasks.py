"""Builds a drafter that is yet to learn, from the target and the options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from foredraft.training.counting import count_vocabulary
from foredraft.training.distill import DistillTask, new_student
from foredraft.training.eagle import new_eagle1, new_eagle3
from foredraft.training.eagle_task import EagleLosses, EagleTask
from foredraft.training.medusa import MedusaTask, new_medusa
from foredraft.training.opening import TrainingTarget
from foredraft.training.options import DrafterOptions, Kind
from foredraft.training.records import Record
from foredraft.training.target_states import TargetMatrices
from foredraft.training.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["build_task"]


def build_task(
    kind: Kind, target: TrainingTarget, matrices: TargetMatrices, records: Iterable[Record], options: DrafterOptions
) -> Task:
    """On the decoder's device."""
    ids = count_vocabulary(records, options.draft_vocab_size, target.decoder.vocab_size, target.prepared.eos_token_ids)
    whole = len(ids) == target.decoder.vocab_size
    device = target.decoder.device
    makers = {Kind.MEDUSA: _medusa, Kind.EAGLE: _eagle1, Kind.EAGLE3: _eagle3, Kind.DRAFT: _draft}
    task = makers[kind](target, matrices, ids.to(device), None if whole else ids.to(device), options)
    task.module.to(device)
    return task


def _eagle3(
    target: TrainingTarget, matrices: TargetMatrices, ids: Tensor, label_ids: Tensor | None, options: DrafterOptions
) -> Task:
    head = new_eagle3(
        target.sizes,
        ids,
        matrices.output[ids],
        intermediate=options.intermediate,
        norm_output=options.norm_output,
        seed=options.seed,
    )
    losses = EagleLosses(options.objective, options.steps, options.decay)
    return EagleTask(head, losses, matrices, label_ids, target.facts)


def _eagle1(
    target: TrainingTarget, matrices: TargetMatrices, ids: Tensor, label_ids: Tensor | None, options: DrafterOptions
) -> Task:
    head = new_eagle1(target.sizes, intermediate=options.intermediate, seed=options.seed)
    losses = EagleLosses(
        options.objective,
        options.steps,
        options.decay,
        options.regression,
        options.classification,
        options.noise,
    )
    return EagleTask(head, losses, matrices, label_ids, target.facts)


def _medusa(
    target: TrainingTarget, matrices: TargetMatrices, ids: Tensor, label_ids: Tensor | None, options: DrafterOptions
) -> Task:
    heads = new_medusa(
        target.sizes.hidden,
        target.decoder.vocab_size,
        ids,
        matrices.output[ids],
        heads=options.heads,
        layers=options.layers,
        form=options.form,
        rank=options.rank if options.form == "low_rank" else None,
        seed=options.seed,
    )
    return MedusaTask(heads, matrices, label_ids, target.facts, options.objective)


def _draft(
    target: TrainingTarget, matrices: TargetMatrices, ids: Tensor, label_ids: Tensor | None, options: DrafterOptions
) -> Task:
    network: Any = target.prepared.build_network("sdpa")
    student: PreTrainedModel = new_student(network.to(torch.float32), options.layers)
    return DistillTask(student, target.prepared.tokenizer, matrices, label_ids, target.facts, options.objective)
