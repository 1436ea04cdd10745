"""The lean decoder's compiled way: packed weights, work buffers, and the tables that one call of the compiled pass
reads.

Rows are independent of one another to the bit. Needs a processor with AVX2; sizes must fill whole words and vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy

import numpy
import torch
from torch import Tensor, nn

from foredraft.errors import CapacityError, LoadError
from foredraft.target.decoder import Hidden
from foredraft.target.flat_pass import FlatPass
from foredraft.target.kernels import layout as at
from foredraft.target.kernels.buffers import PassShape, WorkBuffers
from foredraft.target.kernels.builder import serves_processor
from foredraft.target.kernels.call import run_stages
from foredraft.target.kernels.crew import Crew
from foredraft.target.kernels.decode import PROJECT_STAGES, VERSION, decode_stages, multiply_stages
from foredraft.target.kernels.embeddings import Embeddings
from foredraft.target.kernels.linear import PackedLinear, packs
from foredraft.target.kernels.packing import FORMATS, Weights, stack
from foredraft.target.kernels.pairs import CompiledPairs, fits
from foredraft.target.kernels.paths import lay_paths
from foredraft.target.kv_cache import KVCache
from foredraft.target.llama_shape import EMBEDDING, FINAL_NORM, HEAD, LlamaShape, layer_tensor
from foredraft.target.pair_layer import PairLayer, PairWay
from foredraft.target.quantization import WeightFormat, interleave, packed_bytes
from foredraft.target.threads import torch_threads

__all__ = ["CompiledWay", "refusal"]


def refusal(shape: LlamaShape) -> str | None:
    """Why the compiled way can't run this shape here, or None."""
    if not serves_processor():
        return "the processor has no AVX2 vectors"
    for name, size in (("head", shape.head_dim), ("hidden", shape.hidden), ("inner", shape.intermediate)):
        if size % 16:
            return f"{name} size {size} doesn't fill whole vectors of 16"
    return None


