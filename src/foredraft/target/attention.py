"""Attention over a flat ragged pass, in torch: the one ragged operation of the target.

Rows of one segment share a cache slot, so each segment is one scaled-dot-product over the slot's entries, under the
tree mask. Query heads that share keys are laid out as further query rows, so keys are read once per group.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache

__all__ = ["FlatAttention"]


class FlatAttention:
    """Attends for the pass it was made for; masks are built once and shared by all layers."""

    def __init__(self, flat: FlatPass, cache: KVCache) -> None:
        self.flat = flat
        self.cache = cache
        self._masks: dict[tuple[int, int | None, int], Tensor] = {}

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Append key [T, kv_heads, d] and value [T, kv_heads, dv]; query [T, heads, d] -> [T, heads, dv]."""
        kv_heads = key.shape[1]
        output = query.new_zeros((query.shape[0], query.shape[1], value.shape[2]))
        for index, segment in enumerate(self.flat.segments):
            rows = slice(segment.first, segment.first + segment.rows)
            self.cache.append(layer, segment.slot, segment.start, key[rows], value[rows])
            length = segment.start + segment.rows
            keys = self.cache.keys[layer][segment.slot, :, :length].to(query.dtype)
            values = self.cache.values[layer][segment.slot, :, :length].to(query.dtype)
            # [n, kv * group, d] -> [kv, group * n, d]
            count, heads, dim = segment.rows, query.shape[1], query.shape[2]
            grouped = query[rows].view(count, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3).flatten(1, 2)
            mask = self._mask(index, segment, sliding_window, heads // kv_heads)
            attended = _attend(grouped, keys, values, mask, scaling, softcap)
            output[rows] = attended.view(heads, count, -1).transpose(0, 1)
        return output

    def _mask(self, index: int, segment: Segment, window: int | None, group: int) -> Tensor | None:
        """[group * rows, start + rows] bool, once for each query head that shares keys; None where every row sees
        everything.
        """
        length = segment.start + segment.rows
        if segment.rows == 1 and (window is None or length <= window):
            return None
        if (index, window, group) not in self._masks:
            seen = torch.ones((segment.rows, segment.start), dtype=torch.bool)
            mask = torch.cat([seen, segment.mask()], dim=1)
            if window is not None:
                depths = torch.tensor(segment.depths()) + segment.start
                positions = torch.cat([torch.arange(segment.start), depths])
                mask &= positions > (depths - window).unsqueeze(1)
            self._masks[index, window, group] = mask.repeat(group, 1).to(self.flat.tokens.device)
        return self._masks[index, window, group]


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, softcap: float | None
) -> Tensor:
    if softcap is None:
        return scaled_dot_product_attention(
            query.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, scale=scaling
        )[0]
    scores = softcap * torch.tanh(query @ keys.transpose(1, 2) * (scaling / softcap))
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1) @ values
