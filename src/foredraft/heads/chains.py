"""Attention for rows that all advance at the same time, each along its own draft: no cache, dense, on any device.

At step 0 the rows are a text, and attend causally. At step s the row of position t + s continues the draft that started
at row t: it attends to the text up to t, and to its own earlier steps (the training-time test of EAGLE-3, arXiv
2503.01840, section 3.2).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ChainAttention"]


class ChainAttention:
    """Pass to `EagleHead.step` for one step after the other.

    Rows [..., T, heads, head_dim]; later steps may have fewer rows than the text, the first ones of it.
    """

    def __init__(self) -> None:
        self._steps: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        steps = self._steps.setdefault(layer, [])
        steps.append((key, value))
        text_key, text_value = steps[0]
        rows = query.shape[-3]
        groups = query.shape[-2] // key.shape[-2]
        query = query * query.shape[-1] ** -0.5
        scores = torch.einsum("...thd,...shd->...hts", query, _spread(text_key, groups))
        behind = torch.ones(rows, text_key.shape[-3], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~behind, -torch.inf)
        own = [
            torch.einsum("...thd,...thd->...ht", query, _spread(key[..., :rows, :, :], groups)) for key, _ in steps[1:]
        ]
        weights = torch.cat([scores, *(score.unsqueeze(-1) for score in own)], dim=-1).softmax(dim=-1)
        length = text_key.shape[-3]
        mixed = torch.einsum("...hts,...shd->...thd", weights[..., :length], _spread(text_value, groups))
        for step, (_, value) in enumerate(steps[1:]):
            share = weights[..., length + step].transpose(-1, -2).unsqueeze(-1)
            mixed = mixed + share * _spread(value[..., :rows, :, :], groups)
        return mixed


def _spread(heads: Tensor, groups: int) -> Tensor:
    """Key or value heads repeated for the query heads that share them."""
    return heads.repeat_interleave(groups, dim=-2) if groups > 1 else heads
