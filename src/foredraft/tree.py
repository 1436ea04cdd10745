"""The one data type for a draft: `TokenTree`.

A tree per batch row, given by tokens and parent pointers; everything else (depths, ancestors, mask, positions) is
derived. A chain is a tree, and plain decoding is the empty tree. Siblings with equal tokens are allowed but useless;
`from_paths` merges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from foredraft.errors import ForedraftError

__all__ = ["TokenTree"]

PAD = -1


@dataclass(frozen=True, eq=False)
class TokenTree:
    """Draft tokens for B rows, at most N nodes each.

    tokens   [B, N] int64, -1 where a row has fewer nodes (padding is at the end of a row)
    parents  [B, N] int64, the parent's node index, always smaller than the node's own; -1 is the root (the last
             committed token)
    """

    tokens: Tensor
    parents: Tensor

    @classmethod
    def empty(cls, batch: int, device: torch.device | str = "cpu") -> TokenTree:
        """No drafts for any of `batch` rows: plain decoding."""
        nothing = torch.empty((batch, 0), dtype=torch.int64, device=device)
        return cls(nothing, nothing)

    @classmethod
    def chain(cls, drafts: Sequence[Sequence[int]]) -> TokenTree:
        """One chain per row; a row may be empty."""
        return cls.from_nodes([(list(draft), list(range(-1, len(draft) - 1))) for draft in drafts])

    @classmethod
    def from_nodes(cls, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> TokenTree:
        """From (tokens, parents) per row."""
        width = max((len(tokens) for tokens, _ in rows), default=0)
        pad = [[PAD] * (width - len(tokens)) for tokens, _ in rows]
        tokens = torch.tensor([[*row[0], *fill] for row, fill in zip(rows, pad, strict=True)], dtype=torch.int64)
        parents = torch.tensor([[*row[1], *fill] for row, fill in zip(rows, pad, strict=True)], dtype=torch.int64)
        return cls(tokens.view(len(rows), width), parents.view(len(rows), width))

    @classmethod
    def from_paths(cls, rows: Sequence[Sequence[Sequence[int]]]) -> TokenTree:
        """From several candidate continuations per row; shared prefixes become shared nodes, in order of first
        appearance.
        """
        return cls.from_nodes([_merge(paths) for paths in rows])

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        """N, the largest number of nodes in a row."""
        return self.tokens.shape[1]

    @cached_property
    def sizes(self) -> Tensor:
        """[B] nodes per row."""
        return (self.tokens >= 0).sum(dim=1)

    @cached_property
    def ancestors(self) -> Tensor:
        """[B, N, N] bool: node j is i itself or one of its ancestors; False for padding. This is the tree mask."""
        mask = torch.zeros((self.batch, self.width, self.width), dtype=torch.bool, device=self.tokens.device)
        rows = torch.arange(self.batch, device=self.tokens.device)
        real = self.tokens >= 0
        for node in range(self.width):
            parent = self.parents[:, node]
            inherited = mask[rows, parent.clamp(min=0)] & (parent >= 0).unsqueeze(1)
            mask[:, node] = inherited
            mask[:, node, node] = real[:, node]
        return mask

    @cached_property
    def depths(self) -> Tensor:
        """[B, N] distance from the root, 1 for its children; 0 for padding."""
        return self.ancestors.sum(dim=2)

    @cached_property
    def positions(self) -> Tensor:
        """[B, N] offset of a node's position from the root's; the same numbers as `depths`."""
        return self.depths

    def prune(self, budget: Sequence[int]) -> TokenTree:
        """The first `budget[b]` nodes of each row; nodes come after their parents, so what is left is a tree."""
        limit = torch.tensor(list(budget), dtype=torch.int64, device=self.tokens.device)
        width = min(self.width, int(limit.max().item()) if len(budget) else 0)
        keep = torch.arange(width, device=self.tokens.device) < limit.unsqueeze(1)
        return TokenTree(
            self.tokens[:, :width].masked_fill(~keep, PAD), self.parents[:, :width].masked_fill(~keep, PAD)
        )

    def validate(self, vocab_size: int) -> None:
        """Raise ForedraftError, naming row and node, unless this is a tree of tokens below `vocab_size`."""
        if self.tokens.shape != self.parents.shape or self.tokens.dim() != 2:
            raise ForedraftError(
                f"A tree has tokens {tuple(self.tokens.shape)} and parents {tuple(self.parents.shape)}; "
                "both must be [B, N]."
            )
        if not self.width:
            return
        nodes = torch.arange(self.width, device=self.tokens.device)
        real = nodes < self.sizes.unsqueeze(1)
        wrong_token = real != (self.tokens >= 0)
        wrong_token |= self.tokens >= vocab_size
        wrong_parent = real & ((self.parents < -1) | (self.parents >= nodes))
        for fault, what in ((wrong_token, "token"), (wrong_parent, "parent")):
            if fault.any():
                row, node = (int(index) for index in fault.nonzero()[0])
                value = int((self.tokens if what == "token" else self.parents)[row, node])
                raise ForedraftError(
                    f"Node {node} of draft row {row} has {what} {value}; parents come first, tokens are below "
                    f"{vocab_size}."
                )


def _merge(paths: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    tokens: list[int] = []
    parents: list[int] = []
    children: dict[tuple[int, int], int] = {}
    for path in paths:
        at = PAD
        for token in path:
            node = children.get((at, token))
            if node is None:
                node = children[at, token] = len(tokens)
                tokens.append(token)
                parents.append(at)
            at = node
    return tokens, parents
