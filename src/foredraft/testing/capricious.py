"""A controller without reason: closes budgets at random, and cuts random parts off the trees that come back.

What a real controller does when drafts don't pay, only more often. The part of a tree that is kept is again a tree.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field

from foredraft.engine.controller import Load
from foredraft.engine.decision import Decision
from foredraft.tree import TokenTree
from foredraft.types import Sequence, StepReport

__all__ = ["CapriciousController"]


@dataclass
class CapriciousController:
    """Every other step is open; in an open one every third node goes, and all nodes below it."""

    source: random.Random = field(default_factory=lambda: random.Random(0))
    decision: Decision | None = None

    def budgets(self, batch: Collection[Sequence], limits: Collection[int], load: Load) -> list[int]:
        if self.source.random() < 0.5:
            return [0] * len(limits)
        return [self.source.randint(0, limit) for limit in limits]

    def select(self, batch: Collection[Sequence], tree: TokenTree, load: Load) -> TokenTree:
        kept: list[list[int]] = []
        for parents, size in zip(tree.parents.tolist(), tree.sizes, strict=True):
            kept.append([])
            for node, parent in enumerate(parents[:size]):
                if (parent < 0 or parent in kept[-1]) and self.source.random() < 0.67:
                    kept[-1].append(node)
        return tree.subtree(kept)

    def observe(self, report: StepReport, tree: TokenTree) -> None:
        return None

    def forget(self, sequence: Sequence) -> None:
        return None
