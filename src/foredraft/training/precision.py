"""Which numbers the products of training run in: bfloat16 where the device multiplies it faster; weights, their
averages and all sums of losses stay float32."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext

import torch

from foredraft.target.kernels.builder import SPLIT_BF16

__all__ = ["mixed_precision"]

# norms have bfloat16 rows and float32 weights then, which is meant
warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight", category=UserWarning)


def mixed_precision(device: torch.device, wanted: bool = True) -> AbstractContextManager[object]:
    """A context for forward passes and losses; without bfloat16 products on the device, one that does nothing."""
    if wanted and (device.type == "cuda" or (device.type == "cpu" and not SPLIT_BF16)):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
