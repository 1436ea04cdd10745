"""A matrix product over a whole pass, with what follows it: bias, residual addition, or the gated activation.

Weights are stored in panels of 48 columns, word after word (see `vectors`), so that a pass reads each panel once from memory, from one end to the
other, and multiplies it with all its rows, eight at a time.
"""

from __future__ import annotations

from numba import carray, float32, int32, njit

from foredraft.target.kernels.crew import claim, complete
from foredraft.target.kernels.layout import BFLOAT16, INT8, PANEL
from foredraft.target.kernels.rows import exponential
from foredraft.target.kernels.vectors import floats_at, multiply_bf16, multiply_f32, multiply_int8, words_at

__all__ = ["ADD", "GATE", "STORE", "product"]

STORE, ADD, GATE = 0, 1, 2
TILE_ROWS = 8


@njit
def product(  # type: ignore[no-untyped-def]
    steps, threads, stage, rank, weight_format, rows, words_bytes, source, size, row_scale, row_sum, weight, scale, bias, columns, mode, factor,
    target, scratch,
):  # fmt: skip
    """target[rows, columns] = / += source[rows, size] . weight[size, columns]; in mode GATE, half as many columns: silu(gate) * up."""
    words = size // 4 if weight_format == INT8 else (size // 2 if weight_format == BFLOAT16 else size)
    wide = PANEL // 2 if mode == GATE else PANEL
    panels = (columns + wide - 1) // wide
    done = 0
    while True:
        panel = claim(steps, threads, stage, rank, panels)
        if panel < 0:
            break
        packed = weight + panel * words * PANEL * 4
        for row in range(0, rows, TILE_ROWS):
            count = min(TILE_ROWS, rows - row)
            at = source + row * words_bytes
            if weight_format == INT8:
                multiply_int8(count, 3, at, words_bytes, packed, PANEL * 4, scratch, PANEL * 4, words)
                dequantise(scratch, count, row_scale + 4 * row, row_sum + 4 * row, scale + 4 * PANEL * panel)
            elif weight_format == BFLOAT16:
                multiply_bf16(count, 3, at, words_bytes, packed, PANEL * 4, scratch, PANEL * 4, words)
            else:
                multiply_f32(count, 3, at, words_bytes, packed, PANEL * 4, scratch, PANEL * 4, words)
            if bias:
                add_bias(scratch, count, bias + 4 * PANEL * panel)
            filled = min(wide, columns - panel * wide)
            deliver(scratch, count, filled, mode, factor, target + 4 * (row * columns + panel * wide), columns)
        done += 1
    complete(steps, threads, stage, done, panels)


@njit
def dequantise(tile, rows, row_scale, row_sum, scale):  # type: ignore[no-untyped-def]
    """Integer sums to float32 in place. Weights were stored plus 128, which added 128 times the row's sum."""
    sums, floats = carray(words_at(tile), (rows, PANEL)), carray(floats_at(tile), (rows, PANEL))
    scales, totals, columns = (
        carray(floats_at(row_scale), (rows,)),
        carray(words_at(row_sum), (rows,)),
        carray(floats_at(scale), (PANEL,)),
    )
    for row in range(rows):
        excess = int32(totals[row]) * int32(128)
        factor = scales[row]
        for column in range(PANEL):
            floats[row, column] = float32(int32(sums[row, column]) - excess) * (factor * columns[column])


@njit
def add_bias(tile, rows, bias):  # type: ignore[no-untyped-def]
    floats, columns = carray(floats_at(tile), (rows, PANEL)), carray(floats_at(bias), (PANEL,))
    for row in range(rows):
        for column in range(PANEL):
            floats[row, column] += columns[column]


@njit
def deliver(tile, rows, filled, mode, factor, target, stride):  # type: ignore[no-untyped-def]
    for row in range(rows):
        x = carray(floats_at(tile + 4 * PANEL * row), (PANEL,))
        y = carray(floats_at(target + 4 * stride * row), (filled,))
        if mode == STORE:
            for column in range(filled):
                y[column] = x[column] * factor
        elif mode == ADD:
            for column in range(filled):
                y[column] += x[column] * factor
        else:
            for column in range(filled):
                gate = x[column]
                y[column] = gate / (float32(1.0) + exponential(-gate)) * x[column + PANEL // 2]
