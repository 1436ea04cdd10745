"""A table of embeddings as the kernels read it: rows of numbers, or the columns of a packed output layer that is tied
to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.packing import FORMATS
from foredraft.target.quantization import Packed, WeightFormat, unpack

__all__ = ["Embeddings"]


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """table: float32 or bfloat16 [V, H], or packed in `weight_format`."""

    table: Tensor | Packed
    weight_format: WeightFormat

    def rows(self, tokens: Tensor) -> Tensor:
        """Ids [T] -> [T, H] float32."""
        if isinstance(self.table, Packed):
            return unpack(self.table, tokens, self.weight_format)
        return self.table[tokens].float()

    def describe(self, plan: numpy.ndarray) -> None:
        """Tell a plan where to look tokens up."""
        table = self.table
        if isinstance(table, Packed):
            plan[at.EMBEDDING], plan[at.EMBEDDING_PACKED] = table.words.data_ptr(), 1
            plan[at.EMBEDDING_SCALE] = table.scale.data_ptr() if table.scale is not None else 0
            plan[at.EMBEDDING_FORMAT] = FORMATS[self.weight_format]
            return
        plan[at.EMBEDDING], plan[at.EMBEDDING_PACKED] = table.data_ptr(), 0
        plan[at.EMBEDDING_FORMAT] = at.FLOAT32 if table.dtype == torch.float32 else at.BFLOAT16
