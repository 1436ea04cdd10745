"""How far drafts would be accepted, simulated on held-out text: no engine, no cache, one pass for all rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["SimulatedAcceptance", "chained", "simulate"]


class SimulatedAcceptance(NamedTuple):
    """by_depth: share of right guesses at each depth (as if all before were right); length: 1 + the mean number of
    leading right guesses, so 1.0 is plain decoding."""

    by_depth: tuple[float, ...]
    length: float

    def as_dict(self) -> dict[str, object]:
        return {"acceptance_length": round(self.length, 4), "by_depth": [round(share, 4) for share in self.by_depth]}


def simulate(matches: Iterable[Tensor], depth: int) -> SimulatedAcceptance:
    """`matches` [rows, depth] bool of each text: whether row t's guess for its d-th token was the target's. Rows whose
    text ended before have False there and are counted as drafts that ended."""
    all_rows = torch.cat([each.reshape(-1, depth) for each in matches]).double()
    if not len(all_rows):
        return SimulatedAcceptance((0.0,) * depth, 1.0)
    leading = all_rows.cumprod(dim=1).sum(dim=1)
    return SimulatedAcceptance(tuple(all_rows.mean(dim=0).tolist()), 1.0 + float(leading.mean()))


def chained(right: Tensor, depth: int) -> Tensor:
    """[rows] bool, whether each row's guess was right -> [rows, depth], row t's chain being rows t, t + 1, ..."""
    padded = torch.cat([right, right.new_zeros(depth)])
    return torch.stack([padded[step : step + len(right)] for step in range(depth)], dim=1)
