"""A pass's matrix products alone: what its whole time is compared with.

A decoder that can run just its products says so by a method `run_products`. For stock models the products of one pass
are recorded, module by module with their inputs, and replayed: every linear layer, the head included, at that row count
and in that format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from foredraft.target.decoder import Decoder
from foredraft.target.stock_decoder import StockDecoder

__all__ = ["RunsProducts", "products_of"]


@runtime_checkable
class RunsProducts(Protocol):
    """What a decoder offers that can time its products by itself."""

    def run_products(self, rows: int) -> None:
        """Run every matrix product of a pass over `rows` rows, head included, and nothing else."""
        ...


def products_of(decoder: Decoder, rows: int, run_pass: Callable[[], Tensor]) -> Callable[[], None] | None:
    """A function that runs the products of `run_pass`, a pass over `rows` rows; None where they can't be had alone."""
    if isinstance(decoder, RunsProducts):
        return lambda: decoder.run_products(rows)
    if isinstance(decoder, StockDecoder):
        return _replay(decoder.model, run_pass)
    return None


def _replay(model: nn.Module, run_pass: Callable[[], Tensor]) -> Callable[[], None]:
    from transformers.pytorch_utils import Conv1D

    calls: list[tuple[nn.Module, Tensor]] = []
    linear = [module for module in model.modules() if isinstance(module, (nn.Linear, Conv1D))]
    hooks = [
        module.register_forward_pre_hook(lambda module, inputs: calls.append((module, inputs[0]))) for module in linear
    ]
    try:
        run_pass()
    finally:
        for hook in hooks:
            hook.remove()

    @torch.inference_mode()
    def run() -> None:
        for module, value in calls:
            module(value)

    return run
