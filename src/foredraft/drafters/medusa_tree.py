"""The best tree for Medusa heads, given how often each rank of each head is right.

All heads guess at once, before anything is accepted, so a node's guess doesn't depend on the path to it and neither
does its worth: the product of the accuracies along the path (Cai et al. 2024, arXiv 2401.10774, section 2.3.3). The
best tree of n nodes is grown greedily (Chen et al. 2024, Sequoia, 2402.12374, for this case): the next node is the
likeliest one that isn't there yet, a next rank beside one or a first guess below one. So one order of nodes serves
every budget.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from heapq import heappop, heappush
from typing import NamedTuple

from foredraft.tree import PAD

__all__ = ["Place", "best_places"]


class Place(NamedTuple):
    """A node: its parent's index (-1 is the root), the head that guesses it, the guess's rank, and its score."""

    parent: int
    head: int
    rank: int
    score: float


def best_places(accuracies: Collection[Collection[float]], nodes: int, least: float = 0.0) -> list[Place]:
    """The best `nodes` places by score, parents first, none scoring below `least`.

    accuracies  of each head, [ranks]: how often its guess of that rank is right when everything before it was
    """
    ranking = [sorted(range(len(own)), key=own.__getitem__, reverse=True) for own in accuracies]
    places: list[Place] = []
    waiting: list[tuple[float, int, int, int]] = []

    def offer(parent: int, head: int, turn: int) -> None:
        if head < len(accuracies) and turn < len(ranking[head]):
            above = places[parent].score if parent >= 0 else 1.0
            score = above * min(accuracies[head][ranking[head][turn]], 1.0)
            if score > 0 and score >= least:
                heappush(waiting, (-score, parent, head, turn))

    offer(PAD, 0, 0)
    while waiting and len(places) < nodes:
        negative, parent, head, turn = heappop(waiting)
        places.append(Place(parent, head, ranking[head][turn], -negative))
        offer(parent, head, turn + 1)
        offer(len(places) - 1, head + 1, 0)
    return places
