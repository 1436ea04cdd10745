"""A drafter under observation: passes every call on and checks what comes back.

What it can tell at once, it raises at once: an exception, a malformed tree, scores that can't be probabilities, a
budget exceeded, a sequence changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Collection
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from foredraft.drafters.base import Drafter, Features, Wants
from foredraft.errors import ForedraftError
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from foredraft.target.target import Target

__all__ = ["Watched"]


class Watched:
    """Wraps `drafter`."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.name = type(drafter).__name__
        self._vocab_size = 0

    @property
    def wants(self) -> Wants:
        return self.drafter.wants

    @property
    def frugal(self) -> bool:
        return self.drafter.frugal

    def bind(self, target: Target) -> None:
        self._vocab_size = target.vocab_size
        with self._watch("bind", []):
            self.drafter.bind(target)

    def begin(self, sequence: Sequence) -> None:
        with self._watch("begin", [sequence]):
            self.drafter.begin(sequence)

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        with self._watch("propose", batch):
            tree = self.drafter.propose(batch, budget)
        self._check(tree, len(batch), budget)
        return tree

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        with self._watch("commit", batch):
            self.drafter.commit(batch, verdict, features)

    def end(self, sequence: Sequence) -> None:
        with self._watch("end", [sequence]):
            self.drafter.end(sequence)

    @contextmanager
    def _watch(self, call: str, batch: Collection[Sequence]) -> Iterator[None]:
        """The call must not raise, and must leave the sequences as they were."""
        before = [_state(sequence) for sequence in batch]
        try:
            yield
        except Exception as error:
            lengths = [len(sequence.tokens) for sequence in batch]
            raise AssertionError(
                f"{self.name}.{call} raised {type(error).__name__} ({error}) for sequences of {lengths} tokens; "
                "a drafter that has nothing to propose returns TokenTree.empty."
            ) from error
        for sequence, state in zip(batch, before, strict=True):
            assert _state(sequence) == state, (
                f"{self.name}.{call} changed a sequence; they belong to the engine, work on copies of their tokens."
            )

    def _check(self, tree: TokenTree, rows: int, budget: Collection[int]) -> None:
        what = f"{self.name}.propose"
        assert isinstance(tree, TokenTree), f"{what} returned a {type(tree).__name__}; it must return a TokenTree."
        for name, values in (("tokens", tree.tokens), ("parents", tree.parents)):
            assert values.dtype == torch.int64, f"{what} returned {name} of type {values.dtype}; they must be int64."
        try:
            tree.validate(rows, self._vocab_size)
        except ForedraftError as error:
            raise AssertionError(f"{what} returned an invalid tree. {error}") from error
        for row, (size, limit) in enumerate(zip(tree.sizes, budget, strict=True)):
            assert size <= limit, (
                f"{what} returned {size} nodes for sequence {row}, whose budget is {limit}; "
                "order nodes by value and prune(budget)."
            )


def _state(sequence: Sequence) -> tuple[object, ...]:
    return (tuple(sequence.tokens), sequence.cached, sequence.slot, sequence.finish_reason, sequence.params)
