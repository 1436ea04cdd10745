"""What fails for one request fails for that one: drafters, forms and texts that raise leave the others as they are."""

from __future__ import annotations

from collections.abc import Collection as AnyCollection
from collections.abc import Iterator
from collections.abc import Sequence as Collection
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from drafters import ADVERSARIES, CASES, method_names
from models import VOCAB, tiny_target

from foredraft.drafters.base import BaseDrafter, Drafter, Features, Wants
from foredraft.engine.contained import ContainedConstraint, FormError
from foredraft.engine.engine import Engine
from foredraft.target.target import Target
from foredraft.testing.workload import Answer, Ask, decode, decode_plainly, difference, mixed_asks
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, Sequence
from foredraft.verify import Verdict

VICTIM = "filters"
CALLS = ("begin", "propose", "commit")


class TroubleError(Exception):
    pass


class Panic(BaseException):
    """As compiled code raises it."""


@dataclass
class Faulty(BaseDrafter):
    """`inner`, but `call` does its work and then raises if the victim is among its sequences; not yet the first time,
    unless it is called once only.
    """

    inner: Drafter
    call: str
    victim: str = VICTIM
    calls: int = 0

    @property
    def wants(self) -> Wants:
        return self.inner.wants

    def bind(self, target: Target) -> None:
        self.inner.bind(target)

    def begin(self, sequence: Sequence) -> None:
        self.inner.begin(sequence)
        self.fail("begin", [sequence])

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        tree = self.inner.propose(batch, budget)
        self.fail("propose", batch)
        return tree

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        self.inner.commit(batch, verdict, features)
        self.fail("commit", batch)

    def end(self, sequence: Sequence) -> None:
        self.inner.end(sequence)
        self.fail("end", [sequence])

    def fail(self, call: str, batch: Collection[Sequence]) -> None:
        if call == self.call and any(sequence.request_id == self.victim for sequence in batch):
            self.calls += 1
            if self.calls > 1 or call in ("begin", "end"):
                raise TroubleError(call)


def engine_of(drafter: Drafter, *, tolerant: bool = True) -> Engine:
    engine = Engine(tiny_target(), drafter, num_speculative_tokens=3, max_batched_tokens=32)
    if tolerant:
        engine.tolerate_drafter()
    return engine


def plain() -> tuple[list[Ask], list[Answer]]:
    asks = mixed_asks(VOCAB, 0.7)
    return asks, decode_plainly(tiny_target, asks)


def known(asks: list[Ask], answers: list[Answer]) -> dict[tuple[str, int], list[int]]:
    return {
        (ask.name, choice.index): choice.token_ids
        for ask, answer in zip(asks, answers, strict=True)
        for choice in answer
    }


def same(got: list[Answer], wanted: list[Answer]) -> None:
    for answer, reference in zip(got, wanted, strict=True):
        assert difference(answer, reference) is None


@pytest.mark.parametrize("call", [*CALLS, "end"])
@pytest.mark.parametrize("method", method_names())
def test_a_drafter_that_raises_costs_one_request_its_drafts(method: str, call: str) -> None:
    asks, wanted = plain()
    engine = engine_of(Faulty(CASES[method]({}), call))
    same(decode(engine, asks), wanted)
    assert engine.drafting is not None
    assert engine.drafting.failures == (call in CALLS)


@pytest.mark.parametrize("call", CALLS)
def test_the_others_keep_their_drafts(call: str) -> None:
    """All of them: they get the same drafts accepted as with a drafter that doesn't fail."""
    asks, wanted = plain()
    answers = known(asks, wanted)
    sound = decode(engine_of(ADVERSARIES["Oracle"](answers)), asks)
    broken = decode(engine_of(Faulty(ADVERSARIES["Oracle"](answers), call)), asks)
    same(broken, wanted)
    for ask, before, after in zip(asks, sound, broken, strict=True):
        stats = [[choice.speculative_decoding.as_dict() for choice in answer] for answer in (before, after)]
        if ask.name == VICTIM:
            assert stats[1][0]["drafter_failed"] is True
            assert stats[1][0]["num_draft_tokens"] < stats[0][0]["num_draft_tokens"]
        else:
            assert stats[0] == stats[1]


@pytest.mark.parametrize("call", CALLS)
def test_elsewhere_the_error_is_seen(call: str) -> None:
    asks, _ = plain()
    with pytest.raises(TroubleError):
        decode(engine_of(Faulty(ADVERSARIES["RandomTree"](), call), tolerant=False), asks)


