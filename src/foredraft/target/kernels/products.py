"""A matrix product over a whole pass, with what follows it: bias, residual addition, or the gated activation.

Weights are stored in panels of 48 columns, word after word (see `tiles`), so that a pass reads each panel once from
memory, from one end to the other, and multiplies it with all its rows, eight or sixteen at a time.
"""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from numba import carray, float32, int32, int64, njit

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.lanes import gate_panel, scale_panel
from foredraft.target.kernels.layout import BFLOAT16, INT8, PANEL
from foredraft.target.kernels.matrix import (
    HAS_MATRIX_UNIT,
    MATRIX_ROWS,
    MATRIX_WORDS,
    multiply_matrix_bf16,
    multiply_matrix_int8,
)
from foredraft.target.kernels.memory import floats_at, words_at
from foredraft.target.kernels.rows import copy_row
from foredraft.target.kernels.sharing import claim, complete
from foredraft.target.kernels.tiles import multiply_bf16, multiply_f32, multiply_int8, multiply_listed

__all__ = ["ADD", "GATE", "STORE", "product"]

STORE, ADD, GATE = 0, 1, 2
TILE_ROWS = 8
MATRIX_FROM = 9
"""Rows of int8 from which on the matrix unit is faster; fewer are bound by memory, and tiles of vectors suffice."""

LINE = PANEL * 4
WIDTH = LINE // 64
"""Cache lines of a panel's word."""

AHEAD = 8192
"""Bytes by which weights are asked for before they are needed."""


@njit
def product(plan, stage, rank, record, field, size, columns, mode, factor, target):
    """Stage: target[T, columns] = or += the plan's WORDS[T, size] . weight[size, columns], then scaled by `factor`.

    `record[field]` is the weight, its scale and its bias follow. In mode GATE the weight has twice as many columns:
    silu(gate) * up.
    """
    weight_format, rows = plan[at.FORMAT], plan[at.ROWS]
    weight, scale, bias = record[field], record[field + 1], record[field + 2]
    words = size // 4 if weight_format == INT8 else (size // 2 if weight_format == BFLOAT16 else size)
    wide = PANEL // 2 if mode == GATE else PANEL
    panels = (columns + wide - 1) // wide
    tile = plan[at.SCRATCH] + rank * plan[at.SCRATCH_BYTES]
    fits = HAS_MATRIX_UNIT and words % MATRIX_WORDS == 0
    by_matrix = fits and (weight_format == BFLOAT16 or (weight_format == INT8 and rows >= MATRIX_FROM))
    height = MATRIX_ROWS if by_matrix else TILE_ROWS
    parts = (rows + height - 1) // height
    done = 0
    while True:
        panel = claim(plan, stage, rank, panels)
        if panel < 0:
            break
        packed = weight + panel * words * LINE
        for row in range(0, rows, height):
            count = min(height, rows - row)
            source = plan[at.WORDS] + row * plan[at.WORD_BYTES]
            wanted, lines = next_lines(packed, words * LINE, row // height, parts)
            if weight_format == INT8:
                if by_matrix:
                    multiply_matrix_int8(source, plan[at.WORD_BYTES], packed, LINE, tile, LINE, words)
                else:
                    multiply_int8(count, 3, source, plan[at.WORD_BYTES], packed, LINE, tile, LINE, words, wanted, lines)
                multiply_high(plan, row, count, packed, tile)
                scales = plan[at.ROW_SCALE] + 4 * row
                dequantise(tile, count, scales, plan[at.ROW_SUM] + 4 * row, scale + LINE * panel)
            elif weight_format == BFLOAT16:
                if by_matrix:
                    multiply_matrix_bf16(source, plan[at.WORD_BYTES], packed, LINE, tile, LINE, words)
                else:
                    multiply_bf16(count, 3, source, plan[at.WORD_BYTES], packed, LINE, tile, LINE, words, wanted, lines)
            else:
                multiply_f32(count, 3, source, plan[at.WORD_BYTES], packed, LINE, tile, LINE, words, wanted, lines)
            if bias:
                add_bias(tile, count, bias + LINE * panel)
            filled = min(wide, columns - panel * wide)
            deliver(tile, count, filled, mode, factor, target + 4 * (row * columns + panel * wide), columns)
        done += 1
    complete(plan, stage, done, panels)


@njit
def next_lines(panel, panel_bytes, part, parts):
    """Which lines to ask for with every word: the first word's first line, and how many.

    With all rows in one tile these are needed soon. Otherwise memory would wait while a panel that is in the cache
    already meets further rows, so each of the `parts` tiles asks for its share of the next panel.
    """
    if parts == 1:
        return panel + AHEAD, WIDTH
    first = WIDTH * part // parts
    return panel + panel_bytes + 64 * first, max(WIDTH * (part + 1) // parts - first, 1)


@njit
def multiply_high(plan, first, rows, packed, tile):
    """Add the products of the high digits that some entries of a row have."""
    for row in range(rows):
        listed = plan[at.LISTED] + (first + row) * plan[at.LISTED_BYTES]
        count = int64(carray(words_at(listed), (1,))[0])
        if count:
            multiply_listed(listed + 4, count, packed, tile + LINE * row)


@njit
def dequantise(tile, rows, row_scale, row_sum, scale):
    """Integer sums to float32 in place. Weights were stored plus 128, which added 128 times the row's sum."""
    sums, floats = carray(words_at(tile), (rows, PANEL)), carray(floats_at(tile), (rows, PANEL))
    scales, totals = carray(floats_at(row_scale), (rows,)), carray(words_at(row_sum), (rows,))
    columns = carray(floats_at(scale), (PANEL,))
    for row in range(rows):
        excess = int32(totals[row]) * int32(128)
        factor = scales[row]
        for column in range(PANEL):
            floats[row, column] = float32(int32(sums[row, column]) - excess) * (factor * columns[column])


@njit
def add_bias(tile, rows, bias):
    floats, columns = carray(floats_at(tile), (rows, PANEL)), carray(floats_at(bias), (PANEL,))
    for row in range(rows):
        for column in range(PANEL):
            floats[row, column] += columns[column]


@njit
def deliver(tile, rows, filled, mode, factor, target, stride):
    whole = filled == (PANEL // 2 if mode == GATE else PANEL)
    for row in range(rows):
        source, place = tile + LINE * row, target + 4 * stride * row
        into = place if whole else source
        if mode == ADD:
            add_scaled(source, filled, factor, place)
        elif mode == STORE:
            scale_panel(source, factor, into)
        else:
            gate_panel(source, into)
        if mode != ADD and not whole:
            copy_row(source, filled, place)


@njit(fastmath={"contract"})
def add_scaled(source, size, factor, target):
    x, y = carray(floats_at(source), (size,)), carray(floats_at(target), (size,))
    for i in range(size):
        y[i] += x[i] * factor
