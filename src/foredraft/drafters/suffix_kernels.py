"""The compiled loops of the suffix index: insert tokens, recall what followed earlier occurrences, grow a tree from that.

The index is a match finder like those of LZ compressors. For each of a few context lengths ("orders") it keeps hash chains: `heads[order, hash]`
is the end of the latest occurrence of a context, `previous[order, end]` the end of the one before. Inserting a token costs one
chain link per order whatever the text, and the latest occurrences of the longest matching suffix are a short walk away. `end` is
the index of the token after an occurrence, where its continuation starts; 0 means none. All buffers have a power of two entries and
positions wrap around, so the same loops serve a text that grows and a store that forgets.

Imported only when a drafter is bound: importing numba takes a while. Compiled code is cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

__all__ = ["KINDS", "ORDERS", "extend", "grow", "recall"]

ORDERS = (1, 2, 4, 8, 16)
LENGTH_BUCKETS = 8
SHARE_BUCKETS = 5
KINDS = (2*LENGTH_BUCKETS+1) * SHARE_BUCKETS
MAX_CHILDREN = 4
MAX_STEPS = 64

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


def _extend(tokens, previous, heads, start, stop):  # type: ignore[no-untyped-def]
    """Link the tokens at positions start .. stop - 1 into the chains."""
    window = tokens.shape[0] - 1
    table = np.uint64(heads.shape[1] - 1)
    for end in range(start + 1, stop + 1):
        state = np.uint64(0)
        order = 0
        for back in range(1, min(ORDERS[-1], end) + 1):
            state = (state ^ np.uint64(tokens[(end - back) & window] + 1)) * _MULTIPLIER
            state ^= state >> _SHIFT
            if back == ORDERS[order]:
                slot = np.int64(state & table)
                previous[order, end & window] = heads[order, slot]
                heads[order, slot] = end
                order += 1


def _recall(tokens, previous, heads, salt, oldest, stop, pattern, continuations, lengths, ends, first):  # type: ignore[no-untyped-def]
    """Fill rows `first`.. of `continuations` with what followed the latest occurrences of `pattern`'s longest suffixes.

    lengths[i] is how many tokens of the pattern's tail match before ends[i]. Returns the number of rows filled in all.
    """
    window = tokens.shape[0] - 1
    table = np.uint64(heads.shape[1] - 1)
    longest = pattern.shape[0]
    slots = np.zeros(len(ORDERS), np.int64)
    state = np.uint64(0)
    order = 0
    for back in range(1, min(ORDERS[-1], longest) + 1):
        state = (state ^ np.uint64((pattern[longest - back] | salt) + 1)) * _MULTIPLIER
        state ^= state >> _SHIFT
        if back == ORDERS[order]:
            slots[order] = np.int64(state & table)
            order += 1
    count = first
    above = longest + 1
    while order > 0 and count < continuations.shape[0]:
        order -= 1
        end = np.int64(heads[order, slots[order]])
        for _ in range(MAX_STEPS):
            if end <= oldest or count == continuations.shape[0]:
                break
            if end < stop:
                length = 0
                while (
                    length < longest
                    and end - length > oldest
                    and tokens[(end - 1 - length) & window] == (pattern[longest - 1 - length] | salt)
                ):
                    length += 1
                if ORDERS[order] <= length < above:
                    ends[count] = end
                    lengths[count] = length
                    ended = False
                    for depth in range(continuations.shape[1]):
                        # Past the end of the text, a repetition goes on repeating.
                        token = tokens[(end + depth % (stop - end)) & window]
                        ended = ended or token < 0
                        continuations[count, depth] = -1 if ended else token & 0xFFFFFFFF
                    count += 1
            earlier = np.int64(previous[order, end & window])
            if earlier >= end:
                break
            end = earlier
        above = ORDERS[order]
    return count


def _grow(continuations, lengths, count, rates, least, branches, tokens, parents, scores, kinds):  # type: ignore[no-untyped-def]
    """Best-first tree over the continuations' votes; returns its size, at most tokens.shape[0]."""
    budget = tokens.shape[0]
    room = (budget + 1) * MAX_CHILDREN
    members = np.empty((room, count), np.int32)
    sizes = np.zeros(room, np.int64)
    candidate_tokens = np.zeros(room, np.int64)
    candidate_parents = np.zeros(room, np.int64)
    candidate_scores = np.zeros(room, np.float64)
    candidate_kinds = np.zeros(room, np.int64)
    candidate_depths = np.zeros(room, np.int64)
    own = np.arange(count).astype(np.int32)
    choice = np.zeros(max(count, 1), np.int64)
    weights = np.zeros(max(count, 1), np.float64)
    support = np.zeros(max(count, 1), np.int64)
    votes = np.zeros(max(count, 1), np.int64)
    waiting = 0
    nodes = 0
    depth = 0
    parent = -1
    reach = 1.0
    size = count
    while True:
        if depth < continuations.shape[1]:
            distinct = 0
            total = 0.0
            for member in own[:size]:
                token = continuations[member, depth]
                if token < 0:
                    continue
                length = lengths[member] + depth
                weight = min(length if length < TRUST else length - TRUST + 1, 32) ** WEIGHT
                total += weight
                place = 0
                while place < distinct and choice[place] != token:
                    place += 1
                if place == distinct:
                    distinct += 1
                    choice[place] = token
                    weights[place] = 0.0
                    support[place] = 0
                    votes[place] = 0
                weights[place] += weight
                votes[place] += 1
                support[place] = max(support[place], length)
            for _ in range(min(distinct, branches)):
                best = np.argmax(weights[:distinct])
                share = weights[best] / total
                kind = _kind(support[best], share, votes[best])
                score = reach * rates[kind]
                weights[best] = -1.0
                if score < least:
                    continue
                candidate_tokens[waiting] = choice[best]
                candidate_parents[waiting] = parent
                candidate_scores[waiting] = score
                candidate_kinds[waiting] = kind
                candidate_depths[waiting] = depth + 1
                for member in own[:size]:
                    if continuations[member, depth] == choice[best]:
                        members[waiting, sizes[waiting]] = member
                        sizes[waiting] += 1
                waiting += 1
        if waiting == 0 or nodes == budget:
            return nodes
        top = np.argmax(candidate_scores[:waiting])
        if candidate_scores[top] <= 0.0:
            return nodes
        tokens[nodes] = candidate_tokens[top]
        parents[nodes] = candidate_parents[top]
        scores[nodes] = candidate_scores[top]
        kinds[nodes] = candidate_kinds[top]
        parent = nodes
        reach = candidate_scores[top]
        depth = candidate_depths[top]
        size = sizes[top]
        own = members[top]
        candidate_scores[top] = 0.0
        nodes += 1


