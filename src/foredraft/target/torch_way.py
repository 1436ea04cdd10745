"""The lean decoder in plain torch: GPUs, float64, and processors that the compiled kernels don't serve.

The functions are those of the compiled way, written without a host sync between layers. Products of floating-point
numbers run on tiles of a fixed number of rows, so that the library picks the same kernel whatever the size of the pass;
int8 products are exact anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, silu

from foredraft.target.attention import FlatAttention
from foredraft.target.decoder import Hidden
from foredraft.target.flat_pass import FlatPass
from foredraft.target.kv_cache import KVCache
from foredraft.target.llama_shape import EMBEDDING, FINAL_NORM, HEAD, LlamaShape, layer_tensor
from foredraft.target.pair_layer import PairLayer, PairWay
from foredraft.target.quantization import WeightFormat, quantise_activations, quantise_rows

__all__ = ["TorchWay"]

TILE_ROWS = 32
"""Above 16, which is the least that CUDA's int8 product takes."""


class Weight(NamedTuple):
    """rows [N, K] in the weight format; scale float32 [N] for int8; bias [N] or None."""

    rows: Tensor
    scale: Tensor | None
    bias: Tensor | None


class Layer(NamedTuple):
    qkv: Weight
    out: Weight
    up: Weight
    down: Weight
    norms: tuple[Tensor, Tensor]
    head_norms: tuple[Tensor, Tensor] | None


