"""One pass of an EAGLE head over rows of several sequences: in torch, or on the target's kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from foredraft.heads.eagle import EagleHead
from foredraft.target.kv_cache import KVCache
from foredraft.target.llama_shape import rope_table
from foredraft.target.pair_layer import Growing, Grown, PairLayer, PairWay, Places

__all__ = ["EaglePass", "Group", "KernelPass", "TorchPass", "described"]


class Group(NamedTuple):
    """Rows `first .. first + rows` of a pass, which write a slot's entries from `stable + entries` on.

    stable   leading entries that all of them see
    entries  behind those, seen as the mask says
    mask     [rows, entries + rows] bool, what a row sees of those and of the group; None: whatever comes before it, and
             itself
    """

    slot: int
    first: int
    rows: int
    stable: int
    entries: int
    mask: Tensor | None

    @property
    def start(self) -> int:
        return self.stable + self.entries


class EaglePass(Protocol):
    """cache_dtype: what the keys and values must be."""

    cache_dtype: torch.dtype

    def run(self, tokens: Tensor, features: Tensor, positions: Tensor, groups: Sequence[Group], kv: KVCache) -> Tensor:
        """tokens [T], features [T, H], positions [T] -> states [T, H], before the final norm. `kv` has room."""
        ...

    def logits(self, states: Tensor) -> Tensor:
        """[T, H] -> [T, Vd], in the order of the head's draft ids."""
        ...

    def grow(self, states: Tensor, growing: Growing, kv: KVCache) -> list[Grown] | None:
        """Whole drafts at once from states [B, H], where that can be done. `kv` has room."""
        ...


