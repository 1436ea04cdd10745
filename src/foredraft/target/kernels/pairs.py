"""A drafting head's layer on the compiled kernels: the decoder's format, and its threads."""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.buffers import PassShape, WorkBuffers
from foredraft.target.kernels.call import run_levels, run_stages
from foredraft.target.kernels.crew import Crew
from foredraft.target.kernels.decode import PAIR_STAGES, PROJECT_STAGES, VERSION
from foredraft.target.kernels.embeddings import Embeddings
from foredraft.target.kernels.growth_tables import GrowthTables
from foredraft.target.kernels.packing import FORMATS, Weights
from foredraft.target.kv_cache import KVCache
from foredraft.target.pair_layer import Growing, Grown, PairLayer, Places
from foredraft.target.quantization import WeightFormat, interleave, packed_bytes

__all__ = ["CompiledPairs", "fits"]


def fits(layer: PairLayer) -> bool:
    """Whether the kernels can run it: sizes fill whole vectors of 16, and float32 holds the weights."""
    sizes = (layer.head_dim, len(layer.out), len(layer.gate))
    return all(size % 16 == 0 for size in sizes) and layer.qkv.dtype != torch.float64


class CompiledPairs:
    """See `PairWay`."""

    def __init__(
        self,
        layer: PairLayer,
        embeddings: Embeddings,
        weight_format: WeightFormat,
        cache_dtype: torch.dtype,
        crew: Crew,
    ) -> None:
        self.cache_dtype = cache_dtype
        self._crew = crew
        hidden, inner = len(layer.out), len(layer.gate)
        shape = PassShape(
            hidden,
            layer.heads,
            layer.kv_heads,
            layer.head_dim,
            inner,
            max(2 * hidden, inner, layer.heads * layer.head_dim),
            layer.rope,
        )
        self._buffers = WorkBuffers(shape, crew.threads)
        self._level_states, self._level_logits = torch.empty((2, 0, hidden)), torch.empty((0, 0))
        self._constants = numpy.array([layer.epsilon, layer.head_dim**-0.5, 1, 1, 1], numpy.float32)
        up = interleave(layer.gate, layer.up)
        matrices = [layer.qkv, layer.out, up, layer.down, layer.join, layer.output]
        size = sum(
            packed_bytes(len(matrix), matrix.shape[1], weight_format) for matrix in matrices if matrix is not None
        )
        weights = self._weights = Weights(weight_format, size)
        record = numpy.zeros(at.LAYER_FIELDS, numpy.int64)
        weights.record(record, at.QKV, layer.qkv, layer.qkv_bias)
        weights.record(record, at.OUT, layer.out, None)
        weights.record(record, at.UP, up, None)
        weights.record(record, at.DOWN, layer.down, None)
        record[at.ATTENTION_NORM], record[at.MLP_NORM] = weights.keep(layer.input_norm), weights.keep(layer.mlp_norm)
        record[at.QUERY_NORM], record[at.KEY_NORM] = weights.keep(layer.query_norm), weights.keep(layer.key_norm)
        record[at.ROTATES], record[at.TAP] = 1, -1
        self._layers = record[numpy.newaxis]
        plan = self._plan = numpy.zeros(at.PLAN_FIELDS, numpy.int64)
        if layer.join is not None:
            weights.record(plan, at.JOIN, layer.join, layer.join_bias)
        if layer.output is not None:
            weights.record(plan, at.HEAD, layer.output, None)
            plan[at.VOCABULARY], plan[at.HEAD_NORM] = len(layer.output), weights.keep(layer.output_norm)
        self._embeddings = embeddings
        if layer.embedding is not None:
            width = torch.float32 if weight_format == "float32" else torch.bfloat16
            self._embeddings = Embeddings(layer.embedding.to(width, copy=True), weight_format)
        self._embeddings.describe(plan)
        plan[at.KEEPS_NORMED] = layer.keeps_normed
        plan[at.PAIRED_NORM], plan[at.FEATURE_NORM] = weights.keep(layer.paired_norm), weights.keep(layer.feature_norm)
        plan[at.FORMAT] = FORMATS[weight_format]
        plan[at.CACHE_FORMAT] = at.FLOAT32 if cache_dtype == torch.float32 else at.BFLOAT16
        shape.describe(plan)
        plan[at.VERSION], plan[at.THREADS], plan[at.LAYERS] = VERSION, crew.threads, 1

    def run(self, tokens: Tensor, features: Tensor, positions: Tensor, places: Places, cache: KVCache) -> Tensor:
        """One call; `cache` must have room for the entries of `places`."""
        plan, buffers, rows = self._plan, self._buffers, len(positions)
        longest = int(places.lengths.max())
        buffers.reserve(plan, rows, longest, places.tail.shape[1], int(positions.max()) + 1)
        buffers.slots[:rows], buffers.entries[:rows] = places.slots, places.entries
        buffers.straight[:rows], buffers.lengths[:rows] = places.straight, places.lengths
        buffers.tail[:rows, : places.tail.shape[1]] = places.tail
        plan[at.UNIT_COUNT] = self._units(places.slots)
        tokens, positions = tokens.contiguous(), positions.contiguous()
        states = features.float().contiguous().clone()
        plan[at.ROWS], plan[at.CAPACITY] = rows, cache.capacity
        plan[at.TOKENS], plan[at.POSITIONS] = tokens.data_ptr(), positions.data_ptr()
        plan[at.RESIDUAL], plan[at.WORK] = states.data_ptr(), at.PAIR
        self._layers[0, at.KEYS], self._layers[0, at.VALUES] = cache.keys[0].data_ptr(), cache.values[0].data_ptr()
        run_stages(self._crew, PAIR_STAGES, plan, self._constants, self._layers)
        return states

    def logits(self, states: Tensor) -> Tensor | None:
        """One call, norm included."""
        plan, rows = self._plan, len(states)
        if not plan[at.HEAD]:
            return None
        states, logits = states.contiguous(), torch.empty((rows, int(plan[at.VOCABULARY])))
        self._buffers.reserve(plan, rows, 1, 1)
        plan[at.ROWS], plan[at.WORK] = rows, at.PROJECT
        plan[at.RESIDUAL], plan[at.LOGITS] = states.data_ptr(), logits.data_ptr()
        run_stages(self._crew, PROJECT_STAGES, plan, self._constants, self._layers)
        return logits

    def grow(self, states: Tensor, growing: Growing, cache: KVCache) -> list[Grown] | None:
        """One call for all levels."""
        plan, buffers = self._plan, self._buffers
        if not plan[at.HEAD]:
            return None
        tables = GrowthTables(growing, int(plan[at.VOCABULARY]), *buffers.unit_limits())
        rows, depth = tables.rows, growing.depth
        longest = int(growing.stable.max()) + depth * growing.top_k
        buffers.reserve(plan, rows, longest, depth, int(growing.positions.max()) + depth + 1)
        if rows > self._level_states.shape[1]:
            self._level_states = torch.empty((2, rows, states.shape[1]))
            self._level_logits = torch.empty((rows, int(plan[at.VOCABULARY])))
        self._level_states[0, : len(states)] = states
        self._layers[0, at.KEYS], self._layers[0, at.VALUES] = cache.keys[0].data_ptr(), cache.values[0].data_ptr()
        plan[at.CAPACITY] = cache.capacity
        plan[at.TOKENS], plan[at.POSITIONS] = tables.tokens.ctypes.data, tables.positions.ctypes.data
        plan[at.LOGITS], plan[at.GROWTH] = self._level_logits.data_ptr(), tables.record.ctypes.data
        levels = numpy.repeat(plan[numpy.newaxis], depth, axis=0)
        levels[0, at.ROWS], levels[:, at.LEVEL] = len(states), numpy.arange(depth)
        levels[0::2, at.RESIDUAL] = self._level_states[0].data_ptr()
        levels[1::2, at.RESIDUAL] = self._level_states[1].data_ptr()
        run_levels(self._crew, plan, levels, tables, self._constants, self._layers)
        return tables.grown()

    def _units(self, slots: numpy.ndarray) -> int:
        """Group rows of one slot for attention; returns how many groups."""
        units, most, count = self._buffers.units, self._buffers.unit_rows(len(slots)), 0
        first = 0
        while first < len(slots):
            end = first + 1
            while end < min(first + most, len(slots)) and slots[end] == slots[first]:
                end += 1
            units[count] = first, end - first
            first, count = end, count + 1
        return count
