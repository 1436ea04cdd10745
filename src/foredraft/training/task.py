"""What the training loop asks of a kind of drafter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from foredraft.training.acceptance import SimulatedAcceptance
from foredraft.training.examples import Example
from foredraft.training.padding import padded
from foredraft.training.target_states import TargetMatrices

__all__ = ["Labels", "StepLoss", "Task", "draft_mask", "draft_matrix", "make_labels"]


class StepLoss(NamedTuple):
    """total: a scalar with a gradient; rows: how many rows it is the mean of (0: nothing to learn in the batch)."""

    total: Tensor
    rows: int


class Task(Protocol):
    """One kind of drafter in training.

    kind        the command's name for it
    module      what is trained; everything in it that requires a gradient
    taps        boundaries whose states the examples must have
    depth       draft steps that are simulated
    """

    @property
    def kind(self) -> str: ...

    @property
    def module(self) -> nn.Module: ...

    @property
    def taps(self) -> tuple[int, ...]: ...

    @property
    def depth(self) -> int: ...

    def warm_start(self, examples: Sequence[Example]) -> None:
        """Once, before the first step of a new run: fit what can be fitted without steps."""
        ...

    def loss(self, examples: Sequence[Example], progress: float, seed: int) -> StepLoss:
        """`progress` is the share of training that is done; `seed` differs from step to step and is the same when a
        killed run does the step again."""
        ...

    def matches(self, examples: Sequence[Example], picks: Sequence[Tensor]) -> list[Tensor]:
        """For each example [rows - first, depth] bool: whether the row's guess at each depth is the target's pick.
        `picks[e]` [n - 1] is the target's likeliest token after each token."""
        ...

    def save(self, folder: Path, provenance: dict[str, Any]) -> None:
        """Write what a `speculative_config` can name as its model."""
        ...

    def usage(self, acceptance: SimulatedAcceptance | None) -> dict[str, Any]:
        """The speculative_config that runs it, but for the model's place."""
        ...

    def activation_bytes(self, tokens: int) -> int:
        """About how much memory a batch of so many tokens needs, weights aside."""
        ...


class Labels(NamedTuple):
    """The target's distribution over the draft vocabulary at a row of text.

    probabilities [rows, Vd], renormalised; drafted [rows] bool, whether the text's next token is in the vocabulary:
    where it isn't, there is nothing to draft
    """

    probabilities: Tensor
    drafted: Tensor

    def part(self, rows: slice | Tensor) -> Labels:
        return Labels(self.probabilities[rows], self.drafted[rows])


@torch.no_grad()
def make_labels(matrix: Tensor, mask: Tensor | None, states: Tensor, following: Tensor) -> Labels:
    """From the target's output rows of the draft vocabulary [Vd, H], which tokens are in it ([V] bool, None: all), the
    states behind the final norm [rows, H], and the text's next tokens [rows]."""
    probabilities = padded(lambda rows: rows @ matrix.t(), states).softmax(dim=-1)
    drafted = torch.ones_like(following, dtype=torch.bool) if mask is None else mask[following]
    return Labels(probabilities, drafted)


def draft_matrix(matrices: TargetMatrices, draft_ids: Tensor | None) -> Tensor:
    """The target's output rows [Vd, H] of the draft vocabulary."""
    return matrices.output if draft_ids is None else matrices.output[draft_ids]


def draft_mask(matrices: TargetMatrices, draft_ids: Tensor | None) -> Tensor | None:
    """Which of the target's tokens are in the draft vocabulary, [V] bool; None: all."""
    if draft_ids is None:
        return None
    mask = torch.zeros(len(matrices.output), dtype=torch.bool, device=draft_ids.device)
    mask[draft_ids] = True
    return mask
