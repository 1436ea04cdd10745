"""The floors of filters.py over a large vocabulary on the CPU, without sorting it.

The tokens near a row's best are nearly always all that matter, and few blocks of the vocabulary have one. Top-p
weighs those in bins of falling score and sorts only the bin in which the mass is reached.
"""

# mypy: ignore-errors
# numba compiles this file; its types are not Python's.
from __future__ import annotations

import numpy as np
from numba import njit

from foredraft.block_maxima import BLOCK
from foredraft.exponential import exponential

__all__ = ["compiled_floors"]

NEAR, STEP = 9.0, 1.4
"""How far behind the best a score may be to be looked at first; farther by this factor where that isn't enough."""

FAR = 128.0
"""Nothing so far behind has a share in float32."""

BINS = 512
FINITE = np.float32(-3.4e38)


@njit(cache=True, nogil=True)
def compiled_floors(scores, maxima, behind, top_k, top_p):
    """scores [n, V] float32, the best of each block -> [n] float32.

    `behind` is min-p's distance from the best (-inf without), `top_k` 0 and `top_p` 1 switch that filter off.
    """
    rows, size = scores.shape
    found = np.empty(rows, dtype=np.float32)
    near = np.empty(size, dtype=np.float32)
    bins = np.empty(BINS, dtype=np.float64)
    for row in range(rows):
        values, tops = scores[row], maxima[row]
        best = tops.max()
        floor = np.float32(best + behind)
        distance = NEAR
        lowest = max(floor, np.float32(best - distance))
        count = gather(values, tops, lowest, near) if top_k or top_p < 1 else 0
        while count < top_k and lowest > floor:
            distance *= STEP
            lowest = max(floor, np.float32(best - distance)) if distance <= FAR else floor
            count = gather(values, tops, lowest, near)
        if 0 < top_k <= count:
            floor = max(floor, np.partition(near[:count], count - top_k)[count - top_k])
        if top_p < 1:
            wanted = top_p * mass_from(values if floor < lowest else near[:count], floor, best)
            while lowest > floor and distance < FAR and mass_from(near[:count], lowest, best) < wanted:
                distance *= STEP
                lowest = max(floor, np.float32(best - distance))
                count = gather(values, tops, lowest, near)
            floor = max(floor, nucleus(near[:count], max(floor, lowest), best, wanted, bins))
        found[row] = floor
    return found


@njit(cache=True, nogil=True)
def gather(values, tops, lowest, near):
    """The finite values from `lowest` on, in order; returns how many."""
    count, lowest = 0, max(lowest, FINITE)
    for block in range(len(tops)):
        if tops[block] < lowest:
            continue
        for value in values[block * BLOCK : (block + 1) * BLOCK]:
            near[count] = value
            count += value >= lowest
    return count


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})  # lets the sum vectorise
def mass_from(values, floor, best):
    total = np.float32(0.0)
    for index in range(len(values)):
        share = exponential(values[index] - best)
        total += share if values[index] >= floor else np.float32(0.0)
    return total


@njit(cache=True, nogil=True)
def nucleus(values, floor, best, wanted, bins):
    """The score down to which the mass of `values` reaches `wanted`, the lowest if rounding keeps it from that."""
    scale = np.float32(BINS - 1) / (best - floor) if floor < best else np.float32(0.0)
    bins[:] = 0.0
    for value in values:
        if value >= floor:
            bins[int((best - value) * scale)] += exponential(value - best)
    mass, bin = 0.0, 0
    while bin < BINS - 1 and mass + bins[bin] < wanted:
        mass += bins[bin]
        bin += 1
    lowest = floor
    inside = values[((best - values) * scale).astype(np.int64) == bin]
    for value in np.sort(inside)[::-1]:
        if value >= floor:
            lowest = value
            mass += exponential(value - best)
            if mass >= wanted:
                break
    return lowest
