"""The compiled loops of the suffix index: insert tokens, recall what followed earlier occurrences, grow a tree from
that.

The index is a match finder like those of LZ compressors. For each of a few context lengths ("orders") it keeps hash
chains: `heads[order, hash]` is the end of the latest occurrence of a context, `previous[order, end]` the end of the one
before. Inserting a token costs one chain link per order whatever the text, and the latest occurrences of the longest
matching suffixes are a short walk away. `end` is the index of the token after an occurrence, where its continuation
starts; 0 means none. All buffers have a power of two entries and positions wrap around, so the same loops serve a text
that grows and a store that forgets.

This module imports numba; import it when a drafter is bound, not earlier. Compiled code is cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

__all__ = ["KINDS", "LENGTHS", "ORDERS", "SHARES", "extend", "grow", "recall"]

ORDERS = (1, 2, 4, 8, 16)
MAX_STEPS = 64
"""Chain links followed per order and draft."""
MAX_CHILDREN = 4
LONGEST = 32
"""Longer matches are all alike."""

# Guesses are calibrated by the length of the match behind them and by their share of the votes.
LENGTHS = 8
SHARES = 5
KINDS = 2 * LENGTHS * SHARES

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
_TOKEN = 0xFFFFFFFF
"""Tokens are the low 32 bits of an entry; the bits above keep texts apart that must not match (see suffix_store.py)."""


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


def _recall(tokens, previous, heads, salt, oldest, stop, pattern, continuations, lengths, ends, first, last, reach):  # type: ignore[no-untyped-def]
    """Fill rows first .. last - 1 of `continuations` with what followed the latest occurrences of `pattern`'s longest
    suffixes.

    lengths[i] is how many tokens of the pattern's tail match before ends[i]; `reach` tokens of each continuation are
    filled in. Returns the number of rows filled in all.
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
    while order > 0 and count < last:
        order -= 1
        end = np.int64(heads[order, slots[order]])
        for _ in range(MAX_STEPS):
            if end <= oldest or count == last:
                break
            if end < stop:
                length = 0
                while (
                    length < longest
                    and end - length > oldest
                    and tokens[(end - 1 - length) & window] == (pattern[longest - 1 - length] | salt)
                ):
                    length += 1
                # What matches longer than this order was already found by the order above.
                if ORDERS[order] <= length < above:
                    ends[count] = end
                    lengths[count] = length
                    ended = False
                    place = end
                    for depth in range(reach):
                        token = tokens[place & window]
                        ended = ended or token < 0
                        continuations[count, depth] = -1 if ended else token & _TOKEN
                        place = place + 1 if place + 1 < stop else end  # past the end, a repetition goes on repeating
                    count += 1
            earlier = np.int64(previous[order, end & window])
            if earlier >= end:
                break
            end = earlier
        above = ORDERS[order]
    return count


def _grow(continuations, lengths, hints, count, reach, rates, least, branches, tokens, parents, scores, kinds):  # type: ignore[no-untyped-def]
    """Best-first tree over the continuations' votes; returns its size, at most tokens.shape[0].

    Every continuation that agrees with the path so far votes for its next token, longer matches with more weight. A
    child's score is its parent's times the rate at which guesses of its kind have come true.
    """
    budget = tokens.shape[0]
    room = (budget + 1) * MAX_CHILDREN
    members = np.empty((room, count), np.int32)
    sizes = np.zeros(room, np.int64)
    waiting_tokens = np.zeros(room, np.int64)
    waiting_parents = np.zeros(room, np.int64)
    waiting_kinds = np.zeros(room, np.int64)
    waiting_depths = np.zeros(room, np.int64)
    waiting_scores = np.zeros(room, np.float64)
    waiting = 0
    choices = np.zeros(count, np.int64)
    weights = np.zeros(count, np.float64)
    longest = np.zeros(count, np.int64)
    votes = np.zeros(count, np.int64)
    hinted = np.zeros(count, np.bool_)

    nodes = 0
    parent, depth, score = -1, 0, 1.0
    own, size = np.arange(count).astype(np.int32), count
    while True:
        distinct = 0
        total = 0.0
        for member in own[:size]:
            token = continuations[member, depth] if depth < reach else -1
            if token < 0:
                continue
            length = lengths[member] + depth
            square = float(min(length, LONGEST)) ** 2
            weight = square * square
            total += weight
            place = 0
            while place < distinct and choices[place] != token:
                place += 1
            if place == distinct:
                distinct += 1
                choices[place], weights[place], longest[place], votes[place] = token, 0.0, 0, 0
            weights[place] += weight
            if length > longest[place] or (length == longest[place] and member >= hints):
                longest[place] = length
                hinted[place] = member < hints
            votes[place] += 1
        for _ in range(min(distinct, branches, MAX_CHILDREN)):
            best = np.argmax(weights[:distinct])
            kind = _kind(longest[best], weights[best] / total, votes[best])
            if hinted[best]:
                kind += LENGTHS * SHARES
            weights[best] = 0.0
            if score * rates[kind] < least:
                continue
            waiting_tokens[waiting] = choices[best]
            waiting_parents[waiting] = parent
            waiting_kinds[waiting] = kind
            waiting_depths[waiting] = depth + 1
            waiting_scores[waiting] = score * rates[kind]
            for member in own[:size]:
                if continuations[member, depth] == choices[best]:
                    members[waiting, sizes[waiting]] = member
                    sizes[waiting] += 1
            waiting += 1
        if waiting == 0 or nodes == budget:
            return nodes
        top = np.argmax(waiting_scores[:waiting])
        score = waiting_scores[top]
        if score <= 0.0:
            return nodes
        waiting_scores[top] = 0.0
        tokens[nodes], parents[nodes], scores[nodes], kinds[nodes] = (
            waiting_tokens[top],
            waiting_parents[top],
            score,
            waiting_kinds[top],
        )
        parent, depth = nodes, waiting_depths[top]
        own, size = members[top], sizes[top]
        nodes += 1


def _kind_of(length, share, votes):  # type: ignore[no-untyped-def]
    """Index into the rates: the bucket of the match's length, then that of the share of the votes."""
    if length < 4:
        bucket = length - 1
    elif length < 9:
        bucket = 3 if length < 6 else 4
    else:
        bucket = 5 if length < 16 else 6 if length < LONGEST else 7
    part = 0 if share < 0.2 else 1 if share < 0.5 else 2 if share < 0.95 else 3 if votes < 3 else 4
    return bucket * SHARES + part


_kind = njit(cache=True)(_kind_of)

_INDEX = "int64[::1], int32[:, ::1], int32[:, ::1]"
_EVIDENCE = "int64[:, ::1], int64[::1]"
extend: Callable[..., None] = njit(f"({_INDEX}, int64, int64)", cache=True)(_extend)
recall: Callable[..., int] = njit(
    f"int64({_INDEX}, int64, int64, int64, int64[::1], {_EVIDENCE}, int64[::1], int64, int64, int64)", cache=True
)(_recall)
_TREE = "int64[::1], int64[::1], float64[::1], int64[::1]"
grow: Callable[..., int] = njit(
    f"int64({_EVIDENCE}, int64, int64, int64, float64[::1], float64, int64, {_TREE})", cache=True
)(_grow)
