"""Drafts of single sequences as plain lists, with scores, and how they are judged by the tokens that came.

A score is the probability that a node is accepted, together with all its ancestors, as far as the drafter can tell
(`TokenTree.scores`). Nodes are sorted by score; since a child never scores more than its parent, cutting a draft short
keeps what is most worth verifying.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Collection
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from foredraft.drafters.hit_rates import HitRates
from foredraft.tree import PAD, TokenTree
from foredraft.types import Sequence

__all__ = ["Draft", "Proposals", "best_first", "drafts_of", "outcomes", "tree_of"]


class Draft(NamedTuple):
    """One row of a tree: tokens, parents (-1 is the root) and scores, best first."""

    tokens: list[int]
    parents: list[int]
    scores: list[float]


def tree_of(drafts: Collection[Draft]) -> TokenTree:
    """One row per draft. By way of numpy, which reads lists several times faster than torch does."""
    width = max((len(draft.tokens) for draft in drafts), default=0)
    if not width:
        return TokenTree.empty(len(drafts))
    pad = [[PAD] * (width - len(draft.tokens)) for draft in drafts]
    both = [[*draft.tokens, *rest] for draft, rest in zip(drafts, pad, strict=True)]
    both += [[*draft.parents, *rest] for draft, rest in zip(drafts, pad, strict=True)]
    scores = [[*draft.scores, *[0.0] * len(rest)] for draft, rest in zip(drafts, pad, strict=True)]
    nodes = torch.from_numpy(np.array(both, dtype=np.int64))
    return TokenTree(nodes[: len(drafts)], nodes[len(drafts) :], torch.from_numpy(np.array(scores, dtype=np.float32)))


def drafts_of(tree: TokenTree, budget: Collection[int]) -> list[Draft]:
    """The first `budget[b]` nodes of each row; scores are 0 where the tree has none."""
    scores = [[0.0] * tree.width] * tree.batch if tree.scores is None else tree.scores.tolist()
    rows = zip(budget, tree.tokens.tolist(), tree.parents.tolist(), scores, strict=True)
    drafts = []
    for limit, tokens, parents, own in rows:
        size = min(limit, tokens.index(PAD) if PAD in tokens else len(tokens))
        drafts.append(Draft(tokens[:size], parents[:size], own[:size]))
    return drafts


def best_first(draft: Draft, budget: int) -> tuple[Draft, list[int]]:
    """The best `budget` nodes sorted by score, parents before equal children, and where each of them was."""
    tokens, parents, scores = draft
    order = sorted(range(len(tokens)), key=scores.__getitem__, reverse=True)[:budget]
    place = {node: index for index, node in enumerate(order)}
    place[PAD] = PAD
    best = Draft(
        [tokens[node] for node in order], [place[parents[node]] for node in order], [scores[node] for node in order]
    )
    return best, order


def outcomes(tokens: Collection[int], parents: Collection[int], truth: Collection[int]) -> Iterator[tuple[int, bool]]:
    """Which proposed nodes were put to the test by the tokens that came, and whether they were right.

    A node is tested if everything above it came true and the text went on; whether it was verified doesn't matter.
    """
    depths = {PAD: 0}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        depth = depths.get(parent)
        if depth is not None and depth < len(truth):
            right = token == truth[depth]
            if right:
                depths[node] = depth + 1
            yield node, right


class Proposals:
    """What a drafter proposed last for each sequence, and how often guesses of each kind have come true."""

    def __init__(self, rates: HitRates) -> None:
        self._rates = rates
        self._open: dict[int, tuple[int, Draft, list[int]]] = {}

    @property
    def rates(self) -> NDArray[np.float64]:
        """Hit rate by kind of guess."""
        return self._rates.rates

    def note(self, sequence: Sequence, draft: Draft, kinds: list[int]) -> Draft:
        """Remember a draft, whose nodes are of the given kinds, until it is judged."""
        self._open[sequence.id] = (len(sequence.tokens), draft, kinds)
        return draft

    def judge(self, sequence: Sequence) -> int | None:
        """Compare the last draft with the tokens that came: how many of its nodes were right, None without a draft."""
        if sequence.id not in self._open:
            return None
        length, draft, kinds = self._open.pop(sequence.id)
        came_true = 0
        for node, right in outcomes(draft.tokens, draft.parents, sequence.tokens[length:]):
            self._rates.record(kinds[node], right)
            came_true += right
        return came_true

    def judge_all(self, batch: Collection[Sequence]) -> None:
        """Learn from the tokens that came to these sequences."""
        if self._open:
            for sequence in batch:
                self.judge(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget the last draft, if any."""
        self._open.pop(sequence.id, None)
