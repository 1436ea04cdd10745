"""Draft trees whose nodes carry the drafter's expectation, so that trees of different drafters can be compared and merged.

A score is the probability that a node is accepted, together with all its ancestors, as far as the drafter can tell. The sum of
the scores is the number of draft tokens it expects to be accepted. Nodes are sorted by score; since a child never scores more than its
parent, `prune` keeps what is most worth verifying.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from foredraft.tree import PAD, TokenTree

__all__ = ["Draft", "ScoredTree", "merge", "outcomes", "scored"]


class Draft(NamedTuple):
    """One row of a tree as plain lists: tokens, parents (-1 is the root) and scores, best first."""

    tokens: list[int]
    parents: list[int]
    scores: list[float]


@dataclass(frozen=True, eq=False)
class ScoredTree(TokenTree):
    """A `TokenTree` with scores [B, N] float32, 0 for padding."""

    scores: Tensor

    def prune(self, budget: Sequence[int]) -> ScoredTree:
        """The best `budget[b]` nodes of each row."""
        tree = super().prune(budget)
        return ScoredTree(tree.tokens, tree.parents, self.scores[:, : tree.width].masked_fill(tree.tokens < 0, 0.0))

    def drafts(self) -> list[Draft]:
        """The rows as plain lists, without padding."""
        sizes = self.sizes.tolist()
        columns = zip(sizes, self.tokens.tolist(), self.parents.tolist(), self.scores.tolist(), strict=True)
        return [Draft(tokens[:size], parents[:size], scores[:size]) for size, tokens, parents, scores in columns]


def scored(drafts: Sequence[Draft]) -> ScoredTree:
    """One row per draft."""
    width = max((len(draft.tokens) for draft in drafts), default=0)
    pad = [width - len(draft.tokens) for draft in drafts]
    shape = (len(drafts), width)
    return ScoredTree(
        torch.tensor(
            [draft.tokens + [PAD] * count for draft, count in zip(drafts, pad, strict=True)], dtype=torch.int64
        ).view(shape),
        torch.tensor(
            [draft.parents + [PAD] * count for draft, count in zip(drafts, pad, strict=True)], dtype=torch.int64
        ).view(shape),
        torch.tensor(
            [draft.scores + [0.0] * count for draft, count in zip(drafts, pad, strict=True)], dtype=torch.float32
        ).view(shape),
    )


def merge(drafts: Sequence[Draft], budget: int) -> Draft:
    """The best `budget` nodes of all drafts for one row; a node proposed more than once keeps its highest score."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    children: dict[tuple[int, int], int] = {}
    for draft in drafts:
        place: list[int] = []
        for token, parent, score in zip(*draft, strict=True):
            above = place[parent] if parent >= 0 else PAD
            node = children.get((above, token))
            if node is None:
                node = children[above, token] = len(tokens)
                tokens.append(token)
                parents.append(above)
                scores.append(score)
            elif score > scores[node]:
                scores[node] = score
            place.append(node)
    return _best(tokens, parents, scores, budget)


def _best(tokens: list[int], parents: list[int], scores: list[float], budget: int) -> Draft:
    """Sort by score, parents before equal children, and cut."""
    order = sorted(range(len(tokens)), key=scores.__getitem__, reverse=True)[:budget]
    place = {node: index for index, node in enumerate(order)}
    place[PAD] = PAD
    return Draft(
        [tokens[node] for node in order], [place[parents[node]] for node in order], [scores[node] for node in order]
    )


def outcomes(tokens: Sequence[int], parents: Sequence[int], truth: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Which proposed nodes were put to the test by the tokens that came, and whether they were right.

    A node is tested if everything above it came true and the text went on after that; whether it was in the verified tree doesn't matter.
    """
    depths = {PAD: 0}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        depth = depths.get(parent)
        if depth is not None and depth < len(truth):
            right = token == truth[depth]
            if right:
                depths[node] = depth + 1
            yield node, right
def ranked(x): return x
