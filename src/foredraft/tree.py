"""The one data type for a draft: `TokenTree`.

A tree per batch row, given by tokens and parent pointers; everything else (sizes, levels, depths) is derived. A chain
is a tree, and plain decoding is the empty tree. Siblings with equal tokens are allowed but useless; `from_paths` merges
them.
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
    scores   [B, N] float32 or None: the drafter's estimate that a node is accepted together with all its ancestors, so
             never more than its parent's; 0 for padding. The sum is the number of drafts it expects to be accepted.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor | None = None

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
    def from_nodes(
        cls, rows: Sequence[tuple[Sequence[int], Sequence[int]]], scores: Sequence[Sequence[float]] | None = None
    ) -> TokenTree:
        """From (tokens, parents) per row, and perhaps the score of every node."""
        width = max((len(tokens) for tokens, _ in rows), default=0)
        tokens = torch.tensor([[*own, *[PAD] * (width - len(own))] for own, _ in rows], dtype=torch.int64)
        parents = torch.tensor([[*own, *[PAD] * (width - len(own))] for _, own in rows], dtype=torch.int64)
        values = None
        if scores is not None:
            padded = [[*own, *[0.0] * (width - len(own))] for own in scores]
            values = torch.tensor(padded, dtype=torch.float32).view(len(rows), width)
        return cls(tokens.view(len(rows), width), parents.view(len(rows), width), values)

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
    def sizes(self) -> list[int]:
        """Nodes of each row."""
        return (self.tokens >= 0).sum(dim=1).tolist() if self.width else [0] * self.batch

    @cached_property
    def levels(self) -> list[list[int]]:
        """For each row, the distance of its real nodes from the root, 1 for its children."""
        rows = []
        for parents, size in zip(self.parents.tolist(), self.sizes, strict=True):
            own: list[int] = []
            for parent in parents[:size]:
                own.append(own[parent] + 1 if parent >= 0 else 1)
            rows.append(own)
        return rows

    @cached_property
    def heights(self) -> list[int]:
        """For each row, the nodes on its longest path."""
        return [max(levels, default=0) for levels in self.levels]

    @cached_property
    def depths(self) -> Tensor:
        """[B, N] the same as `levels`; 0 for padding."""
        rows = [[*own, *[0] * (self.width - len(own))] for own in self.levels]
        return torch.tensor(rows, dtype=torch.int64, device=self.tokens.device).view(self.batch, self.width)

    def prune(self, budget: Sequence[int]) -> TokenTree:
        """The first `budget[b]` nodes of each row; nodes come after their parents, so what is left is a tree."""
        if all(size <= nodes for size, nodes in zip(self.sizes, budget, strict=True)):
            return self
        width = min(self.width, max(budget, default=0))
        limit = torch.tensor(list(budget), dtype=torch.int64, device=self.tokens.device)
        drop = torch.arange(width, device=self.tokens.device) >= limit.unsqueeze(1)
        scores = None if self.scores is None else self.scores[:, :width].masked_fill(drop, 0.0)
        return TokenTree(
            self.tokens[:, :width].masked_fill(drop, PAD), self.parents[:, :width].masked_fill(drop, PAD), scores
        )

    def subtree(self, nodes: Sequence[Sequence[int]]) -> TokenTree:
        """Only the given nodes of each row; a node's parent must be among them unless it is the root."""
        rows, scores = [], []
        values = self.scores.tolist() if self.scores is not None else [[0.0] * self.width] * self.batch
        for kept, tokens, parents, own in zip(nodes, self.tokens.tolist(), self.parents.tolist(), values, strict=True):
            order = sorted(kept)
            place = {PAD: PAD, **{node: index for index, node in enumerate(order)}}
            rows.append(([tokens[node] for node in order], [place[parents[node]] for node in order]))
            scores.append([own[node] for node in order])
        return TokenTree.from_nodes(rows, scores if self.scores is not None else None)

    def validate(self, batch: int, vocab_size: int) -> None:
        """Raise ForedraftError, naming row and node, unless these are trees of tokens below `vocab_size`, one for each
        of `batch` sequences, and scores are probabilities, of which none is above its parent's.
        """
        if self.batch != batch:
            raise ForedraftError(f"The drafter returned {self.batch} trees for {batch} sequences; one each is needed.")
        if self.tokens.shape != self.parents.shape or self.tokens.dim() != 2:
            raise ForedraftError(
                f"A tree has tokens {tuple(self.tokens.shape)} and parents {tuple(self.parents.shape)}; "
                "both must be [B, N]."
            )
        if self.scores is not None and self.scores.shape != self.tokens.shape:
            raise ForedraftError(
                f"A tree has tokens {tuple(self.tokens.shape)} and scores {tuple(self.scores.shape)}; "
                "both must be [B, N]."
            )
        if not self.width:
            return
        all_tokens, all_parents = self.tokens.tolist(), self.parents.tolist()
        for row, (tokens, parents, size) in enumerate(zip(all_tokens, all_parents, self.sizes, strict=True)):
            _check_nodes(row, tokens, parents, size, vocab_size)
        if self.scores is not None:
            for row, (parents, scores) in enumerate(zip(all_parents, self.scores.tolist(), strict=True)):
                _check_scores(row, parents, scores)


def _check_nodes(row: int, tokens: list[int], parents: list[int], size: int, vocab_size: int) -> None:
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if (node < size) != (0 <= token < vocab_size) or token >= vocab_size:
            raise ForedraftError(_misplaced(row, node, "token", token, vocab_size))
        if node < size and not PAD <= parent < node:
            raise ForedraftError(_misplaced(row, node, "parent", parent, vocab_size))


def _check_scores(row: int, parents: list[int], scores: list[float]) -> None:
    """Those of padding too, as whole rows are summed."""
    for node, (parent, score) in enumerate(zip(parents, scores, strict=True)):
        if not 0 <= score <= 1:  # which NaN is not either
            raise ForedraftError(
                f"Node {node} of draft row {row} has score {score:g}; a score is a probability, from 0 to 1."
            )
        if 0 <= parent < node and score > scores[parent]:
            raise ForedraftError(f"Node {node} of draft row {row} has a higher score than its parent; it can't.")


def _misplaced(row: int, node: int, what: str, value: int, vocab_size: int) -> str:
    return f"Node {node} of draft row {row} has {what} {value}; parents come first, tokens are below {vocab_size}."


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
