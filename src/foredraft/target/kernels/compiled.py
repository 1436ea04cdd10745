"""The lean decoder's compiled way: packed weights, work buffers, and the tables that one call of the compiled pass
reads.

Rows are independent of one another to the bit. Needs a processor with 512-bit vectors; sizes must fill whole words and
vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy
import torch
from torch import Tensor, nn

from foredraft.errors import CapacityError
from foredraft.target.decoder import Hidden
from foredraft.target.flat_pass import FlatPass
from foredraft.target.kernels import layout as at
from foredraft.target.kernels.attention import scratch_bytes
from foredraft.target.kernels.builder import SPLIT_BF16, serves_processor
from foredraft.target.kernels.call import run_stages
from foredraft.target.kernels.crew import Crew
from foredraft.target.kernels.decode import PROJECT_STAGES, VERSION, decode_stages, multiply_stages
from foredraft.target.kernels.linear import FORMATS, PackedLinear, packs
from foredraft.target.kernels.matrix import MATRIX_ROWS, whole_tiles
from foredraft.target.kernels.paths import lay_paths
from foredraft.target.kv_cache import KVCache
from foredraft.target.llama_shape import EMBEDDING, FINAL_NORM, HEAD, LlamaShape, layer_tensor
from foredraft.target.quantization import Packed, WeightFormat, interleave, pack, packed_bytes, unpack
from foredraft.target.threads import torch_threads

__all__ = ["CompiledWay", "refusal"]

UNITS_PER_THREAD = 4
"""So many units and key heads at least, if there are rows enough, so that no thread waits long for another."""

UNIT_QUERIES = 24
"""Query rows that attention computes together: enough to share the cache, few enough for the first-level cache."""


def refusal(shape: LlamaShape) -> str | None:
    """Why the compiled way can't run this shape here, or None."""
    if not serves_processor():
        return "the processor has no AVX2 vectors"
    for name, size in (("head", shape.head_dim), ("hidden", shape.hidden), ("inner", shape.intermediate)):
        if size % 16:
            return f"{name} size {size} doesn't fill whole vectors of 16"
    return None


