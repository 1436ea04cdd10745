"""The engine's calls to its drafter, and what becomes of a sequence that a drafter fails on.

A drafter can't change what is emitted, so it need not be able to end it either. A tolerant engine decodes a sequence
plainly from the moment its drafter raises, and lets the others keep their drafts: they start anew with `end` and
`begin`, as after a preemption, and are asked one by one to find out whom the failure was about.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field

import torch

from foredraft.drafters.base import Drafter, Features
from foredraft.tree import PAD, TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

__all__ = ["Drafting"]

PATIENCE = 3
"""Failures of whole batches, with nobody to blame, after which a sequence of theirs is decoded plainly."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Drafting:
    """Calls `drafter` for the sequences that it hasn't failed on.

    vocab_size  of the target; drafts are checked against it
    on_failure  told about every sequence that will be decoded plainly
    tolerant    whether that is all that happens; otherwise what the drafter raises is raised
    failures    such sequences so far
    """

    drafter: Drafter
    vocab_size: int
    on_failure: Callable[[Sequence], None]
    tolerant: bool = False
    failures: int = 0
    _plain: set[int] = field(default_factory=set)
    _strikes: Counter[int] = field(default_factory=Counter)

    def begin(self, sequence: Sequence) -> None:
        if self.serves(sequence):
            try:
                self.drafter.begin(sequence)
            except Exception as error:
                self._give_up(sequence, "begin", error)

    def end(self, sequence: Sequence) -> None:
        if self.serves(sequence):
            try:
                self.drafter.end(sequence)
            except Exception as error:
                self._tell(sequence, "end", error)

    def forget(self, sequence: Sequence) -> None:
        """The sequence is over."""
        self._plain.discard(sequence.id)
        self._strikes.pop(sequence.id, None)

    def serves(self, sequence: Sequence) -> bool:
        return sequence.id not in self._plain

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        """A valid tree per sequence, with at most `budget[b]` nodes; none where the drafter has failed. Nobody is asked
        where nothing is wanted.
        """
        if not any(budget):
            return TokenTree.empty(len(batch))
        if not self._plain:
            return self._propose(batch, budget)
        rows = [row for row, sequence in enumerate(batch) if self.serves(sequence)]
        if not rows:
            return TokenTree.empty(len(batch))
        return _spread(self._propose([batch[row] for row in rows], [budget[row] for row in rows]), rows, len(batch))

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        """The step is over: see the protocol."""
        if self._plain:
            batch, verdict, features = _part(batch, verdict, features, self.serves)
        try:
            self.drafter.commit(batch, verdict, features)
        except Exception as error:
            for sequence in self._suspects(features.sequences, "commit", error):
                if self._restarted(sequence):
                    self._commit_alone(sequence, batch, verdict, features)

    def _commit_alone(
        self, sequence: Sequence, batch: Collection[Sequence], verdict: Verdict, features: Features
    ) -> None:
        try:
            self.drafter.commit(*_part(batch, verdict, features, lambda other: other is sequence))
        except Exception as error:
            self._give_up(sequence, "commit", error)

    def _propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        try:
            return self._proposed(batch, budget)
        except Exception as error:
            suspects = self._suspects(batch, "propose", error)
        return _stacked(
            [
                self._propose_alone(sequence, nodes) if sequence in suspects else TokenTree.empty(1)
                for sequence, nodes in zip(batch, budget, strict=True)
            ]
        )

    def _propose_alone(self, sequence: Sequence, nodes: int) -> TokenTree:
        if self._restarted(sequence):
            try:
                return self._proposed([sequence], [nodes])
            except Exception as error:
                self._give_up(sequence, "propose", error)
        return TokenTree.empty(1)

    def _proposed(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        tree = self.drafter.propose(batch, budget).prune(budget)
        tree.validate(len(batch), self.vocab_size)
        return tree

    def _suspects(self, batch: Collection[Sequence], call: str, error: Exception) -> list[Sequence]:
        """The sequences to ask once more, one by one; raises the error unless the engine is tolerant."""
        if not self.tolerant:
            raise error
        if len(batch) == 1:
            self._give_up(batch[0], call, error)
            return []
        logger.warning("The drafter raised in %s for %d sequences", call, len(batch), exc_info=error)
        self._strikes.update(sequence.id for sequence in batch)
        for sequence in batch:
            if self._strikes[sequence.id] >= PATIENCE:
                self._give_up(sequence, call, error)
        return [sequence for sequence in batch if self.serves(sequence)]

    def _restarted(self, sequence: Sequence) -> bool:
        """Whether the drafter has begun the sequence anew, with nothing left of what it may have done by halves."""
        self.end(sequence)
        self.begin(sequence)
        return self.serves(sequence)

    def _give_up(self, sequence: Sequence, call: str, error: Exception) -> None:
        self._tell(sequence, call, error)
        if call != "begin":
            self.end(sequence)
        self._plain.add(sequence.id)
        self.failures += 1
        self.on_failure(sequence)

    def _tell(self, sequence: Sequence, call: str, error: Exception) -> None:
        if not self.tolerant:
            raise error
        then = "" if call == "end" else ", which is decoded plainly from now on"
        logger.error("The drafter raised in %s for %s%s", call, sequence.request_id, then, exc_info=error)


def _spread(tree: TokenTree, rows: Collection[int], batch: int) -> TokenTree:
    """The same trees as rows `rows` of a larger batch, whose other rows have none."""
    tokens = tree.tokens.new_full((batch, tree.width), PAD)
    parents = tokens.clone()
    tokens[rows], parents[rows] = tree.tokens, tree.parents
    if tree.scores is None:
        return TokenTree(tokens, parents)
    scores = tree.scores.new_zeros((batch, tree.width))
    scores[rows] = tree.scores
    return TokenTree(tokens, parents, scores)


def _stacked(trees: Collection[TokenTree]) -> TokenTree:
    """Trees of single sequences as one batch; with scores if all drafts have them."""
    nodes, scores = [], []
    for tree in trees:
        nodes.append((tree.tokens[0, : tree.sizes[0]].tolist(), tree.parents[0, : tree.sizes[0]].tolist()))
        scores.append([] if tree.scores is None else tree.scores[0, : tree.sizes[0]].tolist())
    scored = all(tree.scores is not None for tree in trees if tree.width)
    return TokenTree.from_nodes(nodes, scores if scored else None)


def _part(
    batch: Collection[Sequence], verdict: Verdict, features: Features, keep: Callable[[Sequence], bool]
) -> tuple[list[Sequence], Verdict, Features]:
    """What `commit` gets, for some of the sequences."""
    rows = [row for row, sequence in enumerate(batch) if keep(sequence)]
    chunks = [place for place, sequence in enumerate(features.sequences) if keep(sequence)]
    tree, hidden = features.tree, features.hidden
    if hidden is not None:
        parts = torch.split(hidden, list(features.counts))
        hidden = torch.cat([hidden[:0], *(parts[place] for place in chunks)])
    part = Features(
        TokenTree(tree.tokens[rows], tree.parents[rows], None if tree.scores is None else tree.scores[rows]),
        features.picks[rows],
        None if features.candidates is None else features.candidates[rows],
        hidden,
        tuple(features.sequences[place] for place in chunks),
        tuple(features.starts[place] for place in chunks),
        tuple(features.counts[place] for place in chunks),
    )
    return [batch[row] for row in rows], Verdict(*(values[rows] for values in verdict)), part
