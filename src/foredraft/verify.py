"""The one verification rule.

A draft node is accepted iff its token equals the target's pick at its parent and all its ancestors are accepted. The
emitted tokens are the picks along the accepted path: the accepted drafts, then the pick where the path ends (the
bonus). None of them depends on the draft, so the output is what plain decoding gives (docs/concepts/lossless.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from foredraft.tree import PAD, TokenTree

__all__ = ["Verdict", "verify"]


class Verdict(NamedTuple):
    """What a step commits, for B rows and D = deepest accepted path + 1.

    tokens   [B, D] int64, accepted draft tokens, then the bonus; -1 padding
    path     [B, D - 1] int64, the accepted nodes in order of depth; -1 padding
    lengths  [B] int64, emitted tokens: accepted + 1
    """

    tokens: Tensor
    path: Tensor
    lengths: Tensor


def verify(tree: TokenTree, picks: Tensor) -> Verdict:
    """Compare the drafts with the target's picks.

    picks  [B, N + 1] int64: the target's pick at the root, then at every node (padding is ignored)
    """
    if not tree.width:
        return Verdict(picks, tree.tokens, torch.ones(tree.batch, dtype=torch.int64, device=picks.device))
    picked = picks.tolist()
    rows = zip(tree.tokens.tolist(), tree.parents.tolist(), picked, strict=True)
    paths = [_accepted(*row) for row in rows]
    longest = max(map(len, paths))
    padding = [[PAD] * (longest - len(path)) for path in paths]
    emitted = [[own[node + 1] for node in (PAD, *path)] for own, path in zip(picked, paths, strict=True)]
    return Verdict(
        torch.tensor([own + pad for own, pad in zip(emitted, padding, strict=True)]),
        torch.tensor([path + pad for path, pad in zip(paths, padding, strict=True)], dtype=torch.int64),
        torch.tensor([len(path) + 1 for path in paths]),
    )


def _accepted(tokens: list[int], parents: list[int], picks: list[int]) -> list[int]:
    """The longest path of accepted nodes from the root down. Siblings with equal tokens may both match: the first
    deepest path wins."""
    depths = [0] * len(tokens)
    deepest, most = PAD, 0
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if token == picks[parent + 1] and token >= 0 and (parent < 0 or depths[parent]):
            depths[node] = depth = depths[parent] + 1 if parent >= 0 else 1
            if depth > most:
                deepest, most = node, depth
    path = []
    while deepest >= 0:
        path.append(deepest)
        deepest = parents[deepest]
    return path[::-1]
