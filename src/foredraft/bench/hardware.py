"""What the machine itself offers, without a model: vectors, memory bandwidth, products with independent rows."""

from __future__ import annotations

import os

import torch
from torch.nn.functional import linear

from foredraft.bench.passes import milliseconds
from foredraft.target.provenance import processor_features

__all__ = ["copy_rate", "core_count", "instruction_sets", "product_invariance"]

INSTRUCTION_SETS = (
    "avx2",
    "avx512f",
    "avx512vnni",
    "avx512bf16",
    "avx512fp16",
    "avxvnni",
    "amx-int8",
    "neon",
    "dotprod",
)
COPIED_BYTES = 1 << 28  # more than any cache holds
COPIES = 5
MOST_ROWS = 64


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def instruction_sets() -> list[str]:
    """Those of the processor's vector extensions that matter to products."""
    available = processor_features()
    return [name for name in INSTRUCTION_SETS if name in available]


def copy_rate(device: torch.device) -> float:
    """GB/s of a copy in the device's memory, reading and writing counted; the best of five."""
    source, target = torch.ones((2, COPIED_BYTES), dtype=torch.uint8, device=device).unbind()
    return 2 * COPIED_BYTES / min(milliseconds(lambda: target.copy_(source)) for _ in range(COPIES)) / 1e6


def product_invariance(size: int, device: torch.device) -> dict[str, int | None]:
    """From how many rows on the library's products give a row the same bits, by type; None: not below 64 rows.

    The product is [rows, size] x [size, 2 size].
    """
    found: dict[str, int | None] = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        generator = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(rows, size, generator=generator).to(device, dtype) for rows in (MOST_ROWS, 2 * size))
        whole = linear(x, weight)
        differing = [rows for rows in range(1, MOST_ROWS) if not torch.equal(linear(x[:rows], weight), whole[:rows])]
        first = max(differing, default=0) + 1
        found[name] = first if first < MOST_ROWS else None
    return found
