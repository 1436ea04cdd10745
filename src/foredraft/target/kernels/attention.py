"""Attention of every row over its own path through the slot cache, in order of absolute position.

A row's keys are the cache entries 0, 1, 2 ... of its slot as far as its path is straight, then the entries of its draft ancestors. Scores, weights and
the weighted sum of values are computed position by position in blocks that start at multiples of 64, whatever entry holds a position, so
a row has the same bits whether its ancestors are draft nodes or were committed long ago. Rows of a unit and the query heads that share a key head
read the cache once, together; where their paths part, each gathers its own block.
"""

from __future__ import annotations

from numba import carray, float32, njit

from foredraft.target.kernels.layout import BFLOAT16, KEY_BLOCK
from foredraft.target.kernels.rows import copy_row
from foredraft.target.kernels.vectors import (
    exponentials,
    floats_at,
    highest,
    longs_at,
    score_bf16,
    score_f32,
    transpose_words,
    weigh_bf16,
    weigh_f32,
    words_at,
)

__all__ = ["attend", "lay_paths", "scratch_bytes"]

TILE_QUERIES = 6
NEVER = float32(-3e38)


def scratch_bytes(queries: int, head_dim: int, length: int) -> int:
    """What `attend` needs for units of so many queries over `length` positions."""
    return 4 * (queries * head_dim * 2 + KEY_BLOCK * head_dim * 2 + queries * (length + 2 * KEY_BLOCK)) + 256


@njit
def lay_paths(segments, parents, unit_rows, slots, entries, straight, length, tail, units):  # type: ignore[no-untyped-def]
    """Fill the path tables from segments [S, 5] (slot, start, first row, chain, nodes); returns the number of units."""
    count, offset = 0, 0
    for s in range(segments.shape[0]):
        slot, start, first, chain, nodes = (
            segments[s, 0],
            segments[s, 1],
            segments[s, 2],
            segments[s, 3],
            segments[s, 4],
        )
        for index in range(chain + nodes):
            row = first + index
            slots[row] = slot
            entries[row] = start + index
            if index < chain:
                straight[row] = length[row] = start + index + 1
                continue
            parent = first + parents[offset + index - chain]
            length[row] = length[parent] + 1
            if straight[parent] == length[parent] and length[parent] == start + index:
                straight[row] = length[row]
                continue
            straight[row] = straight[parent]
            inherited = length[parent] - straight[parent]
            for step in range(inherited):
                tail[row, step] = tail[parent, step]
            tail[row, inherited] = start + index
        offset += nodes
        for index in range(0, chain + nodes, unit_rows):
            units[count, 0] = first + index
            units[count, 1] = min(unit_rows, chain + nodes - index)
            count += 1
    return count


@njit(error_model="numpy")
def attend(  # type: ignore[no-untyped-def]
    cache_format, first, rows, group, head_dim, keys, values, queries, query_stride, straight_at, length_at, tail_at, tail_width, window, scale,
    target, target_stride, scratch,
):  # fmt: skip
    """Rows `first ..` of one slot and one key head; keys and values point to its entries, queries and target to the first row's first query head."""
    narrow = cache_format == BFLOAT16
    entry_bytes = head_dim * (2 if narrow else 4)
    words = entry_bytes // 4
    total = rows * group
    straight = carray(longs_at(straight_at + 8 * first), (rows,))
    length = carray(longs_at(length_at + 8 * first), (rows,))
    longest, earliest = length[0], length[0]
    for row in range(rows):
        longest, earliest = max(longest, length[row]), min(earliest, length[row])
    origin = max(earliest - window, 0) // KEY_BLOCK * KEY_BLOCK if window else 0
    span = (longest - origin + KEY_BLOCK - 1) // KEY_BLOCK * KEY_BLOCK

    packed = scratch
    sums = packed + total * words * 4
    columns = sums + total * head_dim * 4
    gathered = columns + KEY_BLOCK * words * 4
    scores = gathered + KEY_BLOCK * entry_bytes
    for row in range(rows):
        copy_row(queries + row * query_stride, group * words, packed + row * group * words * 4)

    for start in range(origin, longest, KEY_BLOCK):
        offset = 4 * (start - origin)
        if meets_straight(straight, length, rows, start):
            turn(keys + start * entry_bytes, min(KEY_BLOCK, longest - start), words, columns)
            score(narrow, packed, total, words, columns, scores + offset, span)
        for row in range(rows):
            if length[row] > start and straight[row] < min(length[row], start + KEY_BLOCK):
                count = min(KEY_BLOCK, length[row] - start)
                gather(
                    keys, entry_bytes, start, count, straight[row], tail_at + 8 * (first + row) * tail_width, gathered
                )
                turn(gathered, count, words, columns)
                score(
                    narrow,
                    packed + row * group * words * 4,
                    group,
                    words,
                    columns,
                    scores + 4 * row * group * span + offset,
                    span,
                )

    for row in range(rows):
        seen = max(length[row] - window, 0) if window else 0
        for query in range(row * group, (row + 1) * group):
            total_weight = weigh_scores(scores + 4 * query * span, span, seen - origin, length[row] - origin, scale)
            out = carray(floats_at(sums), (total, head_dim))[query]
            for i in range(head_dim):
                out[i] = float32(0.0)
            carray(floats_at(packed), (total,))[query] = float32(1.0) / total_weight  # the queries are used up

    for start in range(origin, longest, KEY_BLOCK):
        offset = 4 * (start - origin)
        row = 0
        while row < rows:
            if straight[row] < min(length[row], start + KEY_BLOCK):
                if length[row] > start:
                    count = min(KEY_BLOCK, length[row] - start)
                    gather(
                        values,
                        entry_bytes,
                        start,
                        count,
                        straight[row],
                        tail_at + 8 * (first + row) * tail_width,
                        gathered,
                    )
                    weigh(
                        narrow,
                        scores + 4 * row * group * span + offset,
                        span,
                        group,
                        gathered,
                        count,
                        sums + 4 * row * group * head_dim,
                        head_dim,
                    )
                row += 1
                continue
            end, count = row, 0  # rows that go straight here share the block
            while end < rows and straight[end] >= min(length[end], start + KEY_BLOCK):
                count = max(count, min(KEY_BLOCK, length[end] - start))
                end += 1
            if count > 0:
                weigh(
                    narrow, scores + 4 * row * group * span + offset, span, (end - row) * group, values + start * entry_bytes, count,
                    sums + 4 * row * group * head_dim, head_dim,
                )  # fmt: skip
            row = end

    factors = carray(floats_at(packed), (total,))
    for row in range(rows):
        for query in range(group):
            source = carray(floats_at(sums + 4 * (row * group + query) * head_dim), (head_dim,))
            out = carray(floats_at(target + row * target_stride + 4 * query * head_dim), (head_dim,))
            factor = factors[row * group + query]
            for i in range(head_dim):
                out[i] = source[i] * factor


