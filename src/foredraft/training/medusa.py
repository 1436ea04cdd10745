"""Trains Medusa heads on a frozen target ("Medusa-1", Cai et al. 2024, arXiv 2401.10774).

Head i reads the target's state at position t and learns token t + 2 + i, with weight decay ** i. The paper's label is
the text's token; ours is the target's distribution behind the text up to there, which has the same mean and less noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foredraft.heads.info import TargetFacts
from foredraft.heads.medusa import MedusaHeads, MedusaShape
from foredraft.heads.write import write_head
from foredraft.training.acceptance import SimulatedAcceptance
from foredraft.training.examples import Example
from foredraft.training.losses import Objective, token_losses
from foredraft.training.padding import padded
from foredraft.training.recording import LAST
from foredraft.training.target_states import TargetMatrices
from foredraft.training.task import StepLoss, draft_mask, draft_matrix, make_labels

__all__ = ["MedusaTask", "new_medusa"]

DECAY = 0.8


def new_medusa(
    hidden: int,
    vocab_size: int,
    draft_ids: Tensor | None,
    output: Tensor,
    *,
    heads: int = 4,
    layers: int = 1,
    form: str = "target",
    rank: int | None = None,
    seed: int = 0,
) -> MedusaHeads:
    """Heads that begin as the identity, with the target's output rows `output` [Vd, H] where they have their own.

    A low-rank output layer begins as the best one of that rank.
    """
    own_rows = form != "target"
    shape = MedusaShape(
        heads=heads,
        hidden=hidden,
        vocab_size=vocab_size,
        draft_vocab_size=len(output) if own_rows else vocab_size,
        layers=layers,
        output=form,  # type: ignore[arg-type]
        rank=rank,
    )
    module = MedusaHeads(shape, draft_ids if own_rows else None)
    with torch.no_grad():
        if module.lm_heads is not None:
            for weight in module.lm_heads.parameters():
                weight.copy_(output)
        if module.narrow is not None and module.widen is not None and rank is not None:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                left, strength, right = torch.svd_lowrank(output.float(), q=rank, niter=4)
            root = strength.sqrt()
            module.widen.weight.copy_(left * root)
            for weight in module.narrow.parameters():
                weight.copy_((right * root).t())
    return module


class MedusaTask:
    """`label_ids` [Vl] restricts the distributions that are compared; heads with a reduced vocabulary have that one."""

    kind = "medusa"
    taps = (LAST,)

    def __init__(
        self,
        heads: MedusaHeads,
        matrices: TargetMatrices,
        label_ids: Tensor | None,
        facts: TargetFacts,
        objective: Objective = Objective.KL,
    ) -> None:
        self.module = heads
        self.depth = heads.shape.heads
        self.facts, self.objective = facts, objective
        self._labels = draft_matrix(matrices, label_ids)
        self._ids = label_ids
        self._mask = draft_mask(matrices, label_ids)

    def warm_start(self, examples: Sequence[Example]) -> None:
        return None  # it starts as the target

    def loss(self, examples: Sequence[Example], progress: float, seed: int) -> StepLoss:
        device = self._labels.device
        labels = make_labels(
            self._labels,
            self._mask,
            torch.cat([example.states[example.first + 1 :, -1] for example in examples]).to(device),
            torch.cat([example.tokens[example.first + 2 :] for example in examples]).to(device),
        )
        states = self.module(self._inputs(examples))
        total, weight, weights, counted = torch.zeros((), device=device), 1.0, 0.0, 0
        for head in range(self.depth):
            rows, wanted = self._pairs(examples, head)
            part = labels.part(wanted.to(device))
            kept = part.drafted.nonzero().squeeze(1)
            if len(kept):
                logits = self._logits(states[rows.to(device)[kept]], head)
                total = total + weight * token_losses(self.objective, part.probabilities[kept], logits, progress).mean()
            counted += len(kept) if head == 0 else 0
            weights += weight
            weight *= DECAY
        return StepLoss(total / weights, counted)

    @torch.no_grad()
    def matches(self, examples: Sequence[Example], picks: Sequence[Tensor]) -> list[Tensor]:
        found = []
        for example, picked in zip(examples, picks, strict=True):
            states = self.module(self._inputs([example]))
            right = torch.zeros(len(states), self.depth, dtype=torch.bool)
            for head in range(self.depth):
                count = max(0, len(states) - head)
                best = self._logits(states[:count], head).argmax(dim=-1)
                guesses = (best if self._ids is None else self._ids[best]).cpu()
                right[:count, head] = guesses == picked[example.first + 1 + head : example.first + 1 + head + count]
            found.append(right)
        return found

    def save(self, folder: Path, provenance: dict[str, Any]) -> None:
        write_head(self.module, folder, form="foredraft", target=self.facts, extra={"training": provenance})

    def usage(self, acceptance: SimulatedAcceptance | None) -> dict[str, Any]:
        return {"method": "medusa"}

    def activation_bytes(self, tokens: int) -> int:
        return 4 * tokens * (self.depth * (8 * self._labels.shape[1] + 3 * len(self._labels)) + len(self._labels))

    def _inputs(self, examples: Sequence[Example]) -> Tensor:
        """The states of the rows that draft, [R, H]."""
        rows = torch.cat([example.states[example.first : example.rows, -1] for example in examples])
        return rows.to(self._labels.device)

    def _pairs(self, examples: Sequence[Example], head: int) -> tuple[Tensor, Tensor]:
        """Indices of rows, and of the labels that head learns there (label j stands behind row j's next token)."""
        rows, offset = [], 0
        for example in examples:
            count = example.rows - example.first
            rows.append(torch.arange(max(0, count - head)) + offset)
            offset += count
        flat = torch.cat(rows)
        return flat, flat + head

    def _logits(self, states: Tensor, head: int) -> Tensor:
        """[R, heads, H] -> of one head, over the label vocabulary [R, Vl]."""
        heads = self.module
        own = states[:, head]
        if heads.lm_heads is not None:
            logits: Tensor = heads.lm_heads[head](own)
        elif heads.narrow is not None and heads.widen is not None:
            logits = heads.widen(heads.narrow[head](own))
        else:
            logits = padded(lambda rows: rows @ self._labels.t(), own)
        return logits
