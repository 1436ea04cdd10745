"""argmax(scores + Gumbel noise) over a large vocabulary on the CPU, without computing most of the noise.

The definition is noise.py's; this is the same function, compiled. Noise is bounded and monotonic in its 32 hash bits,
so a block of tokens whose best score is too far behind is skipped, and in the others only tokens whose bits exceed a
threshold get their logarithms. The result doesn't depend on which tokens were skipped, nor on other rows.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foredraft.block_maxima import BLOCK, block_maxima
from foredraft.hash_noise import hash_bits, noise_of
from foredraft.noise import GUMBEL_MAX

__all__ = ["perturbed_argmax"]

_HIGHEST = GUMBEL_MAX + 1e-9  # a hair above, so that rounding never skips a winner


def perturbed_argmax(
    scores: NDArray[np.floating], keys: NDArray[np.int64], floors: NDArray[np.floating] | None = None
) -> NDArray[np.int64]:
    """scores [n, V] float32 or float64, keys [n] from `noise.row_key` -> [n] token ids.

    Only tokens whose score is at least their row's floor [n] are picked; each row has one that is.
    """
    if floors is None:
        floors = np.full(len(scores), -np.inf, dtype=scores.dtype)
    picks: NDArray[np.int64] = _all_rows(scores, block_maxima(scores), keys, floors)
    return picks


@njit(cache=True, nogil=True)
def _needed_bits(lead: float) -> float:
    """Fewer bits than these give noise below `lead`."""
    return 2.0**32 * math.exp(-math.exp(-lead)) - 4.0 if lead > -4.0 else -1.0


_NEEDED = np.array([_needed_bits.py_func(float(lead)) for lead in range(math.ceil(GUMBEL_MAX))])
"""For whole leads: spares most tokens their own."""


@njit(cache=True, nogil=True)
def _all_rows(
    scores: NDArray[np.floating],
    maxima: NDArray[np.floating],
    keys: NDArray[np.int64],
    floors: NDArray[np.floating],
) -> NDArray[np.int64]:
    rows, size = scores.shape
    blocks = maxima.shape[1]
    picks = np.zeros(rows, dtype=np.int64)
    hashes = np.empty(BLOCK, dtype=np.uint32)
    for row in range(rows):
        low = np.uint32(keys[row] & 0xFFFFFFFF)
        high = np.uint32((keys[row] >> 32) & 0xFFFFFFFF)
        values = scores[row]
        floor = floors[row]
        start = np.argmax(maxima[row])
        winner = start * BLOCK + np.argmax(values[start * BLOCK : (start + 1) * BLOCK])
        best = np.float64(values[winner]) + noise_of(hash_bits(np.uint32(winner), low, high))
        for turn in range(blocks):  # the best block first: it sets a mark that most others can't reach
            block = (start + turn) % blocks
            top = np.float64(maxima[row, block])
            if top + _HIGHEST < best or maxima[row, block] < floor:
                continue
            first = block * BLOCK
            count = min(size, first + BLOCK) - first
            highest = np.uint32(0)
            for index in range(count):
                uniform = hash_bits(np.uint32(first + index), low, high)
                hashes[index] = uniform
                highest = uniform if uniform > highest else highest
            needed = _needed_bits(best - top)
            if np.float64(highest) < needed:
                continue
            for index in range(count):
                bits = np.float64(hashes[index])
                if bits < needed or values[first + index] < floor:
                    continue
                score = np.float64(values[first + index])
                if score < best and bits < _NEEDED[np.int64(min(best - score, GUMBEL_MAX))]:
                    continue
                total = score + noise_of(hashes[index])
                token = first + index
                if total > best or (total == best and token < winner):
                    best = total
                    winner = token
                    needed = _needed_bits(best - top)
        picks[row] = winner
    return picks