class CompiledWay:
    """`take(name)` gives a tensor and may give up its own copy."""

    def __init__(
        self,
        shape: LlamaShape,
        names: set[str],
        take: Callable[[str], Tensor],
        weight_format: WeightFormat,
        threads: int | None,
    ) -> None:
        self.name = "compiled kernels"
        self.shape = shape
        self.weight_format = weight_format
        self.device = torch.device("cpu")
        self.own_threads = True
        self.cache_dtype = torch.float32 if weight_format == "float32" or SPLIT_BF16 else torch.bfloat16
        self._crew = Crew(threads or torch.get_num_threads())
        self._kept: list[Tensor] = []
        self._arena, self._arena_used = (
            torch.from_numpy(numpy.empty(_arena_bytes(shape, weight_format), numpy.uint8)),
            0,
        )
        self.weight_bytes = self._arena.nbytes
        self._plan = numpy.zeros(at.PLAN_FIELDS, numpy.int64)
        self._constants = numpy.array(
            [shape.epsilon, shape.score_scale, shape.embedding_scale, shape.residual_scale, shape.logits_scale],
            numpy.float32,
        )
        with torch_threads(1):  # packing is bound by memory
            self._layers = numpy.stack([self._layer(index, names, take) for index in range(shape.layers)])
            self._fill_plan(take)
        self._rope = torch.empty(0)
        self._rows = self._length = self._tail_width = 0
        self._cached_keys: list[Tensor] | None = None

    @property
    def threads(self) -> int:
        return self._crew.threads

    def forward(self, flat: FlatPass, cache: KVCache, taps: tuple[int, ...]) -> Hidden:
        plan, rows, hidden = self._plan, flat.rows, self.shape.hidden
        segments = numpy.array(
            [(s.slot, s.start, s.first, s.chain, len(s.parents)) for s in flat.segments], numpy.int64
        )
        slots = [segment.slot for segment in flat.segments]
        parents = numpy.array([parent for s in flat.segments for parent in s.parents], numpy.int64)
        tail_width = max(1, int(segments[:, 4].max()))
        length = int((segments[:, 1] + segments[:, 3] + segments[:, 4]).max())
        if length > cache.capacity or not 0 <= min(slots) <= max(slots) < cache.slots:
            raise CapacityError(
                f"Slots {slots} of {length} entries are outside a cache of {cache.slots} x {cache.capacity}."
            )
        self._reserve(rows, length, tail_width)
        self._point_to(cache)
        kv_heads = self.shape.kv_heads
        shares = UNITS_PER_THREAD * self._crew.threads
        unit_rows = max(1, min(UNIT_QUERIES * kv_heads // self.shape.heads, -(-rows * kv_heads // shares)))
        plan[at.UNIT_COUNT] = lay_paths(
            segments,
            parents,
            unit_rows,
            self._slots,
            self._entries,
            self._straight,
            self._lengths,
            self._tail,
            self._units,
        )
        last = torch.empty((rows, hidden))
        tapped = sorted(set(taps) - {-1})
        captured = torch.empty((rows, len(tapped), hidden)) if tapped else None
        tokens, positions = flat.tokens.contiguous(), flat.positions.contiguous()
        plan[at.ROWS], plan[at.CAPACITY] = rows, cache.capacity
        plan[at.TOKENS], plan[at.POSITIONS], plan[at.LAST] = tokens.data_ptr(), positions.data_ptr(), last.data_ptr()
        plan[at.TAP_COUNT], plan[at.TAPS] = len(tapped), captured.data_ptr() if captured is not None else 0
        self._layers[:, at.TAP] = -1
        for index, tap in enumerate(tapped):
            self._layers[tap, at.TAP] = index
        plan[at.RESIDUAL], plan[at.WORK] = self._residual.data_ptr(), at.DECODE
        self._run(decode_stages(self.shape.layers))
        if not taps:
            return Hidden(last, None)
        parts = [last if tap == -1 else captured[:, tapped.index(tap)] for tap in taps]  # type: ignore[index]
        return Hidden(last, torch.stack(parts, dim=1))

    def head(self, hidden: Tensor) -> Tensor:
        rows = hidden.shape[0]
        hidden = hidden.float().contiguous()
        self._reserve(rows, 1, 1)
        logits = torch.empty((rows, self.shape.vocabulary))
        plan = self._plan
        plan[at.ROWS], plan[at.RESIDUAL], plan[at.LOGITS], plan[at.WORK] = (
            rows,
            hidden.data_ptr(),
            logits.data_ptr(),
            at.PROJECT,
        )
        self._run(PROJECT_STAGES)
        return logits

    def run_products(self, rows: int) -> None:
        self._reserve(rows, 1, 1)
        self._residual[:rows] = torch.linspace(-1, 1, self.shape.hidden)
        logits = torch.empty((rows, self.shape.vocabulary))
        plan = self._plan
        plan[at.ROWS], plan[at.RESIDUAL], plan[at.LOGITS] = rows, self._residual.data_ptr(), logits.data_ptr()
        plan[at.WORK] = at.MULTIPLY
        self._run(multiply_stages(self.shape.layers))

    def truncated(self, layers: int) -> CompiledWay:
        short = copy(self)
        short.shape = self.shape.truncated(layers)
        short._layers = self._layers[:layers].copy()
        short._plan = self._plan.copy()
        short._plan[at.LAYERS] = layers
        short._rows = 0  # work buffers of its own
        short._cached_keys = None
        return short

    def embed(self, tokens: Tensor) -> Tensor:
        if isinstance(self._table, Packed):
            return unpack(self._table, tokens, self.weight_format)
        return self._table[tokens].float()

    def adopt(self, linear: nn.Linear) -> nn.Module:
        return PackedLinear(linear, self.weight_format, self._crew) if packs(linear) else linear

    def _run(self, stages: int) -> None:
        run_stages(self._crew, stages, self._plan, self._constants, self._layers)

    def _layer(self, index: int, names: set[str], take: Callable[[str], Tensor]) -> numpy.ndarray:
        record = numpy.zeros(at.LAYER_FIELDS, numpy.int64)

        def joined(parts: list[str], join: Callable[..., Tensor]) -> tuple[Tensor, Tensor | None]:
            weights = join(*(take(layer_tensor(index, part)) for part in parts))
            if layer_tensor(index, parts[0], "bias") not in names:
                return weights, None
            return weights, join(*(take(layer_tensor(index, part, "bias")).float() for part in parts))

        products = (
            (at.QKV, ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], _stack),
            (at.OUT, ["self_attn.o_proj"], _stack),
            (at.UP, ["mlp.gate_proj", "mlp.up_proj"], interleave),
            (at.DOWN, ["mlp.down_proj"], _stack),
        )
        for field, parts, join in products:
            weight, bias = joined(parts, join)
            packed = self._pack(weight)
            record[field], record[field + 1] = packed.words.data_ptr(), self._keep(packed.scale)
            if bias is not None:
                record[field + 2] = self._keep(torch.nn.functional.pad(bias, (0, -bias.shape[0] % at.PANEL)))
        record[at.ATTENTION_NORM] = self._keep(take(layer_tensor(index, "input_layernorm")))
        record[at.MLP_NORM] = self._keep(take(layer_tensor(index, "post_attention_layernorm")))
        if self.shape.head_norms:
            record[at.QUERY_NORM] = self._keep(take(layer_tensor(index, "self_attn.q_norm")))
            record[at.KEY_NORM] = self._keep(take(layer_tensor(index, "self_attn.k_norm")))
        record[at.WINDOW], record[at.ROTATES] = self.shape.windows[index], self.shape.rotates[index]
        return record

    def _fill_plan(self, take: Callable[[str], Tensor]) -> None:
        shape, plan = self.shape, self._plan
        table = take(EMBEDDING)
        head = self._pack(table if shape.tied else take(HEAD))
        self._table: Tensor | Packed = head
        plan[at.HEAD], plan[at.HEAD_SCALE] = head.words.data_ptr(), self._keep(head.scale)
        if not shape.tied:
            full = table.dtype == torch.float32 and self.weight_format == "float32"
            table = table.to(torch.float32 if full else torch.bfloat16).contiguous()
            self._table = table
            plan[at.EMBEDDING], plan[at.EMBEDDING_FORMAT] = table.data_ptr(), at.FLOAT32 if full else at.BFLOAT16
        plan[at.FINAL_NORM] = self._keep(take(FINAL_NORM))
        plan[at.FORMAT] = FORMATS[self.weight_format]
        plan[at.CACHE_FORMAT] = at.FLOAT32 if self.cache_dtype == torch.float32 else at.BFLOAT16
        plan[at.HIDDEN], plan[at.HEADS], plan[at.KV_HEADS] = shape.hidden, shape.heads, shape.kv_heads
        plan[at.HEAD_DIM], plan[at.INTERMEDIATE], plan[at.LAYERS] = shape.head_dim, shape.intermediate, shape.layers
        plan[at.VERSION] = VERSION
        plan[at.VOCABULARY], plan[at.THREADS] = shape.vocabulary, self._crew.threads

    def _pack(self, weight: Tensor) -> Packed:
        size = packed_bytes(weight.shape[0], weight.shape[1], self.weight_format)
        words = self._arena[self._arena_used : self._arena_used + size]
        self._arena_used += size
        return pack(weight, self.weight_format, words)

    def _keep(self, tensor: Tensor | None) -> int:
        """The address of a float32 copy that lives as long as the decoder, 0 for none."""
        if tensor is None:
            return 0
        self._kept.append(tensor.float().clone())
        return self._kept[-1].data_ptr()

    def _reserve(self, rows: int, length: int, tail_width: int) -> None:
        """Make the work buffers hold `rows` rows over `length` positions."""
        if rows <= self._rows and length <= self._length and tail_width <= self._tail_width:
            return
        shape, plan = self.shape, self._plan
        self._rows, self._length = max(self._rows, rows), max(self._length, 1 << max(length - 1, 255).bit_length())
        self._tail_width = max(self._tail_width, tail_width)
        widest = max(shape.hidden, shape.intermediate, shape.heads * shape.head_dim)
        self._residual = torch.empty((self._rows, shape.hidden))
        self._projected = torch.empty((self._rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim))
        self._inner = torch.empty((self._rows, shape.intermediate))
        self._words = torch.empty((whole_tiles(self._rows), widest * 4), dtype=torch.uint8)
        self._row_scale, self._row_sum = torch.empty(self._rows), torch.empty(self._rows)
        listed = 4 + 2 * widest
        self._listed = torch.empty((self._rows, listed), dtype=torch.uint8)
        self._queries = torch.empty((self._rows, shape.heads * shape.head_dim))
        self._slots, self._entries, self._straight, self._lengths = (
            numpy.empty(self._rows, numpy.int64) for _ in range(4)
        )
        self._tail = numpy.empty((self._rows, self._tail_width), numpy.int64)
        self._units = numpy.empty((self._rows, 2), numpy.int64)
        queries = max(UNIT_QUERIES, shape.heads // shape.kv_heads)
        scratch = (
            max(scratch_bytes(queries, shape.head_dim, self._length), 4 * shape.hidden, MATRIX_ROWS * at.PANEL * 4) // 4096 * 4096
            + 4096
        )
        self._scratch = torch.empty((self._crew.threads, scratch), dtype=torch.uint8)
        if self._rope.shape[0] < self._length:
            self._rope = shape.rope_table(self._length)
        plan[at.RESIDUAL], plan[at.PROJECTED] = self._residual.data_ptr(), self._projected.data_ptr()
        plan[at.PROJECTED_BYTES] = 4 * self._projected.shape[1]
        plan[at.INNER], plan[at.WORDS], plan[at.WORD_BYTES] = self._inner.data_ptr(), self._words.data_ptr(), widest * 4
        plan[at.ROW_SCALE], plan[at.ROW_SUM] = self._row_scale.data_ptr(), self._row_sum.data_ptr()
        plan[at.LISTED], plan[at.LISTED_BYTES] = self._listed.data_ptr(), listed
        plan[at.QUERIES], plan[at.ROPE] = self._queries.data_ptr(), self._rope.data_ptr()
        plan[at.ROW_SLOT], plan[at.ROW_ENTRY] = self._slots.ctypes.data, self._entries.ctypes.data
        plan[at.STRAIGHT], plan[at.LENGTH] = self._straight.ctypes.data, self._lengths.ctypes.data
        plan[at.TAIL], plan[at.TAIL_WIDTH], plan[at.UNITS] = (
            self._tail.ctypes.data,
            self._tail_width,
            self._units.ctypes.data,
        )
        plan[at.SCRATCH], plan[at.SCRATCH_BYTES] = self._scratch.data_ptr(), scratch

    def _point_to(self, cache: KVCache) -> None:
        if self._cached_keys is cache.keys:
            return
        self._cached_keys = cache.keys
        self._layers[:, at.KEYS] = [buffer.data_ptr() for buffer in cache.keys]
        self._layers[:, at.VALUES] = [buffer.data_ptr() for buffer in cache.values]


def _stack(*parts: Tensor) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _arena_bytes(shape: LlamaShape, weight_format: WeightFormat) -> int:
    """One allocation for all weights, which the system can back with huge pages."""
    attention = shape.heads * shape.head_dim
    layer = [
        (attention + 2 * shape.kv_heads * shape.head_dim, shape.hidden),
        (shape.hidden, attention),
        (-(-shape.intermediate // (at.PANEL // 2)) * at.PANEL, shape.hidden),
        (shape.hidden, shape.intermediate),
    ]
    sizes = layer * shape.layers + [(shape.vocabulary, shape.hidden)]
    return sum(packed_bytes(columns, size, weight_format) for columns, size in sizes)
