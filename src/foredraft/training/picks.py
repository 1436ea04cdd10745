"""The target's own choices on held-out text, over its whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.training.records import Record
from foredraft.training.target_states import StateSource

__all__ = ["greedy_picks"]


@torch.no_grad()
def greedy_picks(source: StateSource, records: Sequence[Record]) -> list[Tensor]:
    """For each record's example, the likeliest token after each of its tokens but the last: [n - 1]."""
    picks = []
    for record in records:
        [example] = source.examples([record])
        picks.append(source.head(example.states[:, -1]).argmax(dim=-1).cpu())
    return picks
