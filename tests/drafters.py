"""Drafters for tests: every method of the product, and adversaries that any engine must survive.

An adversary may know the plain answers (`answers[request id, choice]`), so that it can be right, wrong or both on
purpose. `CASES` lists everything that the exactness suite runs, by name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field

from models import EOS, VOCAB
from tiny_heads import head_folder

from foredraft.drafters.base import BaseDrafter, Drafter, Features
from foredraft.drafters.methods import METHODS, build_drafter
from foredraft.target.target import Target
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

Answers = Mapping[tuple[str, int], list[int]]
Nodes = tuple[list[int], list[int]]


@dataclass
class Adversary(BaseDrafter):
    """Proposes `draft(sequence, what comes next, budget)` for every sequence; nothing comes after the answer's end."""

    answers: Answers = field(default_factory=dict)
    source: random.Random = field(default_factory=lambda: random.Random(7))

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        rows = []
        for sequence, limit in zip(batch, budget, strict=True):
            known = self.answers.get((sequence.request_id, sequence.choice), [])
            rows.append(self.draft(sequence, known[sequence.output_length :], limit))
        return TokenTree.from_nodes(rows)

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        raise NotImplementedError


class Empty(Adversary):
    """Never proposes anything."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        return [], []


class Oracle(Adversary):
    """Knows the answer, and goes on with nonsense after its end."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        return chain([*coming, *(self.source.randrange(VOCAB) for _ in range(budget))][:budget])


class Liar(Adversary):
    """Always wrong, by one."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        return chain([(token + 1) % VOCAB for token in coming[:budget]])


class Flaky(Adversary):
    """Right three times in four."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        return chain(
            [token if self.source.random() < 0.75 else self.source.randrange(VOCAB) for token in coming[:budget]]
        )


class RandomTree(Adversary):
    """Any shape, any tokens; seldom right."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        size = self.source.randint(0, budget)
        return (
            [self.source.randrange(VOCAB) for _ in range(size)],
            [self.source.randrange(-1, node) for node in range(size)],
        )


class Thicket(Adversary):
    """The answer hidden in a random tree: its nodes are neither the first ones nor next to one another."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        tokens: list[int] = []
        parents: list[int] = []
        at = -1
        for token in coming:
            if len(tokens) + 2 > budget:
                break
            for _ in range(self.source.randint(0, min(2, budget - len(tokens) - 1))):
                tokens.append(self.source.randrange(VOCAB))
                parents.append(self.source.randrange(-1, len(tokens) - 1))
            tokens.append(token)
            parents.append(at)
            at = len(tokens) - 1
        return tokens, parents


class Twins(Adversary):
    """Every right token twice, as siblings with equal tokens; the answer goes on below one of them at random."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        tokens: list[int] = []
        parents: list[int] = []
        at = -1
        for token in coming[: budget // 2]:
            tokens += [token, token]
            parents += [at, at]
            at = len(tokens) - self.source.randint(1, 2)
        return tokens, parents


class Edge(Adversary):
    """Only the first and the last token of the vocabulary."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        return chain([(0, VOCAB - 1)[index % 2] for index in range(budget)])


class Glutton(Adversary):
    """Proposes three nodes more than its budget, right ones first."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        return chain([*coming, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12][: budget + 3])


class EndEverywhere(Adversary):
    """An end token below every node of the right chain, and after it."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        tokens: list[int] = []
        parents: list[int] = []
        at = -1
        for token in [*coming, EOS, EOS, EOS, EOS][: budget // 2]:
            tokens += [EOS, token]
            parents += [at, at]
            at = len(tokens) - 1
        return tokens, parents


@dataclass
class ComparedWithNew(BaseDrafter):
    """A drafter with state, each of whose drafts must be what a new one proposes after reading everything again."""

    make: Callable[[], Drafter]

    def bind(self, target: Target) -> None:
        self.target = target
        self.drafter = self.make()
        self.drafter.bind(target)

    def begin(self, sequence: Sequence) -> None:
        self.drafter.begin(sequence)

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        tree = self.drafter.propose(batch, budget)
        new = self.make()
        new.bind(self.target)
        for sequence in batch:
            new.begin(sequence)
        expected = new.propose(batch, budget)
        assert tree.tokens.tolist() == expected.tokens.tolist(), "the drafter's state is stale"
        return tree

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        self.drafter.commit(batch, verdict, features)

    def end(self, sequence: Sequence) -> None:
        self.drafter.end(sequence)


def chain(tokens: list[int]) -> Nodes:
    """Tokens that follow one another from the root."""
    return tokens, list(range(-1, len(tokens) - 1))


ADVERSARIES: dict[str, type[Adversary]] = {
    kind.__name__: kind
    for kind in (Empty, Oracle, Liar, Flaky, RandomTree, Thicket, Twins, Edge, Glutton, EndEverywhere)
}
TREE = {"depth": 4, "top_k": 3, "nodes": 6}
CONFIGURATIONS: dict[str, Callable[[], dict[str, object]]] = {
    "draft_model": lambda: {"model": "target:1"},
    "eagle": lambda: {"model": head_folder("eagle"), "draft_min_token_prob": 0.0},
    "eagle3": lambda: {"model": head_folder("eagle3"), "draft_min_token_prob": 0.0, "tree": TREE},
    "medusa": lambda: {"model": head_folder("medusa"), "draft_min_token_prob": 0.0, "tree": TREE},
}
"""What a method needs to be built, besides its name."""


def method_names() -> list[str]:
    """Every method of `speculative_config` that drafts; of two names for the same drafter, the later one."""
    return list({drafter: name for name, drafter in METHODS.items()}.values())


def build_method(name: str) -> Drafter:
    """A new drafter of that method."""
    needed = CONFIGURATIONS.get(name, dict)()
    speculation = build_drafter({"method": name, "num_speculative_tokens": 6, **needed})
    assert speculation is not None
    return speculation.drafter


def _adversary(kind: type[Adversary]) -> Callable[[Answers], Drafter]:
    return lambda answers: kind(answers)


def _method(name: str) -> Callable[[Answers], Drafter]:
    return lambda _: build_method(name)


CASES: dict[str, Callable[[Answers], Drafter]] = {
    **{name: _adversary(kind) for name, kind in ADVERSARIES.items()},
    **{name: _method(name) for name in method_names()},
}
"""name -> a drafter, given the plain answers."""
