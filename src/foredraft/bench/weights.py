"""How many bytes a decoder's weights take."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from foredraft.target.decoder import Decoder
from foredraft.target.fast_decoder import FastDecoder
from foredraft.target.stock_decoder import StockDecoder

__all__ = ["bytes_of_a_pass", "weight_bytes"]


def weight_bytes(decoder: Decoder) -> int | None:
    """Bytes of all weights, tied ones once; None for a decoder that isn't ours."""
    if isinstance(decoder, FastDecoder):
        return decoder.way.weight_bytes
    if isinstance(decoder, StockDecoder):
        return sum(parameter.numel() * parameter.element_size() for parameter in decoder.model.parameters())
    return None


def bytes_of_a_pass(decoder: Decoder) -> int | None:
    """Bytes of the weights that a pass of one row reads: all but an embedding table that isn't the head as well. None
    where it depends on the token (experts), and for a decoder that isn't ours.
    """
    if isinstance(decoder, FastDecoder):
        return decoder.way.weight_bytes
    if not isinstance(decoder, StockDecoder) or getattr(decoder.config, "num_experts_per_tok", None):
        return None
    model: Any = decoder.model
    table: Tensor = model.get_input_embeddings().weight
    tied = table is model.get_output_embeddings().weight
    weights: list[Tensor] = list(model.parameters())
    return sum(weight.nbytes for weight in weights) - (0 if tied else table.nbytes)
