"""How a decoder holds the model's weights: in which format, and how many bytes."""

from __future__ import annotations

from foredraft.target.decoder import Decoder
from foredraft.target.fast_decoder import FastDecoder
from foredraft.target.stock_decoder import StockDecoder

__all__ = ["weight_bytes", "weight_format"]


def weight_format(decoder: Decoder) -> str:
    """ "int8", "bfloat16", "float32" ...; of a decoder that isn't ours, the dtype of its KV cache."""
    if isinstance(decoder, FastDecoder):
        return decoder.weight_format
    return str(decoder.cache_dtype).removeprefix("torch.")


def weight_bytes(decoder: Decoder) -> int | None:
    """Bytes of all weights, tied ones once; None for a decoder that isn't ours."""
    if isinstance(decoder, FastDecoder):
        return decoder.way.weight_bytes
    if isinstance(decoder, StockDecoder):
        return sum(parameter.numel() * parameter.element_size() for parameter in decoder.model.parameters())
    return None
