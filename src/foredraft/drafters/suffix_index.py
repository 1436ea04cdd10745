"""An index over a text that grows: where did its latest tokens occur before, and what followed?

`SuffixIndex` holds the text; `Evidence` collects what followed earlier occurrences (in this text, in a store of others,
in a prediction) and turns it into a tree. Inserting a token is amortised O(1): one hash chain link for each context
length, and buffers that double. This module imports numba; import it when a drafter is bound, not earlier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foredraft.drafters.suffix_kernels import ORDERS, extend, grow, recall

__all__ = ["Chains", "Evidence", "SuffixIndex"]

FIRST_CAPACITY = 512


class Evidence:
    """What followed earlier occurrences of a text's tail, at most K continuations of at most D tokens."""

    def __init__(self, occurrences: int, depth: int) -> None:
        self.continuations = np.empty((occurrences, depth), dtype=np.int64)
        self.lengths = np.empty(occurrences, dtype=np.int64)
        self.ends = np.empty(occurrences, dtype=np.int64)
        self.clear(depth)

    def clear(self, reach: int) -> None:
        """Forget all continuations; the next ones are followed for at most `reach` tokens."""
        self.reach = min(reach, self.continuations.shape[1])
        self.count = 0
        self.hints = 0

    def hint(self, continuation: NDArray[np.int64], length: int) -> None:
        """Add a continuation that is as good as one after a match of `length` tokens (>= 1); before any `recall`."""
        row = self.continuations[self.count]
        known = min(len(continuation), self.reach)
        row[:known] = continuation[:known]
        row[known : self.reach] = -1
        self.lengths[self.count] = length
        self.count += 1
        self.hints += 1

    def grow(
        self, rates: NDArray[np.float64], least: float, branches: int, budget: int
    ) -> tuple[list[int], list[int], list[float], list[int]]:
        """tokens, parents, scores and kinds of the best tree of at most `budget` nodes that score at least `least`."""
        tokens, parents, kinds = np.empty((3, budget), dtype=np.int64)
        scores = np.empty(budget, dtype=np.float64)
        size = grow(
            self.continuations, self.lengths, self.hints, self.count, self.reach, rates, least, branches,
            tokens, parents, scores, kinds,
        )  # fmt: skip
        return tokens[:size].tolist(), parents[:size].tolist(), scores[:size].tolist(), kinds[:size].tolist()


class Chains:
    """The buffers of an index: `capacity` tokens, a power of two, and their hash chains; BYTES a token."""

    BYTES = 8 + 2 * 4 * len(ORDERS)

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens = np.zeros(capacity, dtype=np.int64)
        self.previous = np.zeros((len(ORDERS), capacity), dtype=np.int32)
        self.heads = np.zeros((len(ORDERS), capacity), dtype=np.int32)

    def write(self, start: int, entries: NDArray[np.int64]) -> None:
        """Put `entries` at position `start` and link them; positions wrap around."""
        place = start % self.capacity
        before_wrap = min(len(entries), self.capacity - place)
        self.tokens[place : place + before_wrap] = entries[:before_wrap]
        self.tokens[: len(entries) - before_wrap] = entries[before_wrap:]
        extend(self.tokens, self.previous, self.heads, start, start + len(entries))

    def recall(
        self, pattern: NDArray[np.int64], span: tuple[int, int], salt: int, evidence: Evidence, limit: int
    ) -> None:
        """Add up to `limit` continuations of the longest suffixes of `pattern`, found in the positions of `span`,
        latest first.
        """
        oldest, stop = span
        first = evidence.count
        last = min(first + limit, len(evidence.lengths))
        evidence.count = recall(
            self.tokens, self.previous, self.heads, salt, oldest, stop, pattern,
            evidence.continuations, evidence.lengths, evidence.ends, first, last, evidence.reach,
        )  # fmt: skip


class SuffixIndex:
    """One growing text, indexed; at most twice Chains.BYTES (96 bytes) a token."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._chains = Chains(FIRST_CAPACITY)
        self.text = self._chains.tokens[:0]
        self.append(tokens)

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the end of the text."""
        start, stop = len(self.text), len(self.text) + len(tokens)
        if stop >= self._chains.capacity:
            self._chains = Chains(1 << stop.bit_length())
            self._chains.write(0, self.text)
        self._chains.write(start, np.array(tokens, dtype=np.int64))
        self.text = self._chains.tokens[:stop]

    def recall(self, pattern: NDArray[np.int64], evidence: Evidence, limit: int) -> tuple[int, int]:
        """Add to `evidence` what followed the latest occurrences of the longest suffixes of `pattern`.

        Returns where the continuation of the longest match starts, and the match's length; (0, 0) without a match.
        """
        first = evidence.count
        self._chains.recall(pattern, (0, len(self.text)), 0, evidence, limit)
        if evidence.count == first:
            return 0, 0
        return int(evidence.ends[first]), int(evidence.lengths[first])
