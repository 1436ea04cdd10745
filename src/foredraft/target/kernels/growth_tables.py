"""The tables by which compiled code grows drafts (see `growing`): what is asked, and room for what comes of it."""

from __future__ import annotations

import numpy

from foredraft.target.kernels import layout as at
from foredraft.target.pair_layer import Growing, Grown

__all__ = ["GrowthTables"]

CONSIDERED = 48
"""Tokens of a row whose noise is looked up."""
PER_TREE = (at.BUDGETS, at.SLOTS, at.STABLE, at.ROOT_POSITION, at.HEED_ENDS, at.COUNTS, at.READ)
PER_NODE = (at.NODE_TOKENS, at.NODE_PARENTS, at.NODE_KINDS, at.NODE_ROWS, at.NODE_ENTRIES)


class GrowthTables:
    """For one call. `tokens` and `positions` [rows] are those of a level's rows."""

    def __init__(self, growing: Growing, vocabulary: int, unit_most: int, unit_shares: int) -> None:
        trees, top_k = len(growing.slots), growing.top_k
        self.rows = rows = trees * top_k
        self._trees, self._room = trees, top_k + (growing.depth - 1) * top_k * top_k
        record = self.record = numpy.zeros(at.GROWTH_FIELDS, numpy.int64)
        sizes = dict.fromkeys(PER_TREE, trees) | dict.fromkeys(PER_NODE, trees * self._room)
        sizes |= {at.ROW_TREES: 2 * rows, at.ROW_NODES: 2 * rows, at.GUESSES: rows * top_k}
        considered = min(CONSIDERED, vocabulary)
        sizes |= {at.KEYS_OF_NOISE: growing.keys.size, at.CANDIDATES: rows * considered}
        whole = self._whole = numpy.zeros(sum(sizes.values()) + 2 * rows, numpy.int64)
        base, offset = whole.ctypes.data, 0
        self._views: dict[int, numpy.ndarray] = {}
        for field, size in sizes.items():
            record[field], self._views[field] = base + 8 * offset, whole[offset : offset + size]
            offset += size
        self.tokens, self.positions = whole[offset : offset + rows], whole[offset + rows :]
        self._scores = numpy.empty((trees, self._room))
        self._shares = numpy.empty(rows * (top_k + considered), numpy.float32)
        self._numbers = numpy.concatenate(
            [[growing.least], growing.edges, growing.centres, growing.rates, growing.heats]
        )
        self._growing = growing
        kinds, numbers = len(growing.centres), self._numbers.ctypes.data
        record[at.TREES], record[at.TOP_K], record[at.ROOM], record[at.ROW_ROOM] = trees, top_k, self._room, rows
        record[at.UNIT_MOST], record[at.UNIT_SHARES] = unit_most, unit_shares
        record[at.KINDS], record[at.LEAST], record[at.EDGES] = kinds, numbers, numbers + 8
        record[at.CENTRES], record[at.RATES] = numbers + 8 * kinds, numbers + 16 * kinds
        record[at.HEATS], record[at.NOISE_LEVELS] = numbers + 32 * kinds, growing.keys.shape[1]
        record[at.CONSIDERED] = considered
        record[at.ENDS], record[at.END_COUNT] = growing.ends.ctypes.data, len(growing.ends)
        record[at.DRAFT_IDS] = 0 if growing.draft_ids is None else growing.draft_ids.ctypes.data
        record[at.NODE_SCORES], record[at.SHARES] = self._scores.ctypes.data, self._shares.ctypes.data
        record[at.CANDIDATE_SCORES] = record[at.SHARES] + 4 * rows * top_k
        self._views[at.KEYS_OF_NOISE][:] = growing.keys.ravel()
        asked = (growing.budgets, growing.slots, growing.stable, growing.positions, growing.heeds)
        for field, values in zip(PER_TREE, asked, strict=False):
            self._views[field][:] = values
        self._views[at.ROW_TREES][:trees] = numpy.arange(trees)
        self._views[at.ROW_NODES][:trees] = -1

    def grown(self) -> list[Grown]:
        """What came of it."""
        found = []
        for tree, count in enumerate(self._views[at.COUNTS].tolist()):
            first = tree * self._room
            tokens, parents, kinds = (self._views[field][first : first + count].tolist() for field in PER_NODE[:3])
            found.append(Grown(tokens, parents, self._scores[tree, :count].tolist(), kinds))
        return found
