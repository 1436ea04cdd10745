"""What a training run will need, before it starts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from foredraft.errors import CapacityError
from foredraft.target.machine import free_memory

__all__ = ["Estimate", "estimate_memory", "refuse_if_too_large"]

BYTES_PER_TRAINED = 16
"""Weight, gradient and AdamW's two averages, in float32."""
RESERVE = 0.1


class Estimate(NamedTuple):
    """bytes: beyond what is loaded already; parameters: those that are trained."""

    bytes: int
    parameters: int


def estimate_memory(module: nn.Module, activations: int, loaded: int = 0) -> Estimate:
    """`activations` are a batch's; `loaded` bytes of weights are in memory by now."""
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    return Estimate(max(0, trained * BYTES_PER_TRAINED + activations - loaded), trained)


def refuse_if_too_large(estimate: Estimate, device: torch.device, batch_tokens: int) -> None:
    """Raise CapacityError if that much memory isn't free."""
    free = free_memory(device)
    if free is not None and estimate.bytes > free * (1 - RESERVE):
        raise CapacityError(
            f"training needs about {estimate.bytes / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory are free; lower "
            f"--batch-tokens ({batch_tokens}) or --draft-vocab-size, or close other programs"
        )
