"""How an EAGLE draft grows (EAGLE-2, Li et al. 2024, arXiv 2406.16858): level by level, then the best nodes of all.

At each level the most promising nodes are read by the head, and every guess after them becomes a node. A node's score
is the product of what its guess and those above it are worth. What counts in the end is the score alone, so a node that
can't be among the best is not read in the first place. A chain is the tree that keeps one node a level.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from foredraft.drafters.proposals import Draft, best_first
from foredraft.drafters.tree_shape import TreeShape
from foredraft.tree import PAD
from foredraft.types import Sequence

__all__ = ["Growth"]


@dataclass(eq=False)
class Growth:
    """One sequence's draft while it grows.

    ends      tokens after which the text is over
    frontier  nodes to be read next
    features  [n, H] for the frontier: the states of their parents
    """

    sequence: Sequence
    shape: TreeShape
    budget: int
    least: float
    ends: Collection[int] = ()
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    frontier: list[int] = field(default_factory=list)
    features: Tensor | None = None
    depth: int = 0
    _entries: dict[int, int] = field(default_factory=dict)

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """The draft tokens down to each node of the frontier, or to the root before there is one."""
        return [self._path(node) for node in self.frontier] if self.depth else [()]

    def sprout(self, states: Tensor, guesses: Collection[Collection[tuple[int, float, int]]]) -> None:
        """The frontier was read: `states` [n, H] and, for each of its nodes, guesses (token, worth, kind)."""
        readers = self.frontier if self.depth else [PAD]
        for entry, node in enumerate(self.frontier, start=len(self._entries)):
            self._entries[node] = entry
        new: list[tuple[int, int]] = []
        for row, (parent, children) in enumerate(zip(readers, guesses, strict=True)):
            above = self.scores[parent] if parent >= 0 else 1.0
            for token, worth, kind in children:
                score = above * min(worth, 1.0)
                if score > 0 and score >= self.least:
                    new.append((len(self.tokens), row))
                    self.tokens.append(token)
                    self.parents.append(parent)
                    self.scores.append(score)
                    self.kinds.append(kind)
        self.depth += 1
        chosen = self._worth_reading(new)
        self.frontier = [node for node, _ in chosen]
        self.features = states[[row for _, row in chosen]] if chosen else None

    @property
    def entries(self) -> int:
        """Nodes read so far."""
        return len(self._entries)

    def mask(self) -> Tensor | None:
        """[frontier, entries + frontier] bool: each node sees its ancestors and itself; None for a chain."""
        if self.shape.top_k == 1:
            return None
        mask = torch.zeros((len(self.frontier), self.entries + len(self.frontier)), dtype=torch.bool)
        for row, node in enumerate(self.frontier):
            seen = [self.entries + row]
            parent = self.parents[node]
            while parent >= 0:
                seen.append(self._entries[parent])
                parent = self.parents[parent]
            mask[row, seen] = True
        return mask

    def draft(self) -> tuple[Draft, list[int]]:
        """The best nodes and the kinds of their guesses."""
        draft, order = best_first(Draft(self.tokens, self.parents, self.scores), self.budget)
        return draft, [self.kinds[node] for node in order]

    def _worth_reading(self, new: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Of the new nodes the best ones whose children could still be among the `budget` best of all."""
        if self.depth >= self.shape.depth:
            return []
        best = sorted(self.scores, reverse=True)
        # With `budget` nodes of at least its score, itself included, a node's children come too late.
        mark = best[self.budget - 1] if len(best) >= self.budget else -1.0
        going_on = [item for item in new if self.scores[item[0]] > mark and self.tokens[item[0]] not in self.ends]
        going_on.sort(key=lambda item: self.scores[item[0]], reverse=True)
        return going_on[: self.shape.top_k]

    def _path(self, node: int) -> tuple[int, ...]:
        path: list[int] = []
        while node >= 0:
            path.append(self.tokens[node])
            node = self.parents[node]
        return tuple(reversed(path))
