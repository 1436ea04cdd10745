"""Medusa heads (Cai et al. 2024, arXiv 2401.10774): several guesses from one hidden state, each for a later token.

Head i reads the target's hidden state of position t, after the final norm, and predicts token t + 2 + i; the target
itself gives token t + 1. A head is one or more residual blocks, x + SiLU(W x + b), and an output layer: its own as in
the paper, the target's (far smaller files), or a low-rank one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

__all__ = ["MedusaHeads", "MedusaShape"]


@dataclass(frozen=True, slots=True)
class MedusaShape:
    """What a set of Medusa heads looks like, whatever file it came from.

    layers  residual blocks of each head
    bias    whether the blocks have biases
    output  own: each head has an output layer [Vd, H]; target: all use the target's; low_rank: each head narrows its
            state to `rank` numbers, and one layer [Vd, rank] serves all
    """

    heads: int
    hidden: int
    vocab_size: int
    draft_vocab_size: int
    layers: int = 1
    bias: bool = True
    output: Literal["own", "target", "low_rank"] = "target"
    rank: int | None = None

    @property
    def reduced(self) -> bool:
        """Whether it drafts from a part of the target's vocabulary."""
        return self.draft_vocab_size != self.vocab_size


class MedusaBlock(nn.Module):
    """The residual blocks of one head. Zero weights make it the identity, which is where training starts."""

    def __init__(self, shape: MedusaShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(shape.hidden, shape.hidden, bias=shape.bias) for _ in range(shape.layers))
        for layer in self.layers:
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + nn.functional.silu(layer(x))
        return x


class MedusaHeads(nn.Module):
    """All Medusa heads of a target. T stands for any leading dimensions.

    `draft_ids` [Vd] int64 maps draft ids to the target's; None if they are the same.
    """

    draft_ids: Tensor | None

    def __init__(self, shape: MedusaShape, draft_ids: Tensor | None = None) -> None:
        super().__init__()
        if shape.reduced and draft_ids is None:
            raise ValueError("a reduced draft vocabulary needs draft_ids")
        if (shape.output == "low_rank") != (shape.rank is not None):
            raise ValueError("rank goes with a low-rank output layer")
        self.shape = shape
        self.blocks = nn.ModuleList(MedusaBlock(shape) for _ in range(shape.heads))
        self.lm_heads: nn.ModuleList | None = None
        self.narrow: nn.ModuleList | None = None
        self.widen: nn.Linear | None = None
        if shape.output == "own":
            self.lm_heads = nn.ModuleList(
                nn.Linear(shape.hidden, shape.draft_vocab_size, bias=False) for _ in range(shape.heads)
            )
        elif shape.rank is not None:
            rank = shape.rank
            self.narrow = nn.ModuleList(nn.Linear(shape.hidden, rank, bias=False) for _ in range(shape.heads))
            self.widen = nn.Linear(rank, shape.draft_vocab_size, bias=False)
        self.register_buffer("draft_ids", None if draft_ids is None else draft_ids.long(), persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """The target's hidden states after the final norm [T, H] -> the heads' states [T, heads, H]."""
        return torch.stack([block(hidden) for block in self.blocks], dim=-2)

    def logits(self, states: Tensor, target_head: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """[T, heads, H] -> [T, heads, Vd], in the order of `draft_ids`. Fewer heads than there are may be given: the
        first ones. `target_head` [R, H] -> [R, V] is needed if `output` is "target"."""
        count = states.shape[-2]
        if self.lm_heads is not None:
            return torch.stack([self.lm_heads[head](states[..., head, :]) for head in range(count)], dim=-2)
        if self.narrow is not None and self.widen is not None:
            narrow = [self.narrow[head](states[..., head, :]) for head in range(count)]
            wide: Tensor = self.widen(torch.stack(narrow, dim=-2))
            return wide
        if target_head is None:
            raise ValueError("these heads have no output layer of their own: pass the target's")
        rows = target_head(states.flatten(0, -2))
        logits = rows.view(*states.shape[:-1], rows.shape[-1])
        return logits if self.draft_ids is None else logits[..., self.draft_ids]
