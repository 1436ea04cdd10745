"""The memory that a compiled pass works in, grown as passes need it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.attention import scratch_bytes
from foredraft.target.kernels.matrix import MATRIX_ROWS, whole_tiles

__all__ = ["PassShape", "WorkBuffers"]

UNITS_PER_THREAD = 4
"""So many units and key heads at least, if there are rows enough, so that no thread waits long for another."""

UNIT_QUERIES = 24
"""Query rows that attention computes together: enough to share the cache, few enough for the first-level cache."""


@dataclass(frozen=True, slots=True)
class PassShape:
    """Sizes that a pass's buffers follow from; `widest` is the longest row that any product reads.

    rope  positions -> float32 [positions, 2, D / 2], cosines and sines
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    widest: int
    rope: Callable[[int], Tensor]

    def describe(self, plan: numpy.ndarray) -> None:
        """Tell a plan the sizes."""
        plan[at.HIDDEN], plan[at.HEADS], plan[at.KV_HEADS] = self.hidden, self.heads, self.kv_heads
        plan[at.HEAD_DIM], plan[at.INTERMEDIATE] = self.head_dim, self.intermediate


class WorkBuffers:
    """What passes over `rows` rows need, and where each row finds its keys (see `paths`).

    slots, entries, straight, lengths [T], tail [T, width], units [T, 2]: int64
    """

    def __init__(self, shape: PassShape, threads: int) -> None:
        self.shape, self.threads = shape, threads
        self._rows = self._length = self._tail_width = self._positions = 0

    def unit_rows(self, rows: int) -> int:
        """How many rows of a sequence attention should compute together in a pass over `rows`."""
        most, shares = self.unit_limits()
        return max(1, min(most, -(-rows * self.shape.kv_heads // shares)))

    def unit_limits(self) -> tuple[int, int]:
        """The most rows of a unit, and into how many units and key heads the work should be split at least."""
        return UNIT_QUERIES * self.shape.kv_heads // self.shape.heads, UNITS_PER_THREAD * self.threads

    def reserve(self, plan: numpy.ndarray, rows: int, length: int, tail_width: int, positions: int = 0) -> None:
        """Make `plan` point to buffers for `rows` rows that see `length` cache entries, at positions below `positions`
        (at least `length`)."""
        positions = max(positions, length)
        if rows > self._rows or length > self._length or tail_width > self._tail_width:
            self._grow(rows, length, tail_width)
        elif plan[at.TAIL] == self._tail_address and positions <= self._positions:
            return
        if positions > self._positions:
            self._positions = 1 << max(positions - 1, 255).bit_length()
            self._rope = self.shape.rope(self._positions)
        self._point(plan)

    def _grow(self, rows: int, length: int, tail_width: int) -> None:
        shape = self.shape
        self._rows, self._length = max(self._rows, rows), max(self._length, 1 << max(length - 1, 255).bit_length())
        self._tail_width = max(self._tail_width, tail_width)
        rows = self._rows
        self.residual = torch.empty((rows, shape.hidden))
        self._projected = torch.empty((rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim))
        self._inner = torch.empty((rows, shape.intermediate))
        self._words = torch.empty((whole_tiles(rows), shape.widest * 4), dtype=torch.uint8)
        self._row_scale, self._row_sum = torch.empty(rows), torch.empty(rows)
        self._listed = torch.empty((rows, 4 + 2 * shape.widest), dtype=torch.uint8)
        self._queries = torch.empty((rows, shape.heads * shape.head_dim))
        self.slots, self.entries, self.straight, self.lengths = (numpy.empty(rows, numpy.int64) for _ in range(4))
        self.tail = numpy.empty((rows, self._tail_width), numpy.int64)
        self._tail_address = self.tail.ctypes.data  # asking numpy takes microseconds, and passes ask twice
        self.units = numpy.empty((rows, 2), numpy.int64)
        queries = max(UNIT_QUERIES, shape.heads // shape.kv_heads)
        needs = (
            scratch_bytes(queries, shape.head_dim, self._length),
            4 * shape.widest,
            MATRIX_ROWS * at.PANEL * 4,
        )
        self._scratch = torch.empty((self.threads, max(needs) // 4096 * 4096 + 4096), dtype=torch.uint8)

    def _point(self, plan: numpy.ndarray) -> None:
        plan[at.RESIDUAL], plan[at.PROJECTED] = self.residual.data_ptr(), self._projected.data_ptr()
        plan[at.PROJECTED_BYTES] = 4 * self._projected.shape[1]
        plan[at.INNER], plan[at.WORDS] = self._inner.data_ptr(), self._words.data_ptr()
        plan[at.WORD_BYTES] = self._words.shape[1]
        plan[at.ROW_SCALE], plan[at.ROW_SUM] = self._row_scale.data_ptr(), self._row_sum.data_ptr()
        plan[at.LISTED], plan[at.LISTED_BYTES] = self._listed.data_ptr(), self._listed.shape[1]
        plan[at.QUERIES], plan[at.ROPE] = self._queries.data_ptr(), self._rope.data_ptr()
        plan[at.ROW_SLOT], plan[at.ROW_ENTRY] = self.slots.ctypes.data, self.entries.ctypes.data
        plan[at.STRAIGHT], plan[at.LENGTH] = self.straight.ctypes.data, self.lengths.ctypes.data
        plan[at.TAIL], plan[at.TAIL_WIDTH] = self._tail_address, self._tail_width
        plan[at.UNITS] = self.units.ctypes.data
        plan[at.SCRATCH], plan[at.SCRATCH_BYTES] = self._scratch.data_ptr(), self._scratch.shape[1]