class CompiledWay:
    """`take(name)` gives a tensor and may give up its own copy; `lender` has the embedding table and the threads of a
    model without a table of its own.
    """

    def __init__(
        self,
        shape: LlamaShape,
        names: set[str],
        take: Callable[[str], Tensor],
        weight_format: WeightFormat,
        threads: int | None,
        lender: CompiledWay | None = None,
    ) -> None:
        self.name = "compiled kernels"
        self.shape = shape
        self.weight_format = weight_format
        self.device = torch.device("cpu")
        self.own_threads = True
        self.cache_dtype = torch.float32 if weight_format == "float32" else torch.bfloat16
        self._crew: Crew = lender._crew if lender else Crew(threads or torch.get_num_threads())
        self._weights = Weights(weight_format, _weight_bytes(shape, weight_format))
        self.weight_bytes = self._weights.nbytes
        self._buffers = WorkBuffers(_pass_shape(shape), self._crew.threads)
        self._plan = numpy.zeros(at.PLAN_FIELDS, numpy.int64)
        self._constants = numpy.array(
            [shape.epsilon, shape.score_scale, shape.embedding_scale, shape.residual_scale, shape.logits_scale],
            numpy.float32,
        )
        with torch_threads(1):  # packing is bound by memory
            self._layers = numpy.stack([self._layer(index, names, take) for index in range(shape.layers)])
            self._fill_plan(take, lender._embeddings if lender else None)
        self._cached_keys: list[Tensor] | None = None

    @property
    def threads(self) -> int:
        return self._crew.threads

    def forward(self, flat: FlatPass, cache: KVCache, taps: tuple[int, ...]) -> Hidden:
        plan, rows, hidden = self._plan, flat.rows, self.shape.hidden
        segments = [(s.slot, s.start, s.first, s.chain, len(s.parents)) for s in flat.segments]
        slots = [segment.slot for segment in flat.segments]
        parents = numpy.array([parent for s in flat.segments for parent in s.parents], numpy.int64)
        tail_width = max(1, *(nodes for *_, nodes in segments))
        length = max(segment.start + segment.rows for segment in flat.segments)
        if length > cache.capacity or not 0 <= min(slots) <= max(slots) < cache.slots:
            raise CapacityError(
                f"Slots {slots} of {length} entries are outside a cache of {cache.slots} x {cache.capacity}."
            )
        buffers = self._buffers
        buffers.reserve(plan, rows, length, tail_width)
        self._point_to(cache)
        plan[at.UNIT_COUNT] = lay_paths(
            numpy.array(segments, numpy.int64),
            parents,
            buffers.unit_rows(rows),
            buffers.slots,
            buffers.entries,
            buffers.straight,
            buffers.lengths,
            buffers.tail,
            buffers.units,
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
        plan[at.RESIDUAL], plan[at.WORK] = buffers.residual.data_ptr(), at.DECODE
        self._run(decode_stages(self.shape.layers))
        if not taps:
            return Hidden(last, None)
        if list(taps) == tapped:
            return Hidden(last, captured)
        parts = [last if tap == -1 else captured[:, tapped.index(tap)] for tap in taps]  # type: ignore[index]
        return Hidden(last, torch.stack(parts, dim=1))

    def head(self, hidden: Tensor) -> Tensor:
        rows = hidden.shape[0]
        hidden = hidden.float().contiguous()
        self._buffers.reserve(self._plan, rows, 1, 1)
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
        self._buffers.reserve(self._plan, rows, 1, 1)
        residual = self._buffers.residual
        residual[:rows] = torch.linspace(-1, 1, self.shape.hidden)
        logits = torch.empty((rows, self.shape.vocabulary))
        plan = self._plan
        plan[at.ROWS], plan[at.RESIDUAL], plan[at.LOGITS] = rows, residual.data_ptr(), logits.data_ptr()
        plan[at.WORK] = at.MULTIPLY
        self._run(multiply_stages(self.shape.layers))

    def truncated(self, layers: int) -> CompiledWay:
        short = copy(self)
        short.shape = self.shape.truncated(layers)
        short._layers = self._layers[:layers].copy()
        short._plan = self._plan.copy()
        short._plan[at.LAYERS] = layers
        short._buffers = WorkBuffers(_pass_shape(short.shape), self._crew.threads)
        short._cached_keys = None
        return short

    def companion(self, shape: LlamaShape, tensors: Mapping[str, Tensor]) -> CompiledWay:
        if (reason := refusal(shape)) is not None:
            raise LoadError(f"A model that borrows its embedding table can't run: {reason}.")
        return CompiledWay(shape, set(tensors), tensors.__getitem__, self.weight_format, None, lender=self)

    def embed(self, tokens: Tensor) -> Tensor:
        return self._embeddings.rows(tokens)

    def adopt(self, linear: nn.Linear) -> nn.Module:
        return PackedLinear(linear, self.weight_format, self._crew) if packs(linear) else linear

    def adopt_layer(self, layer: PairLayer) -> PairWay | None:
        if not fits(layer):
            return None
        return CompiledPairs(layer, self._embeddings, self.weight_format, self.cache_dtype, self._crew)

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
            (at.QKV, ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], stack),
            (at.OUT, ["self_attn.o_proj"], stack),
            (at.UP, ["mlp.gate_proj", "mlp.up_proj"], interleave),
            (at.DOWN, ["mlp.down_proj"], stack),
        )
        for field, parts, join in products:
            weight, bias = joined(parts, join)
            self._weights.record(record, field, weight, bias)
        record[at.ATTENTION_NORM] = self._weights.keep(take(layer_tensor(index, "input_layernorm")))
        record[at.MLP_NORM] = self._weights.keep(take(layer_tensor(index, "post_attention_layernorm")))
        if self.shape.head_norms:
            record[at.QUERY_NORM] = self._weights.keep(take(layer_tensor(index, "self_attn.q_norm")))
            record[at.KEY_NORM] = self._weights.keep(take(layer_tensor(index, "self_attn.k_norm")))
        record[at.WINDOW], record[at.ROTATES] = self.shape.windows[index], self.shape.rotates[index]
        return record

    def _fill_plan(self, take: Callable[[str], Tensor], borrowed: Embeddings | None) -> None:
        shape, plan = self.shape, self._plan
        head = self._weights.pack(take(EMBEDDING if shape.tied else HEAD))
        plan[at.HEAD], plan[at.HEAD_SCALE] = head.words.data_ptr(), self._weights.keep(head.scale)
        self._embeddings: Embeddings = borrowed or Embeddings(
            head if shape.tied else self._table(take(EMBEDDING)), self.weight_format
        )
        self._embeddings.describe(plan)
        plan[at.FINAL_NORM] = self._weights.keep(take(FINAL_NORM))
        plan[at.FORMAT] = FORMATS[self.weight_format]
        plan[at.CACHE_FORMAT] = at.FLOAT32 if self.cache_dtype == torch.float32 else at.BFLOAT16
        self._buffers.shape.describe(plan)
        plan[at.VERSION], plan[at.LAYERS] = VERSION, shape.layers
        plan[at.VOCABULARY], plan[at.THREADS] = shape.vocabulary, self._crew.threads

    def _table(self, table: Tensor) -> Tensor:
        full = table.dtype == torch.float32 and self.weight_format == "float32"
        return table.to(torch.float32 if full else torch.bfloat16).contiguous()

    def _point_to(self, cache: KVCache) -> None:
        if self._cached_keys is cache.keys:
            return
        self._cached_keys = cache.keys
        self._layers[:, at.KEYS] = [buffer.data_ptr() for buffer in cache.keys]
        self._layers[:, at.VALUES] = [buffer.data_ptr() for buffer in cache.values]


def _pass_shape(shape: LlamaShape) -> PassShape:
    widest = max(shape.hidden, shape.intermediate, shape.heads * shape.head_dim)
    return PassShape(
        shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.intermediate, widest, shape.rope_table
    )


def _weight_bytes(shape: LlamaShape, weight_format: WeightFormat) -> int:
    attention = shape.heads * shape.head_dim
    layer = [
        (attention + 2 * shape.kv_heads * shape.head_dim, shape.hidden),
        (shape.hidden, attention),
        (-(-shape.intermediate // (at.PANEL // 2)) * at.PANEL, shape.hidden),
        (shape.hidden, shape.intermediate),
    ]
    sizes = layer * shape.layers + [(shape.vocabulary, shape.hidden)]
    return sum(packed_bytes(columns, size, weight_format) for columns, size in sizes)
