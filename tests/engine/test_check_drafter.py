"""The contract suite itself: it passes honest drafters, and says in a sentence what is wrong with each bad one."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Collection
from functools import cache

import pytest
import torch
from drafters import ADVERSARIES, build_method, method_names

from foredraft.drafters.base import BaseDrafter, Features
from foredraft.target.target import Target
from foredraft.testing import CONTRACT, Trial, check_drafter, random_target
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict


class Repeat(BaseDrafter):
    """Honest: proposes the last token again."""

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return TokenTree.chain([sequence.tokens[-1:] * limit for sequence, limit in zip(batch, budget, strict=True)])


class OverBudget(Repeat):
    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return super().propose(batch, [limit + 1 for limit in budget])


class NeedsHistory(Repeat):
    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return TokenTree.chain(
            [[sequence.tokens[-2]] * (limit > 0) for sequence, limit in zip(batch, budget, strict=True)]
        )


class Silent(Repeat):
    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return None  # type: ignore[return-value]


class SmallIntegers(Repeat):
    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        tree = super().propose(batch, budget)
        return TokenTree(tree.tokens.int(), tree.parents.int())


class BeyondTheVocabulary(Repeat):
    def bind(self, target: Target) -> None:
        self.token = target.vocab_size

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return TokenTree.chain([[self.token] * limit for limit in budget])


class ChildrenFirst(Repeat):
    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return TokenTree.from_nodes([([5, 5], [1, -1]) if limit >= 2 else ([], []) for limit in budget])


class OneTreeForAll(Repeat):
    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return super().propose(batch[:1], budget[:1])


class GrowingScores(Repeat):
    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        scores = [[0.5 + 0.05 * node for node in range(limit)] for limit in budget]
        return TokenTree.from_nodes([([7] * limit, list(range(-1, limit - 1))) for limit in budget], scores)


class OnceOnly(Repeat):
    """Thinks that a sequence begins once; a preempted one begins again."""

    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}
        self.gone: set[int] = set()

    def begin(self, sequence: Sequence) -> None:
        if sequence.prompt_length < len(sequence.tokens):
            raise ValueError("begun already")


class Editor(Repeat):
    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        tree = super().propose(batch, budget)
        for sequence in batch:
            sequence.tokens.append(5)
        return tree


class Hoarder(Repeat):
    def __init__(self) -> None:
        self.known: list[Sequence] = []

    def begin(self, sequence: Sequence) -> None:
        self.known.append(sequence)


class Archivist(Repeat):
    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        for sequence in batch:
            self.lengths[sequence.id] = len(sequence.tokens)


class Saboteur(Repeat):
    def bind(self, target: Target) -> None:
        self.target = target

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        for sequence in batch:
            assert sequence.slot is not None
            self.target.cache.keys[0][sequence.slot, :, : sequence.cached].mul_(0.5)
        return super().propose(batch, budget)


@pytest.mark.parametrize("kind", [Repeat, ADVERSARIES["RandomTree"]])
def test_an_honest_drafter_passes(kind: type[BaseDrafter]) -> None:
    check_drafter(kind)


@cache
def trial_of(method: str) -> Trial:
    return Trial(lambda: build_method(method))


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", method_names())
def test_every_method_keeps_the_contract(name: str, check: Callable[[Trial], None]) -> None:
    check(trial_of(name))


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (OverBudget, r"OverBudget.propose returned \d nodes for sequence 0, whose budget is"),
        (NeedsHistory, r"NeedsHistory.propose raised IndexError .* for sequences of \[1, 1\] tokens"),
        (Silent, "Silent.propose returned a NoneType; it must return a TokenTree"),
        (SmallIntegers, "tokens of type torch.int32; they must be int64"),
        (BeyondTheVocabulary, "invalid tree. Node 0 of draft row 1 has token 96"),
        (ChildrenFirst, "invalid tree. Node 0 of draft row 0 has parent 1"),
        (OneTreeForAll, "returned 1 trees for [23] sequences"),
        (GrowingScores, "Node 1 of draft row 0 has a higher score than its parent"),
        (OnceOnly, r"OnceOnly.begin raised ValueError \(begun already\)"),
        (Editor, "Editor.propose changed a sequence"),
        (Hoarder, r"Hoarder still holds \d+ sequences after they ended"),
        (Archivist, r"Archivist still holds state of \d+ sequences after they ended"),
        (Saboteur, "emits token .* where plain decoding emits .* The drafter must have touched the target"),
    ],
)
def test_a_bad_drafter_is_told_what_is_wrong(kind: type[BaseDrafter], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_drafter(kind)


def test_the_default_target_leaves_the_global_random_state_alone() -> None:
    state = torch.get_rng_state()
    random_target(seed=77)
    assert torch.equal(torch.get_rng_state(), state)
