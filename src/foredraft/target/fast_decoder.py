"""A decoder for Llama-shaped models with nothing between its products but what the arithmetic needs.

Two ways compute the same functions: compiled kernels on CPUs, where a row's result has the same bits whatever the other
rows of the pass are, and plain torch everywhere else (GPUs, float64, processors that the kernels don't serve). Weights
are taken over from the checkpoint one by one, so that there is no second copy of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from foredraft.errors import LoadError
from foredraft.target.decoder import Hidden
from foredraft.target.flat_pass import FlatPass
from foredraft.target.kv_cache import KVCache
from foredraft.target.llama_shape import EMBEDDING, LlamaShape, Unsupported, read_shape
from foredraft.target.pair_layer import PairLayer, PairWay
from foredraft.target.quantization import WeightFormat

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["FastDecoder", "Unsupported", "build_fast_decoder", "companion_in_torch", "load_fast_decoder"]


class Way(Protocol):
    """How the pass is computed."""

    name: str
    shape: LlamaShape
    weight_bytes: int
    cache_dtype: torch.dtype
    device: torch.device
    own_threads: bool

    def forward(self, flat: FlatPass, cache: KVCache, taps: tuple[int, ...]) -> Hidden: ...

    def head(self, hidden: Tensor) -> Tensor: ...

    def embed(self, tokens: Tensor) -> Tensor: ...

    def adopt(self, linear: nn.Linear) -> nn.Module: ...

    def adopt_layer(self, layer: PairLayer) -> PairWay | None: ...

    def run_products(self, rows: int) -> None: ...

    def truncated(self, layers: int) -> Way: ...

    def companion(self, shape: LlamaShape, tensors: Mapping[str, Tensor]) -> Way: ...


class FastDecoder:
    """The lean decoder. Hidden states and logits are float32 (float64 for a float64 model).

    `cache_dtype` is what the KV cache must be made of.
    """

    def __init__(self, weight_format: WeightFormat, way: Way) -> None:
        shape = way.shape
        self.weight_format: WeightFormat = weight_format
        self.way = way
        self.cache_shape = shape.cache_shape
        self.cache_dtype = way.cache_dtype
        self.vocab_size = shape.vocabulary
        self.hidden_size = shape.hidden
        self.way_name = way.name
        self.own_threads = way.own_threads

    @property
    def device(self) -> torch.device:
        return self.way.device

    @torch.inference_mode()
    def forward(self, flat: FlatPass, cache: KVCache, taps: tuple[int, ...] = ()) -> Hidden:
        """Run the layers over all rows, writing keys and values to `cache`."""
        return self.way.forward(flat, cache, taps)

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """[R, H] -> logits [R, V]."""
        return self.way.head(hidden)

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        """Ids [T] -> rows [T, H] of the embedding table, whatever format it is packed in."""
        return self.way.embed(tokens)

    def adopt(self, linear: nn.Linear) -> nn.Module:
        """The layer on this decoder's kernels, or as it is."""
        return self.way.adopt(linear)

    def adopt_layer(self, layer: PairLayer) -> PairWay | None:
        """The layer on this decoder's kernels, or None."""
        return self.way.adopt_layer(layer)

    @torch.inference_mode()
    def run_products(self, rows: int) -> None:
        """Every matrix product of a pass over `rows` rows, head included, and nothing else: what passes are measured
        against.
        """
        self.way.run_products(rows)

    def truncated(self, layers: int) -> FastDecoder:
        """The first `layers` layers with the final norm and head; every weight is shared."""
        total = self.way.shape.layers
        if not 1 <= layers <= total:
            raise LoadError(f"target:{layers} asks for {layers} of the target's {total} layers; give 1 to {total}.")
        return FastDecoder(self.weight_format, self.way.truncated(layers))

    def companion(self, config: PreTrainedConfig, tensors: Mapping[str, Tensor]) -> FastDecoder:
        """A model in this one's format that has no embedding table and looks tokens up in this one's. Raises LoadError
        unless it is Llama-shaped and as wide.
        """
        shape = _companion_shape(config, tensors, self.hidden_size)
        return FastDecoder(self.weight_format, self.way.companion(shape, tensors))


def build_fast_decoder(
    model: PreTrainedModel, *, weight_format: WeightFormat, threads: int | None = None
) -> FastDecoder:
    """Take the weights out of `model`, which can't be used afterwards.

    `threads` is how many compute (torch's number of threads when None). Raises Unsupported, before it touches any
    weight, when the model is not Llama-shaped.
    """
    parameters = dict(model.named_parameters())

    def take(name: str) -> Tensor:
        parameter = parameters.pop(name)
        tensor = parameter.data
        parameter.data = tensor.new_empty(0)
        return tensor

    return load_fast_decoder(
        model.config, list(parameters), take, weight_format=weight_format, threads=threads, device=model.device
    )


def load_fast_decoder(
    config: PreTrainedConfig,
    names: Iterable[str],
    read: Callable[[str], Tensor],
    *,
    weight_format: WeightFormat,
    threads: int | None = None,
    device: torch.device | str = "cpu",
    compiled: bool = True,
) -> FastDecoder:
    """Build from a checkpoint's tensor `names` and a function that reads one; `compiled` False uses plain torch.

    Raises Unsupported when the model is not Llama-shaped.
    """
    present = set(names)
    shape = read_shape(config, present)
    if compiled and torch.device(device).type == "cpu" and config.dtype != torch.float64:
        from foredraft.target.kernels.compiled import CompiledWay, refusal

        if refusal(shape) is None:
            return FastDecoder(weight_format, CompiledWay(shape, present, read, weight_format, threads))
    from foredraft.target.torch_way import TorchWay

    return FastDecoder(weight_format, TorchWay(shape, present, read, weight_format, torch.device(device)))


def companion_in_torch(table: Tensor, config: PreTrainedConfig, tensors: Mapping[str, Tensor]) -> FastDecoder:
    """A model in plain torch that looks tokens up in `table` [V, H], on its device. Raises LoadError unless it is
    Llama-shaped and as wide.
    """
    from foredraft.target.torch_way import TorchWay

    shape = _companion_shape(config, tensors, table.shape[1])
    weight_format: WeightFormat = "bfloat16" if table.dtype in (torch.bfloat16, torch.float16) else "float32"
    way = TorchWay(shape, set(tensors), tensors.__getitem__, weight_format, table.device, table)
    return FastDecoder(weight_format, way)


def _companion_shape(config: PreTrainedConfig, names: Iterable[str], width: int) -> LlamaShape:
    try:
        shape = read_shape(config, {EMBEDDING, *names})
    except Unsupported as error:
        raise LoadError(f"A model that borrows its embedding table can't run: {error}.") from error
    if shape.hidden != width:
        raise LoadError(f"A model of width {shape.hidden} can't borrow embeddings of width {width}.")
    return replace(shape, tied=False)  # whatever the config says, the table is another model's