def _kind(length, share, votes):  # type: ignore[no-untyped-def]
    base = 0
    if length >= TRUST:
        base = LENGTH_BUCKETS + 1
        length -= TRUST
        if length == 0:
            base -= 1
            length = 1
    if length < 4:
        bucket = length - 1
    elif length < 6:
        bucket = 3
    elif length < 9:
        bucket = 4
    elif length < 16:
        bucket = 5
    elif length < 32:
        bucket = 6
    else:
        bucket = 7
    part = 0 if share < 0.2 else 1 if share < 0.5 else 2 if share < 0.95 else 3 if votes < 3 else 4
    return (base + bucket) * SHARE_BUCKETS + part

WEIGHT = 4
TRUST = 64
_kind = njit(_kind, cache=True)
extend: Callable[..., None] = njit("(int64[::1], int32[:, ::1], int32[:, ::1], int64, int64)", cache=True)(_extend)
recall: Callable[..., int] = njit(
    "int64(int64[::1], int32[:, ::1], int32[:, ::1], int64, int64, int64, int64[::1], int64[:, ::1], int64[::1], int64[::1], int64)",
    cache=True,
)(_recall)
grow: Callable[..., int] = njit(
    "int64(int64[:, ::1], int64[::1], int64, float64[::1], float64, int64, int64[::1], int64[::1], float64[::1], int64[::1])",
    cache=True,
)(_grow)
