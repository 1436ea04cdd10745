"""Attention for EAGLE's training-time test (Li et al. 2025, arXiv 2503.01840, section 3.2) on several texts at once.

At step 0 the rows are whole texts. At step s, row t goes on with the draft that began at row t: it sees the text's rows
up to t and its own s earlier steps. Only rows that drafts may begin at go on, so prompts cost one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["PackedChains", "TextRows"]


class TextRows(NamedTuple):
    """A text of `length` rows, of which those from `first` on begin drafts."""

    length: int
    first: int

    def drafting(self, step: int) -> int:
        """Rows at a step after 0: one less each, since the text must go on that far."""
        return max(0, self.length - self.first - step)


class PackedChains:
    """Pass to `EagleHead.step`, for one step after the other; rows [T, heads, head_dim] are those of all texts."""

    def __init__(self, texts: Sequence[TextRows]) -> None:
        self.texts = list(texts)
        self._steps: dict[int, list[tuple[list[Tensor], list[Tensor]]]] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """In float32 at least: its products are small, and each has a shape of its own."""
        if query.dtype != torch.float64:
            query, key, value = query.float(), key.float(), value.float()
        with torch.autocast(query.device.type, enabled=False):
            return self._attend(layer, query, key, value)

    def _attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        steps = self._steps.setdefault(layer, [])
        step = len(steps)
        sizes = [text.length if step == 0 else text.drafting(step) for text in self.texts]
        keys, values = list(torch.split(key, sizes)), list(torch.split(value, sizes))
        steps.append((keys, values))
        mixed = []
        for index, own in enumerate(torch.split(query, sizes)):
            if step == 0:
                mixed.append(_causal(own, keys[index], values[index]))
            elif sizes[index]:
                mixed.append(self._continued(layer, index, own))
        return torch.cat(mixed)

    def _continued(self, layer: int, index: int, query: Tensor) -> Tensor:
        """Rows [r, heads, d] of one text."""
        (text_keys, text_values), *later = self._steps[layer]
        first, rows = self.texts[index].first, len(query)
        groups = query.shape[1] // text_keys[index].shape[1]
        seen = first + rows
        key, value = _heads(text_keys[index][:seen], groups), _heads(text_values[index][:seen], groups)  # [h, n, d]
        asked = query.transpose(0, 1) * query.shape[-1] ** -0.5  # [h, r, d]
        scores = asked @ key.transpose(1, 2)
        hidden = torch.ones(rows, seen, dtype=torch.bool, device=query.device).triu(first + 1)
        parts = [scores.masked_fill(hidden, -torch.inf)]
        own_values = []
        for keys, values in later:
            own_key, own_value = _heads(keys[index][:rows], groups), _heads(values[index][:rows], groups)
            parts.append((asked * own_key).sum(-1, keepdim=True))
            own_values.append(own_value)
        weights = torch.cat(parts, dim=-1).softmax(dim=-1)
        mixed = weights[..., :seen] @ value
        for step, own_value in enumerate(own_values):
            mixed = mixed + weights[..., seen + step].unsqueeze(-1) * own_value
        return mixed.transpose(0, 1)


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    mixed = scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        _heads(key, groups).unsqueeze(0),
        _heads(value, groups).unsqueeze(0),
        is_causal=True,
    )
    return mixed[0].transpose(0, 1)


def _heads(rows: Tensor, groups: int) -> Tensor:
    """[n, kv_heads, d] -> [heads, n, d], repeated for the query heads that share them."""
    return rows.transpose(0, 1).repeat_interleave(groups, dim=0) if groups > 1 else rows.transpose(0, 1)
