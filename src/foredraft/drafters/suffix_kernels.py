"""The compiled loops of the suffix index: insert tokens, recall what followed earlier occurrences, grow a tree from that.

The index is a match finder like those of LZ compressors. For each of a few context lengths ("orders") it keeps hash chains: `heads[order, hash]`
is the end of the latest occurrence of a context, `previous[order, end]` the end of the one before. Inserting a token costs one
chain link per order whatever the text, and the latest occurrences of the longest matching suffix are a short walk away. `end` is
the index of the token after an occurrence, where its continuation starts; 0 means none. All buffers have a power of two entries and
positions wrap around, so the same loops serve a text that grows and a store that forgets.

Imported only when a drafter is bound: importing numba takes a while. Compiled code is cached on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["ORDERS", "extend", "grow", "recall"]

ORDERS = (1, 2, 4, 8, 16)
KIND_LENGTHS = 6
KIND_SHARES = 4
MAX_CHILDREN = 4
MAX_STEPS = 64

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


def _mix(state, token):  # type: ignore[no-untyped-def]
    state = (state ^ np.uint64(token + 1)) * _MULTIPLIER
    return state ^ (state >> _SHIFT)


_mix = njit("uint64(uint64, int64)", cache=True, inline="always")(_mix)


def _extend(tokens, previous, heads, space, start, stop):  # type: ignore[no-untyped-def]
    """Link the tokens at positions start .. stop - 1 into the chains. `space` keeps texts with different keys apart."""
    window = tokens.shape[0] - 1
    table = np.uint64(heads.shape[1] - 1)
    for end in range(start + 1, stop + 1):
        state = np.uint64(space)
        order = 0
        for back in range(1, min(ORDERS[-1], end) + 1):
            state = _mix(state, tokens[(end - back) & window])
            if back == ORDERS[order]:
                slot = np.int64(state & table)
                previous[order, end & window] = heads[order, slot]
                heads[order, slot] = end
                order += 1
