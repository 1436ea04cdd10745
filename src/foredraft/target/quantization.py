"""Weight formats of the lean decoder, and the two shapes that weights are stored in.

float32 and bfloat16 keep the checkpoint's numbers. int8 keeps one float32 scale per output channel and whole numbers
from -127 to 127; activations get a scale per row while decoding, and a second digit where a few outliers would spoil
that scale. Sums of products are exact integers, so every kernel computes the same bits. `pack` lays a weight out in the
panels that the compiled kernels read.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Packed",
    "WeightFormat",
    "interleave",
    "pack",
    "packed_bytes",
    "quantise_activations",
    "quantise_rows",
    "unpack",
]

WeightFormat = Literal["float32", "bfloat16", "int8"]

PANEL = 48
SHIFTS = 4
CHUNK = 8
WORD_SIZE = {"int8": 4, "bfloat16": 2, "float32": 1}


class Packed(NamedTuple):
    """words int32 [panels, words, 48], a word being 4 int8 (plus 128), 2 bfloat16 or 1 float32 numbers along the input
    dimension; scale float32 [panels * 48], int8 only."""

    words: Tensor
    scale: Tensor | None


def quantise_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> int8 levels [N, K] and float32 scales [N], with levels * scale nearest to the rows."""
    rows = rows.float()
    top = rows.abs().amax(dim=1)
    inverse = torch.where(top > 1e-30, 127.0 / top, 0.0)
    return torch.round(rows * inverse.unsqueeze(1)).to(torch.int8), top / 127.0


def quantise_activations(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[T, K] -> int8 low and high digits [T, K] and float32 scales [T], with (low + 256 * high) * scale nearest to the
    rows.

    Each row gets the finest of five scales (127, 254 .. 2032 levels up to its largest entry) at which no more than one
    entry in 64 needs a high digit. Language models have a few activations far above the rest; with one digit those
    alone would set every entry's precision.
    """
    rows = rows.float()
    magnitude = rows.abs()
    top = magnitude.amax(dim=1)
    levels = torch.full_like(top, 127.0)
    for shift in range(1, SHIFTS + 1):
        above = (magnitude > (top * 0.5**shift).unsqueeze(1)).sum(dim=1)
        levels = torch.where(above <= rows.shape[1] // 64, levels * 2, levels)
    inverse = torch.where(top < 1e-30, 0.0, levels / top)
    whole = torch.round(rows * inverse.unsqueeze(1)).to(torch.int32)
    high = (whole + 128) >> 8
    return (whole - 256 * high).to(torch.int8), high.to(torch.int8), top / levels


def packed_bytes(columns: int, size: int, weight_format: WeightFormat) -> int:
    """Bytes of the packed words of a [columns, size] weight."""
    return -(-columns // PANEL) * PANEL * size // WORD_SIZE[weight_format] * 4


def pack(weight: Tensor, weight_format: WeightFormat, words: Tensor) -> Packed:
    """Pack [N, K] into `words`, uint8 [packed_bytes(N, K)]; columns past N are zero.

    Goes a few panels at a time, so that a large head needs no large temporaries.
    """
    columns, size = weight.shape
    panels = -(-columns // PANEL)
    target = words.view(torch.int32).view(panels, size // WORD_SIZE[weight_format], PANEL)
    scale = torch.zeros(panels * PANEL) if weight_format == "int8" else None
    for first in range(0, panels, CHUNK):
        rows = weight[first * PANEL : (first + CHUNK) * PANEL]
        count = -(-len(rows) // PANEL)
        missing = count * PANEL - len(rows)
        if scale is not None:
            levels, scales = quantise_rows(rows)
            scale[first * PANEL : first * PANEL + len(rows)] = scales
            rows = levels.view(torch.uint8) ^ 128  # plus 128
        else:
            rows = rows.to(getattr(torch, weight_format))
        rows = torch.nn.functional.pad(rows, (0, 0, 0, missing)).contiguous().view(torch.int32)
        target[first : first + count] = rows.view(count, PANEL, rows.shape[1]).transpose(1, 2)
    return Packed(target, scale)


def unpack(packed: Packed, columns: Tensor, weight_format: WeightFormat) -> Tensor:
    """The rows [n, K] float32 of the weight that was packed, for column numbers [n]."""
    kind = {"int8": torch.uint8, "bfloat16": torch.bfloat16, "float32": torch.float32}[weight_format]
    panels, words, _ = packed.words.shape
    numbers = packed.words.view(kind).view(panels, words, PANEL, -1)
    rows = numbers[columns // PANEL, :, columns % PANEL].flatten(1).float()
    return rows if packed.scale is None else (rows - 128) * packed.scale[columns].unsqueeze(1)


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """[I, ...] and [I, ...] -> 24 gates, the 24 ups that they gate, and so on; zeros fill the last panel."""
    half = PANEL // 2
    missing = -gate.shape[0] % half
    if missing:
        gate, up = (torch.cat([part, part.new_zeros((missing, *part.shape[1:]))]) for part in (gate, up))
    blocks = [part.reshape(-1, half, *part.shape[1:]) for part in (gate, up)]
    return torch.cat(blocks, dim=1).flatten(0, 1)
