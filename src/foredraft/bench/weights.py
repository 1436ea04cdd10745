"""How many bytes a decoder's weights take."""

from __future__ import annotations

from foredraft.target.decoder import Decoder
from foredraft.target.fast_decoder import FastDecoder
from foredraft.target.stock_decoder import StockDecoder

__all__ = ["weight_bytes"]


def weight_bytes(decoder: Decoder) -> int | None:
    """Bytes of all weights, tied ones once; None for a decoder that isn't ours."""
    if isinstance(decoder, FastDecoder):
        return decoder.way.weight_bytes
    if isinstance(decoder, StockDecoder):
        return sum(parameter.numel() * parameter.element_size() for parameter in decoder.model.parameters())
    return None
