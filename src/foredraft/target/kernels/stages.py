"""What a pass does to one row, or to one unit of attention, read from the plan's tables."""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from numba import carray, float32, int64, njit, uint32

from foredraft.exponential import float_of
from foredraft.target.kernels import layout as at
from foredraft.target.kernels.attention import attend, row_formats
from foredraft.target.kernels.layout import BFLOAT16, INT8, PANEL
from foredraft.target.kernels.memory import bytes_at, floats_at, halves_at, longs_at
from foredraft.target.kernels.rows import convert_row, copy_row, normalise, rotate, store_row

__all__ = ["attend_unit", "convert", "embed", "finish_row", "norm_row", "pair_row", "place_row"]


@njit
def convert(plan, row, source, size):
    """A float32 row to the format of the next product."""
    target, listed = plan[at.WORDS] + row * plan[at.WORD_BYTES], plan[at.LISTED] + row * plan[at.LISTED_BYTES]
    convert_row(plan[at.FORMAT], source, size, target, plan[at.ROW_SCALE] + 4 * row, plan[at.ROW_SUM] + 4 * row, listed)


@njit
def norm_row(plan, layer, row, weight, epsilon, scratch):
    """The layer's input, normed, for its next product."""
    hidden = plan[at.HIDDEN]
    source = plan[at.RESIDUAL] + 4 * row * hidden
    if layer[at.TAP] >= 0 and weight == layer[at.ATTENTION_NORM]:
        copy_row(source, hidden, plan[at.TAPS] + 4 * hidden * (row * plan[at.TAP_COUNT] + layer[at.TAP]))
    normalise(source, weight, hidden, epsilon, scratch)
    convert(plan, row, scratch, hidden)


@njit
def pair_row(plan, row, epsilon, scratch):
    """A drafting head's input: the next token's embedding and the feature, side by side."""
    hidden = plan[at.HIDDEN]
    feature, normed = plan[at.RESIDUAL] + 4 * row * hidden, scratch + 4 * hidden
    embed(plan, row, float32(1.0), scratch)
    normalise_if(scratch, plan[at.PAIRED_NORM], hidden, epsilon, scratch)
    normalise_if(feature, plan[at.FEATURE_NORM], hidden, epsilon, normed)
    if plan[at.KEEPS_NORMED]:
        copy_row(normed, hidden, feature)
    convert(plan, row, scratch, 2 * hidden)


@njit
def normalise_if(source, weight, size, epsilon, target):
    if weight:
        normalise(source, weight, size, epsilon, target)
    elif target != source:
        copy_row(source, size, target)


@njit
def finish_row(plan, row, epsilon):
    offset = 4 * row * plan[at.HIDDEN]
    normalise(plan[at.RESIDUAL] + offset, plan[at.FINAL_NORM], plan[at.HIDDEN], epsilon, plan[at.LAST] + offset)


@njit
def embed(plan, row, factor, target):
    """The token's embedding; a tied one is a column of the packed head."""
    hidden, table = plan[at.HIDDEN], plan[at.EMBEDDING]
    token = carray(longs_at(plan[at.TOKENS]), (plan[at.ROWS],))[row]
    x = carray(floats_at(target), (hidden,))
    if plan[at.EMBEDDING_PACKED]:
        embed_packed(plan, token, factor, x)
    elif plan[at.EMBEDDING_FORMAT] == BFLOAT16:
        half = carray(halves_at(table + 2 * token * hidden), (hidden,))
        for i in range(hidden):
            x[i] = widen(half[i]) * factor
    else:
        full = carray(floats_at(table + 4 * token * hidden), (hidden,))
        for i in range(hidden):
            x[i] = full[i] * factor


@njit
def embed_packed(plan, token, factor, x):
    hidden, table = plan[at.HIDDEN], plan[at.EMBEDDING]
    panel, column = token // PANEL, token % PANEL
    if plan[at.EMBEDDING_FORMAT] == INT8:
        levels = carray(bytes_at(table + panel * hidden * PANEL), (hidden // 4, PANEL, 4))
        level = carray(floats_at(plan[at.EMBEDDING_SCALE] + 4 * token), (1,))[0] * factor
        for i in range(hidden):
            x[i] = (
                float32(int64(levels[i >> 2, column, i & 3]) - (128 if levels[i >> 2, column, i & 3] >= 0 else -128))
                * level
            )
    elif plan[at.EMBEDDING_FORMAT] == BFLOAT16:
        halves = carray(halves_at(table + 2 * panel * hidden * PANEL), (hidden // 2, PANEL, 2))
        for i in range(hidden):
            x[i] = widen(halves[i >> 1, column, i & 1]) * factor
    else:
        floats = carray(floats_at(table + 4 * panel * hidden * PANEL), (hidden, PANEL))
        for i in range(hidden):
            x[i] = floats[i, column] * factor


@njit(inline="always")
def widen(half):
    return float_of(uint32(half) << uint32(16))


@njit
def place_row(plan, layer, row, epsilon):
    """Norm and rotate the row's queries and keys; queries to QUERIES, key and value to the row's cache entry."""
    heads, kv_heads, head_dim, rows = plan[at.HEADS], plan[at.KV_HEADS], plan[at.HEAD_DIM], plan[at.ROWS]
    narrow, paired, entry_bytes, query_bytes = row_formats(plan)
    base = plan[at.PROJECTED] + 4 * row * (heads + 2 * kv_heads) * head_dim
    rope = plan[at.ROPE] + 4 * head_dim * carray(longs_at(plan[at.POSITIONS]), (rows,))[row]
    slot = carray(longs_at(plan[at.ROW_SLOT]), (rows,))[row]
    entry = carray(longs_at(plan[at.ROW_ENTRY]), (rows,))[row]
    for head in range(heads + 2 * kv_heads):
        source = base + 4 * head * head_dim
        is_query, is_key = head < heads, heads <= head < heads + kv_heads
        if is_query or is_key:
            norm = layer[at.QUERY_NORM] if is_query else layer[at.KEY_NORM]
            if norm:
                normalise(source, norm, head_dim, epsilon, source)
            if layer[at.ROTATES]:
                rotate(source, rope, head_dim)
        if is_query:
            store_row(source, head_dim, plan[at.QUERIES] + (row * heads + head) * query_bytes, paired)
        else:
            cache = layer[at.KEYS] if is_key else layer[at.VALUES]
            target = cache + ((slot * kv_heads + (head - heads) % kv_heads) * plan[at.CAPACITY] + entry) * entry_bytes
            store_row(source, head_dim, target, narrow)


@njit
def attend_unit(plan, layer, unit, kv_head, score_scale, scratch):
    units = carray(longs_at(plan[at.UNITS]), (plan[at.UNIT_COUNT], 2))
    first, rows = units[unit, 0], units[unit, 1]
    heads, kv_heads, head_dim = plan[at.HEADS], plan[at.KV_HEADS], plan[at.HEAD_DIM]
    group = heads // kv_heads
    _, _, entry_bytes, query_bytes = row_formats(plan)
    slot = carray(longs_at(plan[at.ROW_SLOT]), (plan[at.ROWS],))[first]
    cache = (slot * kv_heads + kv_head) * plan[at.CAPACITY] * entry_bytes
    queries = plan[at.QUERIES] + (first * heads + kv_head * group) * query_bytes
    target = plan[at.PROJECTED] + first * plan[at.PROJECTED_BYTES] + 4 * kv_head * group * head_dim
    keys, values = layer[at.KEYS] + cache, layer[at.VALUES] + cache
    attend(plan, first, rows, keys, values, queries, layer[at.WINDOW], score_scale, target, scratch)