class Malformed(ADVERSARIES["RandomTree"]):  # type: ignore[misc]
    """For the victim, tokens that the vocabulary doesn't have."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> tuple[list[int], list[int]]:
        tokens, parents = super().draft(sequence, coming, budget)
        return ([VOCAB for _ in tokens] if sequence.request_id == VICTIM else tokens), parents


def test_a_tree_that_is_none_counts_as_a_failure() -> None:
    asks, wanted = plain()
    engine = engine_of(Malformed())
    same(decode(engine, asks), wanted)
    assert engine.drafting is not None
    assert engine.drafting.failures == 1


class LogScored(ADVERSARIES["RandomTree"]):  # type: ignore[misc]
    """For the victim, scores that are logarithms of probabilities."""

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        tree = super().propose(batch, budget)
        real = tree.tokens >= 0
        victim = torch.tensor([[sequence.request_id == VICTIM] for sequence in batch])
        return TokenTree(tree.tokens, tree.parents, 0.5 * real - 1.5 * (real & victim))


def test_scores_that_are_no_probabilities_count_as_a_failure() -> None:
    asks, wanted = plain()
    engine = engine_of(LogScored())
    same(decode(engine, asks), wanted)
    assert engine.drafting is not None
    assert engine.drafting.failures == 1


class DislikesCompany(ADVERSARIES["RandomTree"]):  # type: ignore[misc]
    """Raises for every batch of several sequences, so that none of them is to blame."""

    raised = 0

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        if len(batch) > 1:
            self.raised += 1
            raise TroubleError
        return super().propose(batch, budget)


def test_failures_without_a_culprit_come_to_an_end() -> None:
    asks, wanted = plain()
    drafter = DislikesCompany()
    same(decode(engine_of(drafter), asks), wanted)
    assert 3 <= drafter.raised < 12


@dataclass
class Observant(BaseDrafter):
    """Raises for the victim, and notes what doesn't fit together in what it gets for the others."""

    wrong: list[str] = field(default_factory=list)
    begun: set[int] = field(default_factory=set)
    rows: int = 0

    @property
    def wants(self) -> Wants:
        return Wants(layers=(1,), candidates=3)

    def begin(self, sequence: Sequence) -> None:
        self.expect(sequence.id not in self.begun, "begun twice")
        self.begun.add(sequence.id)

    def end(self, sequence: Sequence) -> None:
        self.expect(sequence.id in self.begun, "ended without a beginning")
        self.begun.discard(sequence.id)

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        self.expect(all(sequence.id in self.begun for sequence in batch), "asked about a stranger")
        if any(sequence.request_id == VICTIM for sequence in batch):
            raise TroubleError
        return TokenTree.chain([sequence.tokens[:nodes] for sequence, nodes in zip(batch, budget, strict=True)])

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        assert features.hidden is not None
        assert features.candidates is not None
        self.rows += len(features.hidden)
        names = [sequence.request_id for sequence in features.sequences]
        self.expect(all(sequence.id in self.begun for sequence in features.sequences), "told about a stranger")
        self.expect(set(batch) <= set(features.sequences), "sequences without features")
        self.expect(len(features.hidden) == sum(features.counts), f"hidden rows of {names}")
        for values in (*verdict, features.tree.tokens, features.picks, features.candidates):
            self.expect(len(values) == len(batch), f"{len(values)} rows for {len(batch)} sequences")
        for row, sequence in enumerate(batch):
            emitted = verdict.tokens[row, : verdict.lengths[row]].tolist()
            self.expect(sequence.tokens[-1] in emitted, f"another sequence's tokens for {sequence.request_id}")

    def expect(self, truth: bool, otherwise: str) -> None:
        if not truth:
            self.wrong.append(otherwise)


def test_what_a_drafter_is_told_leaves_out_those_it_failed_on() -> None:
    asks, wanted = plain()
    drafter = Observant()
    same(decode(engine_of(drafter), asks), wanted)
    assert drafter.wrong == []
    assert drafter.rows
    assert not drafter.begun


@dataclass
class BrokenForm:
    """Allows everything until some tokens are there; then one of its answers raises."""

    call: str
    error: BaseException

    def masks(self, tokens: list[int], paths: AnyCollection[tuple[int, ...]]) -> list[bytes | None]:
        self.fail("masks", tokens)
        return [b"\xff" * (VOCAB // 8)] * len(paths)

    def forced(self, tokens: list[int], limit: int) -> list[int]:
        self.fail("forced", tokens)
        return []

    def dead_end(self, tokens: list[int]) -> str | None:
        self.fail("dead_end", tokens)
        return None

    def fail(self, call: str, tokens: list[int]) -> None:
        if call == self.call and len(tokens) > 12:
            raise self.error


@contextmanager
def with_form(engine: Engine, form: BrokenForm) -> Iterator[None]:
    """Requests that are added meanwhile have this form."""
    original = engine.grammars.open
    engine.grammars.open = lambda *_: ContainedConstraint(form)  # type: ignore[method-assign]
    yield
    engine.grammars.open = original  # type: ignore[method-assign]


@pytest.mark.parametrize("error", [TroubleError("no"), Panic("no")], ids=["exception", "panic"])
@pytest.mark.parametrize(
    ("method", "call"),
    [
        *((method, call) for method in ("RandomTree", "draft_model") for call in ("masks", "forced", "dead_end")),
        *(("off", call) for call in ("masks", "dead_end")),  # without a drafter nobody asks for forced tokens
    ],
)
def test_a_form_that_raises_fails_its_request_only(method: str, call: str, error: BaseException) -> None:
    asks, wanted = plain()
    drafter = CASES[method]({}) if method != "off" else None
    engine = Engine(tiny_target(), drafter, num_speculative_tokens=6)
    with with_form(engine, BrokenForm(call, error)):
        broken = engine.add([1] * 8, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, n=2))
    same(decode(engine, asks), wanted)
    assert isinstance(broken.failure, FormError)
    assert broken.failure.__cause__ is error
    assert all(choice.output.finish_reason == "abort" for choice in broken.choices)
    assert 0 < len(broken.choices[0].output.token_ids) < 12
    engine.check_integrity()
    assert engine.target.cache.free_slots == engine.target.cache.slots


def test_a_text_that_cannot_be_decoded_fails_its_request_only() -> None:
    asks, wanted = plain()
    engine = Engine(tiny_target(), ADVERSARIES["RandomTree"](), num_speculative_tokens=6)
    broken = engine.add([5] * 8, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, n=3))

    def fail(*_: object) -> Any:
        raise TroubleError

    broken.choices[1].extend = fail  # type: ignore[method-assign]
    same(decode(engine, asks), wanted)
    assert isinstance(broken.failure, TroubleError)
    assert engine.idle
    engine.check_integrity()
