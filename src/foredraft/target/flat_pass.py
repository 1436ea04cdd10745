"""What one target pass computes: a flat, ragged list of rows, and which cache entries each of them sees.

Every sequence in the step contributes one `Segment`: a chain of tokens that were not cached yet (a prompt chunk, or
just the root), followed by its draft nodes. A row is written to its slot's cache entry `start + i`, i its index in the
segment, and sees the `start` entries before the segment and its own ancestors within it. Prompts, chains and trees
differ only in their parents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["FlatPass", "Segment"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `first .. first + chain + nodes` of the pass, belonging to the sequence in cache slot `slot`.

    slot     cache slot
    start    cache entries of that slot that every row of the segment sees
    first    index of the segment's first row in the pass
    chain    leading rows that follow one another (>= 1)
    parents  for each draft node after the chain, the row index within the segment of its parent
    """

    slot: int
    start: int
    first: int
    chain: int
    parents: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.chain + len(self.parents)

    @property
    def is_chain(self) -> bool:
        """Whether the nodes continue the chain one after another, so that the mask is simply causal."""
        return self.parents == tuple(range(self.chain - 1, self.rows - 1))

    def mask(self) -> Tensor:
        """[rows, rows] bool: row j is row i itself or one of its ancestors."""
        mask = torch.ones((self.rows, self.rows), dtype=torch.bool).tril()
        if not self.is_chain:
            for node, parent in enumerate(self.parents, start=self.chain):
                mask[node] = mask[parent]
                mask[node, node] = True
        return mask

    def depths(self) -> list[int]:
        """Position of each row relative to `start`."""
        depths = list(range(self.chain))
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths


@dataclass(frozen=True, eq=False)
class FlatPass:
    """Rows of all segments, one after the other.

    tokens     [T] int64
    positions  [T] int64, absolute (entries of the path before the row)
    """

    tokens: Tensor
    positions: Tensor
    segments: tuple[Segment, ...]

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]

    @cached_property
    def cached_tokens(self) -> int:
        """Cache entries that existed before the pass and are read by it."""
        return sum(segment.start for segment in self.segments)
