"""Weights in the kernels' formats, and the records of addresses by which the kernels find them."""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

from foredraft.target.kernels import layout as at
from foredraft.target.quantization import Packed, WeightFormat, pack, packed_bytes

__all__ = ["FORMATS", "Weights", "stack"]

FORMATS = {"int8": at.INT8, "bfloat16": at.BFLOAT16, "float32": at.FLOAT32}


class Weights:
    """Packs into one allocation of `size` bytes, which the system can back with huge pages, and keeps it alive."""

    def __init__(self, weight_format: WeightFormat, size: int) -> None:
        self.weight_format: WeightFormat = weight_format
        self._arena, self._used = torch.from_numpy(numpy.empty(size, numpy.uint8)), 0
        self._kept: list[Tensor] = []

    @property
    def nbytes(self) -> int:
        return self._arena.nbytes

    def pack(self, weight: Tensor) -> Packed:
        """[columns, size]"""
        size = packed_bytes(weight.shape[0], weight.shape[1], self.weight_format)
        words = self._arena[self._used : self._used + size]
        self._used += size
        return pack(weight, self.weight_format, words)

    def keep(self, tensor: Tensor | None) -> int:
        """The address of a float32 copy that lives as long as this, 0 for none."""
        if tensor is None:
            return 0
        self._kept.append(tensor.detach().float().clone())
        return self._kept[-1].data_ptr()

    def record(self, table: numpy.ndarray, field: int, weight: Tensor, bias: Tensor | None) -> Packed:
        """Pack a product's weight; `table[field]` and the two fields behind it get weight, scale and bias."""
        packed = self.pack(weight)
        table[field], table[field + 1] = packed.words.data_ptr(), self.keep(packed.scale)
        if bias is not None:
            table[field + 2] = self.keep(torch.nn.functional.pad(bias.float(), (0, -bias.shape[0] % at.PANEL)))
        return packed


def stack(*parts: Tensor) -> Tensor:
    """Products of the same rows as one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
