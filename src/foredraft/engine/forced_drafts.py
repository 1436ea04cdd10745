"""What structured output does for drafting: forced tokens become drafts, forbidden ones stop being any.

Where the form leaves no choice, its tokens are drafts that cost nothing and are always accepted. The drafter's own
nodes go on below them where they agree. Neither changes a pick; it only saves passes and rows.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection

from foredraft.tree import PAD, TokenTree
from foredraft.types import Sequence

__all__ = ["with_forced"]

_Row = tuple[list[int], list[int], list[float]]


def with_forced(tree: TokenTree, batch: Collection[Sequence], limits: Collection[int]) -> TokenTree:
    """The tree with each sequence's forced tokens first, at most `limits[b]` nodes in all, and without nodes that the
    form forbids. Sequences without a constraint keep their nodes.
    """
    if all(sequence.constraint is None for sequence in batch):
        return tree
    scored = tree.scores is not None or not tree.width
    scores = tree.scores.tolist() if tree.scores is not None else [[1.0] * tree.width] * tree.batch
    rows = [
        _merge(sequence, limit, tokens[:size], parents, own)
        for sequence, limit, size, tokens, parents, own in zip(
            batch, limits, tree.sizes, tree.tokens.tolist(), tree.parents.tolist(), scores, strict=True
        )
    ]
    nodes = [(tokens, parents) for tokens, parents, _ in rows]
    return TokenTree.from_nodes(nodes, [own for _, _, own in rows] if scored else None)


def _merge(sequence: Sequence, limit: int, tokens: list[int], parents: list[int], scores: list[float]) -> _Row:
    constraint = sequence.constraint
    if constraint is None:
        return tokens, parents[: len(tokens)], scores[: len(tokens)]
    forced = constraint.forced(sequence.tokens, limit)
    paths = [tuple(forced[: depth + 1]) for depth in range(len(forced))]
    merged: _Row = (list(forced), list(range(PAD, len(forced) - 1)), [1.0] * len(forced))
    nodes = {path: node for node, path in enumerate(paths)}
    place = {PAD: PAD}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=False)):
        if parent not in place:
            continue
        at = place[parent]
        path = (*(paths[at] if at != PAD else ()), token)
        if path in nodes:
            place[node] = nodes[path]
        elif len(paths) < limit and _allows(sequence, path):
            place[node] = nodes[path] = len(paths)
            paths.append(path)
            given = scores[parent] if parent != PAD else 1.0
            above = merged[2][at] if at != PAD else 1.0
            # The drafter's doubts about what turned out to be forced are no doubts about what comes after it.
            merged[0].append(token)
            merged[1].append(at)
            merged[2].append(above * min(1.0, scores[node] / (given or 1.0)))
    return merged


def _allows(sequence: Sequence, path: tuple[int, ...]) -> bool:
    assert sequence.constraint is not None
    [mask] = sequence.constraint.masks(sequence.tokens, [path[:-1]])
    token = path[-1]
    return mask is not None and token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)
