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
    matches = tree.tokens == picks.gather(1, tree.parents.clamp(min=PAD) + 1)
    missed = (~matches).unsqueeze(1)
    accepted = ~(tree.ancestors & missed).any(dim=2) & (tree.tokens >= 0)
    depths = tree.depths * accepted
    deepest = depths.argmax(
        dim=1, keepdim=True
    )  # siblings with equal tokens may both match: the first deepest path wins
    lengths = depths.gather(1, deepest).squeeze(1) + 1
    on_path = tree.ancestors.gather(1, deepest.unsqueeze(2).expand(-1, 1, tree.width)).squeeze(1) & (
        lengths > 1
    ).unsqueeze(1)

    longest = int(lengths.max())
    order = torch.where(on_path, depths, tree.width + 1)
    path = order.argsort(dim=1, stable=True)[:, : longest - 1]
    steps = torch.arange(longest, device=picks.device)
    path = path.masked_fill(steps[1:] >= lengths.unsqueeze(1), PAD)
    at = torch.cat([torch.full_like(path[:, :1], PAD), path], dim=1) if longest > 1 else torch.full_like(deepest, PAD)
    tokens = picks.gather(1, at + 1).masked_fill(steps >= lengths.unsqueeze(1), PAD)
    return Verdict(tokens, path, lengths)
