"""Which tokens a request may sample: min-p, then top-k, then top-p, each among those that the one before it left.

All three keep a row's tokens from some score on, so together they come down to one number a row, its floor. Equal
scores stay or go together, as their order among themselves is nobody's choice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foredraft.types import SamplingParams

__all__ = ["SMALL_VOCABULARY", "floors"]

SMALL_VOCABULARY = 4096
"""Up to here torch's own operations are as fast as compiled ones."""


def floors(scores: Tensor, params: SamplingParams) -> Tensor | None:
    """The lowest score that each row keeps: [n, V] after temperature -> [n, 1]; None where nothing is filtered."""
    top_k = params.top_k if 0 < params.top_k < scores.shape[-1] else 0
    if not (params.min_p > 0 or top_k or params.top_p < 1):
        return None
    behind = math.log(params.min_p) if params.min_p > 0 else -math.inf
    if scores.device.type != "cpu" or scores.dtype != torch.float32 or scores.shape[-1] <= SMALL_VOCABULARY:
        return _sorted_floors(scores, behind, top_k, params.top_p)
    from foredraft.block_maxima import block_maxima
    from foredraft.compiled_floors import compiled_floors

    values = scores.contiguous().numpy()
    found = compiled_floors(values, block_maxima(values), behind, top_k, params.top_p)
    return torch.from_numpy(found).unsqueeze(1)


def _sorted_floors(scores: Tensor, behind: float, top_k: int, top_p: float) -> Tensor:
    """`behind` is how far below the best min-p goes, as a difference of scores (negative)."""
    floor = scores.max(dim=-1, keepdim=True).values + behind
    if top_k:
        floor = torch.maximum(floor, scores.topk(top_k, dim=-1).values[:, -1:])
    if top_p < 1:
        falling = scores.masked_fill(scores < floor, -torch.inf).sort(dim=-1, descending=True).values
        shares = falling.softmax(dim=-1)
        kept = (shares.cumsum(dim=-1) - shares < top_p).sum(dim=-1, keepdim=True)
        floor = torch.maximum(floor, falling.gather(-1, kept.clamp(min=1) - 1))
    return floor
