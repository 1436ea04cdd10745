"""Where each row of a pass finds the keys of its path.

A row's path is straight as long as the position of a key is its cache entry; draft nodes off the first branch continue
with a tail of entries of their own.
"""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from numba import int64, njit

__all__ = ["lay_paths"]


TABLE, LIST = int64[:, ::1], int64[::1]


@njit(int64(TABLE, LIST, int64, LIST, LIST, LIST, LIST, TABLE, TABLE), cache=True, nogil=True)
def lay_paths(segments, parents, unit_rows, slots, entries, straight, length, tail, units):
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
