"""Attention of every row over its own path through the slot cache, in order of absolute position.

Scores, weights and the weighted sum of values are computed in blocks of 64 positions that start at multiples of 64,
position after position, whichever cache entry holds a position. So a row has the same bits whether its ancestors are
draft nodes or were committed long ago. Rows of a unit, and the query heads that share a key head, read the cache once,
together; where their paths part, each gathers its own block.
"""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from numba import carray, float32, njit, uint32

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.blocks import pair_halves, transpose_halves, transpose_words, widen_halves
from foredraft.target.kernels.builder import SPLIT_BF16
from foredraft.target.kernels.lanes import exponentials, highest, narrow_exponentials
from foredraft.target.kernels.layout import BFLOAT16, KEY_BLOCK
from foredraft.target.kernels.matrix import HAS_MATRIX_UNIT, MATRIX_ROWS, multiply_matrix_block
from foredraft.target.kernels.memory import floats_at, longs_at, words_at
from foredraft.target.kernels.rows import copy_row
from foredraft.target.kernels.tiles import score_bf16, score_f32, weigh_bf16, weigh_f32

__all__ = ["attend", "row_formats", "scratch_bytes"]

TILE_QUERIES = 6
NEVER = float32(-3e38)


def scratch_bytes(queries: int, head_dim: int, length: int) -> int:
    """What `attend` needs for units of so many queries over `length` positions."""
    span = length + 2 * KEY_BLOCK
    block = 4 * KEY_BLOCK * head_dim + MATRIX_ROWS * head_dim
    return 4 * (queries * (2 * head_dim + 1) + block + (queries + MATRIX_ROWS) * span)


@njit
def row_formats(plan):
    """Whether the cache is bfloat16, and whether queries and weights are, too: as pairs, where the processor multiplies
    such; then the bytes of a head's entry in the cache, and of its query.
    """
    narrow = plan[at.CACHE_FORMAT] == BFLOAT16
    paired = narrow and not SPLIT_BF16
    return narrow, paired, plan[at.HEAD_DIM] * (2 if narrow else 4), plan[at.HEAD_DIM] * (2 if paired else 4)


