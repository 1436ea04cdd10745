"""Trees of drafts: several guesses for the same place, one of which can be right.

A node counts when it and all its ancestors are accepted; its *reach* is the product of the probabilities on the way.
The target picks one token, so the probabilities of siblings add up to at most 1. Expected tokens = 1 + the sum of all
reaches: a chain is the special case of one child each. A drafter works level by level, so a tree costs its depth, not
its size, in draft passes, but every node is a row of the verifying pass.
"""

from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar, cast

from foredraft.economics.checks import check_acceptance, check_length
from foredraft.errors import ConfigError

Number = TypeVar("Number", float, Fraction)

SLACK = 1e-9
"""Float siblings may sum to a hair above 1."""


class TreeShape(NamedTuple, Generic[Number]):
    """Node i hangs under `parents[i]` < i (-1: the last committed token).

    It is accepted with `probabilities[i]` given that its parent was.
    """

    parents: tuple[int, ...]
    probabilities: tuple[Number, ...]


def reach(tree: TreeShape[Number]) -> tuple[Number, ...]:
    """Probability that each node counts."""
    _check(tree)
    reaches: list[Number] = []
    for parent, probability in zip(tree.parents, tree.probabilities, strict=True):
        reaches.append(probability if parent < 0 else reaches[parent] * probability)
    return tuple(reaches)


def tree_tokens(tree: TreeShape[Number]) -> Number:
    """Expected tokens of a cycle that verifies the tree."""
    return cast(Number, 1 + sum(reach(tree)))


def tree_depth(tree: TreeShape[Number]) -> int:
    """Longest path, in nodes: the number of draft passes of a drafter that works level by level."""
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)


def rank_probabilities(acceptance: Number, second_chance: Number, width: int) -> tuple[Number, ...]:
    """Probability that the drafter's best, second, third ... guess is the right one.

    The best guess is right with `acceptance`; when all better guesses are wrong, the next is right with
    `second_chance`, but never likelier than the guess before it.
    """
    check_acceptance(acceptance)
    check_acceptance(second_chance, "second chance")
    check_length(width, "width")
    ranks: list[Number] = [acceptance] if width else []
    missing = 1 - acceptance
    while len(ranks) < width:
        ranks.append(min(missing * second_chance, ranks[-1]))
        missing = missing - ranks[-1]
    return tuple(ranks)


def best_tree(levels: Sequence[Sequence[Number]], nodes: int) -> TreeShape[Number]:
    """The tree of at most `nodes` nodes with the most expected tokens; `levels[d][r]` = P(rank-r guess at depth d is
    right).

    Always add the node with the largest reach: the next guess for the same place, or the best guess below (Medusa,
    Cai et al. 2024, sec. 2.3.3). Guesses of a level must come best first. Of equals, the node that could be added
    earlier wins.
    """
    check_length(nodes, "nodes")
    for depth, level in enumerate(levels, 1):
        for rank, probability in enumerate(level):
            check_acceptance(probability, f"probability of guess {rank + 1} at depth {depth}")
            if rank and probability > level[rank - 1]:
                raise ConfigError(
                    f"guess {rank + 1} at depth {depth} is likelier than guess {rank}: list the best first"
                )
    parents: list[int] = []
    probabilities: list[Number] = []
    waiting: list[
        tuple[Number, int, int, int, int, Number]
    ] = []  # -reach, arrival, parent, depth, rank, parent's reach
    arrivals = 0

    def offer(parent: int, depth: int, rank: int, above: Number) -> None:
        nonlocal arrivals
        if depth < len(levels) and rank < len(levels[depth]):
            heappush(waiting, (-(above * levels[depth][rank]), arrivals, parent, depth, rank, above))
            arrivals += 1

    if levels and levels[0]:
        offer(-1, 0, 0, levels[0][0] * 0 + 1)
    while waiting and len(parents) < nodes:
        negative_reach, _, parent, depth, rank, above = heappop(waiting)
        node = len(parents)
        parents.append(parent)
        probabilities.append(levels[depth][rank])
        offer(parent, depth, rank + 1, above)
        offer(node, depth + 1, 0, -negative_reach)
    return TreeShape(tuple(parents), tuple(probabilities))


def _check(tree: TreeShape[Number]) -> None:
    if len(tree.parents) != len(tree.probabilities):
        raise ConfigError(
            f"the tree has {len(tree.parents)} parents but {len(tree.probabilities)} probabilities: "
            "give one of each per node"
        )
    shares: dict[int, float | Fraction] = {}
    for node, (parent, probability) in enumerate(zip(tree.parents, tree.probabilities, strict=True)):
        if not -1 <= parent < node:
            raise ConfigError(f"node {node} has parent {parent}: a parent is -1 (the root) or a smaller node number")
        check_acceptance(probability, f"probability of node {node}")
        shares[parent] = shares.get(parent, 0) + probability
    for parent, share in shares.items():
        if share > 1 + SLACK:
            raise ConfigError(
                f"the children of node {parent} have probabilities that add up to {float(share)}, but only one of "
                "them can be right: make them add up to at most 1"
            )