@njit
def meets_straight(straight, length, rows, start):  # type: ignore[no-untyped-def]
    for row in range(rows):
        if length[row] > start and straight[row] >= min(length[row], start + KEY_BLOCK):
            return True
    return False


@njit
def gather(source, entry_bytes, start, count, straight, tail_at, target):  # type: ignore[no-untyped-def]
    """Copy the entries of positions `start .. start + count` of one row's path."""
    tail = carray(longs_at(tail_at), (1 << 30,))
    for index in range(count):
        position = start + index
        entry = position if position < straight else tail[position - straight]
        copy_row(source + entry * entry_bytes, entry_bytes // 4, target + index * entry_bytes)


@njit
def turn(source, count, words, target):  # type: ignore[no-untyped-def]
    """Keys [count, words] to columns [words, 64]; columns past `count` are rubbish and masked later."""
    for key in range(0, count, 16):
        whole = words - words % 16
        for word in range(0, whole, 16):
            transpose_words(
                source + (key * words + word) * 4, words * 4, target + (word * KEY_BLOCK + key) * 4, KEY_BLOCK * 4
            )
        if whole < words:
            x, y = carray(words_at(source), (KEY_BLOCK, words)), carray(words_at(target), (words, KEY_BLOCK))
            for i in range(key, min(key + 16, count)):
                for word in range(whole, words):
                    y[word, i] = x[i, word]


@njit
def score(narrow, queries, count, words, columns, target, span):  # type: ignore[no-untyped-def]
    for query in range(0, count, TILE_QUERIES):
        tile = min(TILE_QUERIES, count - query)
        if narrow:
            score_bf16(
                tile,
                4,
                queries + query * words * 4,
                words * 4,
                columns,
                KEY_BLOCK * 4,
                target + 4 * query * span,
                4 * span,
                words,
            )
        else:
            score_f32(
                tile,
                4,
                queries + query * words * 4,
                words * 4,
                columns,
                KEY_BLOCK * 4,
                target + 4 * query * span,
                4 * span,
                words,
            )


@njit
def weigh_scores(scores, span, low, high, scale):  # type: ignore[no-untyped-def]
    """Scores to unnormalised weights in place, 0 outside [low, high); returns their sum."""
    x = carray(floats_at(scores), (span,))
    for i in range(max(low, 0)):
        x[i] = NEVER
    for i in range(high, span):
        x[i] = NEVER
    return exponentials(scores, span // 16, highest(scores, span // 16), scale)


@njit
def weigh(narrow, weights, span, count, values, entries, target, head_dim):  # type: ignore[no-untyped-def]
    """target[count, D] += weights[count, entries] . values[entries, D], entry after entry."""
    size = 2 if narrow else 4
    for query in range(0, count, TILE_QUERIES):
        tile = min(TILE_QUERIES, count - query)
        weight, out = weights + 4 * query * span, target + 4 * query * head_dim
        column = 0
        while column < head_dim:
            width = 4 if column + 64 <= head_dim else 1
            if narrow:
                weigh_bf16(
                    tile,
                    width,
                    weight,
                    4 * span,
                    values + size * column,
                    size * head_dim,
                    out + 4 * column,
                    4 * head_dim,
                    entries,
                )
            else:
                weigh_f32(
                    tile,
                    width,
                    weight,
                    4 * span,
                    values + size * column,
                    size * head_dim,
                    out + 4 * column,
                    4 * head_dim,
                    entries,
                )
            column += 16 * width