@njit(error_model="numpy")
def attend(plan, first, rows, keys, values, queries, window, scale, target, scratch):
    """Rows `first ..` of one slot and one key head.

    Addresses: keys and values of the slot's entries, queries and target of the first row's first query head of the
    group.
    """
    heads, head_dim = plan[at.HEADS], plan[at.HEAD_DIM]
    group = heads // plan[at.KV_HEADS]
    narrow, paired, entry_bytes, query_bytes = row_formats(plan)
    widened, words, total = narrow and not paired, query_bytes // 4, rows * group
    straight = carray(longs_at(plan[at.STRAIGHT] + 8 * first), (rows,))
    length = carray(longs_at(plan[at.LENGTH] + 8 * first), (rows,))
    tail, tail_bytes = plan[at.TAIL] + 8 * first * plan[at.TAIL_WIDTH], 8 * plan[at.TAIL_WIDTH]
    longest, earliest = length[0], length[0]
    for row in range(rows):
        longest, earliest = max(longest, length[row]), min(earliest, length[row])
    origin = max(earliest - window, 0) // KEY_BLOCK * KEY_BLOCK if window else 0
    span = (longest - origin + KEY_BLOCK - 1) // KEY_BLOCK * KEY_BLOCK

    packed = scratch  # [total, query_bytes]
    sums = packed + total * query_bytes  # [total, D] float32
    factors = sums + total * head_dim * 4  # [total]
    turned = factors + total * 4  # the block's keys [words, 64], later its values, in the form that the tiles read
    gathered = turned + KEY_BLOCK * head_dim * 4  # [64, D]
    product = gathered + KEY_BLOCK * head_dim * 4  # [16, D] float32
    scores = product + MATRIX_ROWS * head_dim * 4  # [total, span], later weights
    by_matrix = paired and HAS_MATRIX_UNIT and head_dim % KEY_BLOCK == 0
    for row in range(rows):
        copy_row(queries + row * heads * query_bytes, group * query_bytes // 4, packed + row * group * query_bytes)

    for start in range(origin, longest, KEY_BLOCK):
        column = scores + 4 * (start - origin)
        row = 0
        while row < rows:
            end, count = run_of(straight, length, row, rows, start)
            if end > row:
                source = keys + start * entry_bytes
            else:
                end, source = row + 1, gathered
                gather(keys, entry_bytes, start, count, straight[row], tail + row * tail_bytes, gathered)
            if count > 0:
                turn_keys(widened, source, count, entry_bytes // 4, turned)
                query, queries_here = row * group, (end - row) * group
                source, out = packed + query * query_bytes, column + 4 * query * span
                if by_matrix:
                    score_by_matrix(source, queries_here, words, turned, out, span)
                else:
                    score(paired, source, query_bytes, queries_here, words, turned, out, span)
            row = end

    clear(sums, total * head_dim)
    for row in range(rows):
        low = max(length[row] - window, 0) - origin if window else 0
        for query in range(row * group, (row + 1) * group):
            weights = weigh_scores(paired, scores + 4 * query * span, span, low, length[row] - origin, scale)
            carray(floats_at(factors), (total,))[query] = float32(1.0) / weights

    for start in range(origin, longest, KEY_BLOCK):
        column = scores + (2 if paired else 4) * (start - origin)
        row = 0
        while row < rows:
            end, count = run_of(straight, length, row, rows, start)
            if end > row:
                source = values + start * entry_bytes
            else:
                end, source = row + 1, gathered
                gather(values, entry_bytes, start, count, straight[row], tail + row * tail_bytes, gathered)
            if count > 0:
                if narrow:
                    turn_values(widened, source, count, head_dim, turned)
                    source = turned
                query, queries_here = row * group, (end - row) * group
                out, weights = sums + 4 * query * head_dim, column + 4 * query * span
                if by_matrix:
                    weigh_by_matrix(weights, span, queries_here, source, count, out, head_dim, product)
                else:
                    weigh(paired, weights, span, queries_here, source, count, out, head_dim)
            row = end

    for row in range(rows):
        for query in range(group):
            index = row * group + query
            source = carray(floats_at(sums + 4 * index * head_dim), (head_dim,))
            out = carray(floats_at(target + row * plan[at.PROJECTED_BYTES] + 4 * query * head_dim), (head_dim,))
            factor = carray(floats_at(factors), (total,))[index]
            for i in range(head_dim):
                out[i] = source[i] * factor


@njit
def run_of(straight, length, row, rows, start):
    """Rows `row .. end` whose paths are straight in this block, and how many of its positions the longest of them sees.

    When `row` itself isn't straight here, end is `row` and the count its own.
    """
    end, count = row, 0
    while end < rows and straight[end] >= min(length[end], start + KEY_BLOCK):
        count = max(count, min(KEY_BLOCK, length[end] - start))
        end += 1
    if end == row:
        count = min(KEY_BLOCK, length[row] - start)
    return end, count


@njit
def gather(source, entry_bytes, start, count, straight, tail_at, target):
    """Copy the entries of positions `start .. start + count` of one row's path."""
    tail = carray(longs_at(tail_at), (1 << 30,))
    for index in range(count):
        position = start + index
        entry = position if position < straight else tail[position - straight]
        copy_row(source + entry * entry_bytes, entry_bytes // 4, target + index * entry_bytes)


@njit
def turn_keys(widened, source, count, words, target):
    """Keys [count, words] to columns [words, 64], or [2 words, 64] when pairs of bfloat16 are widened; columns past
    `count` are rubbish, and masked later.
    """
    whole = words - words % 16
    for key in range(0, count, 16):
        for word in range(0, whole, 16):
            square, column = source + (key * words + word) * 4, target + 4 * key
            if widened:
                transpose_halves(square, words * 4, column + 2 * word * KEY_BLOCK * 4, KEY_BLOCK * 4)
            else:
                transpose_words(square, words * 4, column + word * KEY_BLOCK * 4, KEY_BLOCK * 4)
    x, y = carray(words_at(source), (KEY_BLOCK, words)), carray(words_at(target), (2 * words, KEY_BLOCK))
    for key in range(count):
        for word in range(whole, words):
            if widened:
                y[2 * word, key] = x[key, word] << uint32(16)
                y[2 * word + 1, key] = x[key, word] & uint32(0xFFFF0000)
            else:
                y[word, key] = x[key, word]


@njit
def turn_values(widened, source, count, head_dim, target):
    """bfloat16 values [count, D] to float32, or to words [count / 2, D] of two positions each."""
    if widened:
        widen_halves(source, count * head_dim, target)
    else:
        pair_halves(source, count, head_dim, target)


@njit
def score(paired, queries, query_bytes, count, words, columns, target, span):
    for query in range(0, count, TILE_QUERIES):
        tile = min(TILE_QUERIES, count - query)
        source, out = queries + query * query_bytes, target + 4 * query * span
        if paired:
            score_bf16(tile, 4, source, query_bytes, columns, KEY_BLOCK * 4, out, 4 * span, words, 0, 0)
        else:
            score_f32(tile, 4, source, query_bytes, columns, KEY_BLOCK * 4, out, 4 * span, words, 0, 0)


@njit
def score_by_matrix(queries, count, words, columns, target, span):
    """Sixteen queries at a time; rows of `target` past `count` become rubbish, which later rows replace."""
    for query in range(0, count, MATRIX_ROWS):
        source, out = queries + query * words * 4, target + 4 * query * span
        multiply_matrix_block(source, words * 4, columns, KEY_BLOCK * 4, out, 4 * span, words)


@njit
def weigh_scores(paired, scores, span, low, high, scale):
    """Scores to unnormalised weights in place, 0 outside [low, high), as bfloat16 if `paired`; returns their sum."""
    x = carray(floats_at(scores), (span,))
    for i in range(max(low, 0)):
        x[i] = NEVER
    for i in range(high, span):
        x[i] = NEVER
    top = highest(scores, span // 16)
    if paired:
        return narrow_exponentials(scores, span // 16, top, scale)
    return exponentials(scores, span // 16, top, scale)


@njit
def clear(target, size):
    x = carray(floats_at(target), (size,))
    for i in range(size):
        x[i] = float32(0.0)


@njit
def weigh(paired, weights, span, count, values, entries, target, head_dim):
    """target[count, D] += weights[count, entries] . values[entries, D], entry after entry (pairs, if `paired`)."""
    words = (entries + 1) // 2 if paired else entries
    for query in range(0, count, TILE_QUERIES):
        tile = min(TILE_QUERIES, count - query)
        weight, out = weights + 4 * query * span, target + 4 * query * head_dim
        column = 0
        while column < head_dim:
            width = 4 if column + 64 <= head_dim else 1
            value, sums = values + 4 * column, out + 4 * column
            if paired:
                weigh_bf16(tile, width, weight, 4 * span, value, 4 * head_dim, sums, 4 * head_dim, words, 0, 0)
            else:
                weigh_f32(tile, width, weight, 4 * span, value, 4 * head_dim, sums, 4 * head_dim, words, 0, 0)
            column += 16 * width


@njit
def weigh_by_matrix(weights, span, count, values, entries, target, head_dim, product):
    """As `weigh` for pairs, with sums of whole blocks. Pairs past the last are cleared: their weights are zero, but
    rubbish may not be a number."""
    pairs = (entries + 1) // 2
    whole = (pairs + MATRIX_ROWS - 1) // MATRIX_ROWS * MATRIX_ROWS
    clear(values + 4 * head_dim * pairs, (whole - pairs) * head_dim)
    for query in range(0, count, MATRIX_ROWS):
        weight, out = weights + 4 * query * span, target + 4 * query * head_dim
        for column in range(0, head_dim, KEY_BLOCK):
            place = product + 4 * column
            multiply_matrix_block(weight, 4 * span, values + 4 * column, 4 * head_dim, place, 4 * head_dim, whole)
        rows = min(MATRIX_ROWS, count - query)
        x, y = carray(floats_at(product), (rows * head_dim,)), carray(floats_at(out), (rows * head_dim,))
        for i in range(rows * head_dim):
            y[i] += x[i]
