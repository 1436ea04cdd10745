"""Chooses the way through the target: the lean decoder where it proved itself, else the stock transformers model.

The proof needs the stock model once. Its verdict is kept, so later starts read the weights straight into the lean
decoder.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from foredraft.errors import ConfigError, LoadError
from foredraft.target.decoder import Decoder
from foredraft.target.loading import PreparedModel
from foredraft.target.quantization import WeightFormat
from foredraft.target.stock_decoder import StockDecoder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["QUANTIZATIONS", "open_decoder"]

QUANTIZATIONS = ("int8",)
DEVICE = re.compile(r"cpu|cuda(?::(0|[1-9]\d{0,2}))?", re.ASCII)
FORMATS: dict[torch.dtype, WeightFormat] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

logger = logging.getLogger(__name__)


def open_decoder(
    prepared: PreparedModel, *, quantization: str | None = None, enforce_eager: bool = False, device: str = "auto"
) -> Decoder:
    """Build the target's decoder.

    quantization   "int8", or None: a quantised .gguf file whose dtype wasn't chosen runs as int8 on the CPU
    enforce_eager  take the stock model in any case
    device         "cpu", "cuda", "cuda:1" ..., or "auto": the first GPU if there is one

    Raises ConfigError for a bad option, LoadError when the model can't run this way.
    """
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ConfigError(f"quantization {quantization!r} is unknown; use one of {', '.join(QUANTIZATIONS)}")
    where = _device(device)
    weight_format = _weight_format(prepared, quantization, where)
    if not enforce_eager and weight_format is not None:
        decoder, reason = _lean(prepared, weight_format, where)
        if decoder is not None:
            return decoder
        logger.info("Decoding %s with the stock model: %s", prepared.name, reason)
    else:
        reason = "the stock model was asked for" if enforce_eager else f"{prepared.dtype} has no lean kernels"
    if quantization is not None:
        raise LoadError(f"{prepared.name} can't run as {quantization} ({reason}); leave out --quantization")
    return _stock(prepared, where, reason)


def _lean(prepared: PreparedModel, weight_format: WeightFormat, device: torch.device) -> tuple[Decoder | None, str]:
    """The lean decoder if it computes what the stock model computes, else the reason."""
    from foredraft.target.fast_decoder import Unsupported, build_fast_decoder, load_fast_decoder
    from foredraft.target.proof import prove, recall, remember, take_probe

    known = recall(prepared.fingerprint, weight_format, device)
    if known is not None and not known.holds:
        return None, known.reason or ""
    try:
        if known is not None:
            names, read = _tensors(prepared.checkpoint.weights)
            return load_fast_decoder(prepared.config, names, read, weight_format=weight_format, device=device), ""
        stock = _stock(prepared, device)
        probe = take_probe(stock)
        decoder = build_fast_decoder(stock.model, weight_format=weight_format)
    except Unsupported as error:
        return None, str(error)
    verdict = prove(decoder, weight_format, probe)
    remember(prepared.fingerprint, weight_format, device, verdict)
    return (decoder if verdict.holds else None), verdict.reason or ""


def _stock(prepared: PreparedModel, device: torch.device, reason: str = "") -> StockDecoder:
    network: Any = prepared.build_network()
    return StockDecoder(network.to(device), chosen_because=reason)


def _weight_format(prepared: PreparedModel, quantization: str | None, device: torch.device) -> WeightFormat | None:
    if quantization == "int8":
        return "int8"
    if prepared.quantised and not prepared.dtype_chosen and device.type == "cpu":
        from foredraft.target.kernels.builder import serves_processor

        if serves_processor():  # elsewhere integers are no faster
            return "int8"
    return FORMATS.get(prepared.dtype)


def _tensors(files: tuple[Path, ...]) -> tuple[list[str], Callable[[str], Tensor]]:
    """Every tensor's name, and a function that reads one of them."""
    from safetensors import safe_open

    open_file: Any = safe_open
    holder: dict[str, Path] = {}
    for file in files:
        with open_file(file, framework="pt") as opened:
            holder.update(dict.fromkeys(opened.keys(), file))

    def read(name: str) -> Tensor:
        with open_file(holder[name], framework="pt") as opened:  # closed again: a mapped file counts as memory in use
            tensor: Tensor = opened.get_tensor(name)
            return tensor

    return list(holder), read


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    known = DEVICE.fullmatch(name)
    if known is None:
        raise ConfigError(f"device {name!r} is unknown; use auto, cpu or cuda")
    if name != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} was asked for, but torch sees no GPU; use --device cpu")
    if known[1] is not None and int(known[1]) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"device {name!r} was asked for, but the last GPU is cuda:{count - 1}; use that or cuda")
    return torch.device(name)