class TorchPass:
    """The head as it is. `embed` [T] -> [T, H] and `target_head` [T, H] -> [T, V] are the target's."""

    def __init__(
        self,
        head: EagleHead,
        dtype: torch.dtype,
        embed: Callable[[Tensor], Tensor],
        target_head: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._head, self._embed, self._target_head, self.cache_dtype = head, embed, target_head, dtype

    def run(self, tokens: Tensor, features: Tensor, positions: Tensor, groups: Sequence[Group], kv: KVCache) -> Tensor:
        """See `EaglePass`."""

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            output = torch.empty_like(query)
            for group in groups:
                rows = slice(group.first, group.first + group.rows)
                kv.append(layer, group.slot, group.start, key[rows], value[rows])
                end = group.start + group.rows
                keys, values = kv.keys[layer][group.slot, :, :end], kv.values[layer][group.slot, :, :end]
                output[rows] = _attend(query[rows], keys, values, _visible(group))
            return output

        embedded = self._head.embed(tokens, self._embed).to(features.dtype)
        return self._head.step(embedded, features, positions, attend)

    def logits(self, states: Tensor) -> Tensor:
        """See `EaglePass`."""
        return self._head.logits(states, self._target_head)

    def grow(self, states: Tensor, growing: Growing, kv: KVCache) -> list[Grown] | None:
        """It goes level by level."""
        return None


class KernelPass:
    """The head's layer as the target's decoder runs it. What has no output layer of its own goes by the head."""

    def __init__(self, layer: PairWay, head: EagleHead, target_head: Callable[[Tensor], Tensor] | None = None) -> None:
        self._layer, self._head, self._target_head, self.cache_dtype = layer, head, target_head, layer.cache_dtype

    def run(self, tokens: Tensor, features: Tensor, positions: Tensor, groups: Sequence[Group], kv: KVCache) -> Tensor:
        """See `EaglePass`."""
        return self._layer.run(tokens, features, positions, _places(groups, len(positions)), kv)

    def logits(self, states: Tensor) -> Tensor:
        """See `EaglePass`."""
        own = self._layer.logits(states)
        return self._head.logits(states, self._target_head) if own is None else own

    def grow(self, states: Tensor, growing: Growing, kv: KVCache) -> list[Grown] | None:
        """See `EaglePass`. A head that feeds back another state than the one it ends with goes level by level."""
        return None if self._head.shape.norm_output else self._layer.grow(states, growing, kv)


def described(head: EagleHead) -> PairLayer | None:
    """The head's layer for a decoder to take over; None if the head is more than such a layer."""
    shape = head.shape
    if shape.layers != 1 or shape.act != "silu":
        return None
    layer: Any = head.layers[0]
    attention, mlp, joins = layer.self_attn, layer.mlp, shape.generation == 1
    biases = [projection.bias for projection in (attention.q_proj, attention.k_proj, attention.v_proj)]
    norms: tuple[Any, Any] = (layer.input_layernorm, layer.hidden_norm)
    if joins:
        norms = (head.embedding_layernorm, head.hidden_states_layernorm)

    def rope(positions: int) -> Tensor:
        return rope_table(attention.frequencies, attention.factor, positions)

    return PairLayer(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        epsilon=shape.epsilon,
        qkv=torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
        qkv_bias=torch.cat(biases) if shape.qkv_bias else None,
        out=attention.o_proj.weight,
        gate=mlp.gate_proj.weight,
        up=mlp.up_proj.weight,
        down=mlp.down_proj.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        query_norm=_weight(attention.q_norm),
        key_norm=_weight(attention.k_norm),
        paired_norm=_weight(norms[0]),
        feature_norm=_weight(norms[1]),
        keeps_normed=shape.norm_before_residual,
        join=head.fc.weight if joins else None,
        join_bias=head.fc.bias if joins else None,
        input_norm=_weight(layer.input_layernorm) if joins else None,
        embedding=head.embed_tokens.weight if head.embed_tokens is not None else None,
        output_norm=_weight(head.norm),
        output=_output(head),
        rope=rope,
    )


def _output(head: EagleHead) -> Tensor | None:
    """The rows of its own output layer or, where that is its own embedding table, of the tokens it drafts."""
    if head.lm_head is not None:
        return head.lm_head.weight
    if head.shape.output != "embedding" or head.embed_tokens is None:
        return None
    table = head.embed_tokens.weight
    return table if head.draft_ids is None else table[head.draft_ids]


def _weight(norm: nn.Module | None) -> Tensor | None:
    return cast(Tensor, norm.weight) if norm is not None else None


def _visible(group: Group) -> Tensor | None:
    """[rows, start + rows] bool; None if all rows see everything."""
    if group.mask is None and group.rows == 1:
        return None
    mask = group.mask
    if mask is None:
        mask = torch.ones((group.rows, group.entries + group.rows), dtype=torch.bool).tril(group.entries)
    return torch.cat([torch.ones((group.rows, group.stable), dtype=torch.bool), mask], dim=1)


def _attend(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
    """query [n, heads, d], keys and values [kv_heads, m, d] -> [n, heads, d]."""
    rows, kv_heads = len(query), len(keys)
    group = query.shape[1] // kv_heads
    # Query heads that share keys become further rows: [n, kv * group, d] -> [kv, group * n, d]
    grouped = query.view(rows, kv_heads, group, -1).permute(1, 2, 0, 3).flatten(1, 2)
    mask = visible.repeat(group, 1).to(query.device) if visible is not None else None
    attended = scaled_dot_product_attention(
        grouped.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask
    )[0]
    return attended.view(kv_heads, group, rows, -1).permute(2, 0, 1, 3).flatten(1, 2)


def _places(groups: Sequence[Group], rows: int) -> Places:
    slots, entries, straight, lengths = (numpy.empty(rows, numpy.int64) for _ in range(4))
    tails: list[tuple[int, numpy.ndarray]] = []
    for group in groups:
        part = slice(group.first, group.first + group.rows)
        slots[part] = group.slot
        entries[part] = numpy.arange(group.start, group.start + group.rows)
        straight[part] = lengths[part] = entries[part] + 1
        if group.mask is not None:
            for row, seen in enumerate(group.mask.numpy(), start=group.first):
                tail = group.stable + numpy.flatnonzero(seen)
                straight[row], lengths[row] = group.stable, group.stable + len(tail)
                tails.append((row, tail))
    tail = numpy.zeros((rows, max((len(own) for _, own in tails), default=1)), numpy.int64)
    for row, own in tails:
        tail[row, : len(own)] = own
    return Places(slots, entries, straight, lengths, tail)
