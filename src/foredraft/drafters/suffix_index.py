"""An index over a text that grows: where did its latest tokens occur before, and what followed?

`SuffixIndex` holds the text, `Evidence` collects what followed earlier occurrences (in this text, in a store of others, in a prediction) and
turns it into a tree. Inserting a token is amortised O(1): one hash chain link for each context length, and buffers that double.
Imports numba: import this module when a drafter is bound, not earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foredraft.drafters.suffix_kernels import ORDERS, extend, grow, recall

__all__ = ["Evidence", "SuffixIndex"]

FIRST_CAPACITY = 1024

Int64s = NDArray[np.int64]


class Evidence:
    """What followed earlier occurrences of a text's tail.

    continuations  [K, D] int64, the tokens that followed, -1 after their end
    lengths        [K] int64, how many tokens matched before each of them
    """

    def __init__(self, occurrences: int, depth: int) -> None:
        self.continuations = np.empty((occurrences, depth), dtype=np.int64)
        self.lengths = np.empty(occurrences, dtype=np.int64)
        self.ends = np.empty(occurrences, dtype=np.int64)
        self.count = 0

    def grow(
        self, rates: NDArray[np.float64], least: float, branches: int, budget: int
    ) -> tuple[list[int], list[int], list[float], list[int]]:
        """tokens, parents, scores and kinds of the best tree of at most `budget` nodes that score at least `least`."""
        tokens, parents, kinds = np.empty((3, budget), dtype=np.int64)
        scores = np.empty(budget, dtype=np.float64)
        size = grow(
            self.continuations, self.lengths, self.count, rates, least, branches, tokens, parents, scores, kinds
        )
        return tokens[:size].tolist(), parents[:size].tolist(), scores[:size].tolist(), kinds[:size].tolist()


class SuffixIndex:
    """The text so far and its chains; 48 bytes a token, up to twice that after doubling."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.length = 0
        self._allocate(len(tokens))
        self.append(tokens)

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the end of the text."""
        start, stop = self.length, self.length + len(tokens)
        if stop >= len(self._tokens):
            held = self._tokens[:start]
            self._allocate(stop)
            self._tokens[:start] = held
            extend(self._tokens, self._previous, self._heads, 0, start)
        self._tokens[start:stop] = tokens
        extend(self._tokens, self._previous, self._heads, start, stop)
        self.length = stop

    def tail(self, count: int) -> Int64s:
        """The last `count` tokens, or all there are."""
        return self._tokens[max(0, self.length - count) : self.length]

    def recall(self, pattern: Int64s, evidence: Evidence) -> None:
        """Add to `evidence` what followed the latest occurrences of the longest suffixes of `pattern`."""
        evidence.count = recall(
            self._tokens,
            self._previous,
            self._heads,
            0,
            0,
            self.length,
            pattern,
            evidence.continuations,
            evidence.lengths,
            evidence.ends,
            evidence.count,
        )

    def _allocate(self, length: int) -> None:
        capacity = max(FIRST_CAPACITY, 2 << length.bit_length())
        self._tokens = np.empty(capacity, dtype=np.int64)
        self._previous = np.zeros((len(ORDERS), capacity), dtype=np.int32)
        self._heads = np.zeros((len(ORDERS), capacity), dtype=np.int32)
