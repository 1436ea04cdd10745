"""Rows padded to few different counts. Libraries compile a matrix product for the shape that it is called with, which
takes longer than the product itself when every batch has a shape of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

__all__ = ["pad_linears", "padded"]

MULTIPLE = 128


def padded(product: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """`product` of rows [n, H], called with a multiple of 128 of them: [n, out]."""
    count = len(rows)
    missing = -count % MULTIPLE
    if missing:
        rows = torch.cat([rows, rows.new_zeros((missing, rows.shape[1]))])
    return product(rows)[:count]


def pad_linears(module: nn.Module) -> None:
    """Make every linear layer in `module` see padded rows; its parameters stay the same."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, _PaddedLinear(child))


class _PaddedLinear(nn.Linear):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = padded(lambda rows: linear(rows, self.weight, self.bias), x.reshape(-1, self.in_features))
        return rows.view(*x.shape[:-1], self.out_features)