class TorchWay:
    """`take(name)` gives a tensor and may give up its own copy; `table` is an embedding table to borrow."""

    def __init__(
        self,
        shape: LlamaShape,
        names: set[str],
        take: Callable[[str], Tensor],
        weight_format: WeightFormat,
        device: torch.device,
        table: Tensor | None = None,
    ) -> None:
        self.name = "plain torch"
        self.shape = shape
        self.weight_format = weight_format
        self.device = device
        self.own_threads = False
        table = take(EMBEDDING).to(device) if table is None else table
        self.dtype = torch.float64 if table.dtype == torch.float64 else torch.float32
        self.cache_dtype = self.dtype if weight_format == "float32" else torch.bfloat16
        self._names, self._take = names, take
        self.layers = [self._layer(index) for index in range(shape.layers)]
        self.final_norm = self._norm(FINAL_NORM)
        self.head_weight = self._weight(table if shape.tied else take(HEAD).to(device))
        self.embedding = table if not shape.tied or weight_format == "int8" else self.head_weight.rows
        self._rope = torch.empty(0, device=device)
        del self._take
        weights = [self.head_weight, *(weight for layer in self.layers for weight in layer[:4])]
        self.weight_bytes = sum(weight.rows.nbytes for weight in weights)

    def forward(self, flat: FlatPass, cache: KVCache, taps: tuple[int, ...]) -> Hidden:
        shape = self.shape
        attend = FlatAttention(flat, cache)
        rope = self._rope_of(flat)
        x = self.embedding[flat.tokens].to(self.dtype) * shape.embedding_scale
        captured: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            if index in taps:
                captured[index] = x
            projected = self._product(self._normalise(x, layer.norms[0]), layer.qkv)
            heads = projected.view(len(projected), -1, shape.head_dim)
            query, key, value = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
            if layer.head_norms is not None:
                query, key = (
                    self._normalise(part, norm) for part, norm in zip((query, key), layer.head_norms, strict=True)
                )
            if shape.rotates[index]:
                query, key = _rotate(query, rope), _rotate(key, rope)
            window = shape.windows[index] or None
            attended = attend(index, query, key, value, scaling=shape.score_scale, sliding_window=window)
            x = x + self._product(attended.flatten(1), layer.out) * shape.residual_scale
            gate, up = self._product(self._normalise(x, layer.norms[1]), layer.up).chunk(2, dim=1)
            x = x + self._product(silu(gate) * up, layer.down) * shape.residual_scale
        last = captured[-1] = self._normalise(x, self.final_norm)
        return Hidden(last, torch.stack([captured[tap] for tap in taps], dim=1) if taps else None)

    def head(self, hidden: Tensor) -> Tensor:
        return self._product(hidden.to(self.dtype), self.head_weight) * self.shape.logits_scale

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens.to(self.device)].to(self.dtype)

    def adopt(self, linear: nn.Linear) -> nn.Module:
        return linear

    def adopt_layer(self, layer: PairLayer) -> PairWay | None:
        return None

    def run_products(self, rows: int) -> None:
        weights = [weight for layer in self.layers for weight in layer[:4]] + [self.head_weight]
        for weight in weights:
            self._product(torch.ones(rows, weight.rows.shape[1], dtype=self.dtype, device=self.device), weight)

    def truncated(self, layers: int) -> TorchWay:
        short = copy(self)
        short.shape = self.shape.truncated(layers)
        short.layers = self.layers[:layers]
        return short

    def companion(self, shape: LlamaShape, tensors: Mapping[str, Tensor]) -> TorchWay:
        return TorchWay(shape, set(tensors), tensors.__getitem__, self.weight_format, self.device, self.embedding)

    def _product(self, x: Tensor, weight: Weight) -> Tensor:
        """[T, K] -> [T, N] in the residual's type."""
        if weight.scale is not None:
            low, high, scale = quantise_activations(x)
            sums = _exact(low, weight.rows) + 256 * _exact(high, weight.rows)
            y = sums.float() * (scale.unsqueeze(1) * weight.scale)
        else:
            padded = pad(x.to(weight.rows.dtype), (0, 0, 0, -x.shape[0] % TILE_ROWS))
            tiles = torch.split(padded, TILE_ROWS)
            y = torch.cat([linear(tile, weight.rows) for tile in tiles])[: x.shape[0]].to(self.dtype)
        return y if weight.bias is None else y + weight.bias

    def _normalise(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.shape.epsilon) * weight

    def _rope_of(self, flat: FlatPass) -> Tensor:
        """[T, 2, 1, D / 2]: the rows' cosines and sines."""
        longest = max(segment.start + segment.rows for segment in flat.segments)
        if longest > self._rope.shape[0]:
            self._rope = self.shape.rope_table(1 << longest.bit_length()).to(self.device, self.dtype)
        return self._rope[flat.positions].unsqueeze(2)

    def _layer(self, index: int) -> Layer:
        def weight(*parts: str) -> Weight:
            rows = torch.cat([self._take(layer_tensor(index, part)) for part in parts])
            bias = None
            if layer_tensor(index, parts[0], "bias") in self._names:
                bias = torch.cat([self._take(layer_tensor(index, part, "bias")) for part in parts])
            return self._weight(rows.to(self.device), bias)

        norms = tuple(self._norm(layer_tensor(index, part)) for part in ("input_layernorm", "post_attention_layernorm"))
        head_norms = None
        if self.shape.head_norms:
            head_norms = (
                self._norm(layer_tensor(index, "self_attn.q_norm")),
                self._norm(layer_tensor(index, "self_attn.k_norm")),
            )
        return Layer(
            qkv=weight("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            out=weight("self_attn.o_proj"),
            up=weight("mlp.gate_proj", "mlp.up_proj"),
            down=weight("mlp.down_proj"),
            norms=(norms[0], norms[1]),
            head_norms=head_norms,
        )

    def _weight(self, rows: Tensor, bias: Tensor | None = None) -> Weight:
        bias = None if bias is None else bias.to(self.device, self.dtype)
        if self.weight_format == "int8":
            return Weight(*quantise_rows(rows), bias)
        kind = torch.bfloat16 if self.weight_format == "bfloat16" else self.dtype
        return Weight(rows.to(kind), None, bias)

    def _norm(self, name: str) -> Tensor:
        return self._take(name).to(self.device, self.dtype)


def _exact(levels: Tensor, weight: Tensor) -> Tensor:
    """int8 [T, K] . int8 [N, K] -> int32 [T, N]."""
    rows = levels.shape[0]
    padded = pad(levels, (0, 0, 0, -rows % TILE_ROWS))
    return torch._int_mm(padded, weight.t())[:rows]


def _rotate(heads: Tensor, rope: Tensor) -> Tensor:
    """[T, heads, D], rope [T, 2, 1, D / 2]."""
    low, high = heads.chunk(2, dim=2)
    cosine, sine = rope[:, 0], rope[:, 1]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=2)
