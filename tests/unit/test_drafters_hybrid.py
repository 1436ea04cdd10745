"""Hybrids: how drafts are blended, who is asked, and what each drafter gets to see."""

from __future__ import annotations

import time
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from written_text import VOCAB, script, sequence_of, step, write

from foredraft.drafters.base import BaseDrafter, Features, Wants
from foredraft.drafters.blend import Blend
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.drafters.member import FIRST_DRAFTS, TRYING, Member, Worth
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.prediction import PredictionDrafter
from foredraft.drafters.proposals import Draft, outcomes
from foredraft.drafters.recycling import RecyclingDrafter
from foredraft.drafters.suffix import SuffixDrafter
from foredraft.errors import ConfigError
from foredraft.target.target import Target
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

TARGET = cast(Target, SimpleNamespace(vocab_size=VOCAB))


@dataclass(eq=False)
class Fixed(BaseDrafter):
    """Always proposes the same chain, taking some time over it; remembers what it was asked and shown."""

    chain: list[int]
    seconds: float = 0.0
    wanted: Wants = field(default_factory=Wants)
    asked: list[int] = field(default_factory=list)
    seen: list[Features] = field(default_factory=list)

    @property
    def wants(self) -> Wants:
        return self.wanted

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        self.asked += budget
        if any(budget):
            time.sleep(self.seconds)
        return TokenTree.chain([self.chain[:nodes] for nodes in budget])

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        self.seen.append(features)


def nodes(drafts: list[Draft], budget: int) -> dict[tuple[int, ...], float]:
    """The blended tree: path -> score."""
    draft = Blend(len(drafts)).merge(sequence_of([1]), drafts, budget)
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return dict(zip(paths, draft.scores, strict=True))


def test_what_both_propose_is_one_node() -> None:
    one = Draft([5, 6], [-1, 0], [0.8, 0.6])
    two = Draft([5, 7], [-1, 0], [0.7, 0.3])
    assert set(nodes([one, two], 10)) == {(5,), (5, 6), (5, 7)}


def test_the_budget_keeps_the_best() -> None:
    one = Draft([5, 6], [-1, 0], [0.9, 0.8])
    two = Draft([8], [-1], [0.2])
    assert set(nodes([one, two], 2)) == {(5,), (5, 6)}


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(0, 8))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    scores: list[float] = []
    for parent in parents:
        scores.append((scores[parent] if parent >= 0 else 1.0) * draw(st.floats(0.0, 1.0)))
    return Draft([draw(st.integers(0, 3)) for _ in range(size)], parents, scores)


@given(st.lists(drafts(), min_size=1, max_size=3), st.integers(0, 10))
def test_a_blend_is_a_tree_with_falling_scores(proposed: list[Draft], budget: int) -> None:
    draft = Blend(len(proposed)).merge(sequence_of([1]), proposed, budget)
    assert len(draft.tokens) <= budget
    assert draft.scores == sorted(draft.scores, reverse=True)
    for node, parent in enumerate(draft.parents):
        assert -1 <= parent < node
        assert 0 <= draft.scores[node] <= (draft.scores[parent] if parent >= 0 else 1)


def test_a_drafter_that_is_wrong_on_its_own_loses_credit() -> None:
    """The second drafter is right whenever the first agrees, and wrong otherwise, with the same score."""
    blend = Blend(2)
    for round in range(60):
        sequence = sequence_of([1])
        agree = round % 2
        first = Draft([5], [-1], [0.6]) if agree else Draft([], [], [])
        blend.merge(sequence, [first, Draft([5], [-1], [0.6])], 4)
        sequence.tokens.append(5 if agree else 9)
        blend.judge(sequence)
    together = blend.merge(sequence_of([1]), [Draft([5], [-1], [0.6]), Draft([5], [-1], [0.6])], 4).scores[0]
    alone = blend.merge(sequence_of([1]), [Draft([], [], []), Draft([5], [-1], [0.6])], 4).scores[0]
    assert together > 0.85
    assert alone < 0.15


def test_outcomes_are_known_where_everything_above_came_true() -> None:
    tokens, parents = [5, 6, 7, 8], [-1, 0, 0, 1]
    assert dict(outcomes(tokens, parents, [5, 7, 1])) == {0: True, 1: False, 2: True}
    assert dict(outcomes(tokens, parents, [5])) == {0: True}
    assert dict(outcomes(tokens, parents, [9, 6])) == {0: False}


def test_a_slow_drafter_is_asked_only_while_it_pays() -> None:
    slow = Fixed([900], seconds=0.005)
    hybrid = HybridDrafter(drafters=(NgramDrafter(), slow))
    began = time.perf_counter()
    write(hybrid, [1], list(range(10, 30)) * 12, budget=4)
    taken = time.perf_counter() - began
    tries = 1 + taken * TRYING / slow.seconds
    assert sum(asked > 0 for asked in slow.asked) <= 2 + tries  # twice to learn what it takes


def test_the_first_drafter_is_always_asked() -> None:
    slow = Fixed([900], seconds=0.003)
    hybrid = HybridDrafter(drafters=(slow, NgramDrafter()))
    write(hybrid, [1], list(range(10, 30)), budget=4)
    assert all(slow.asked[:-1])  # nothing fits behind the last token


WORTH = Worth(token=0.01, node=0.0)


class TestMember:
    """What is asked of a drafter that isn't the first one, with times that are given."""

    def member(self, seconds: float) -> Member:
        member = Member(Fixed([5]))
        member._seconds.add(seconds)
        member._next_try = float("inf")
        return member

    def gained(self, member: Member, sequence: Sequence, tokens: int, times: int) -> None:
        for _ in range(times):
            member._learn_gain(sequence, tokens)

    def test_the_first_draft_goes_to_the_sequence_with_least_to_read(self) -> None:
        batch = [sequence_of([1] * 40), sequence_of([1] * 9), sequence_of([1] * 20)]
        assert Member(Fixed([5])).choose(batch, [4, 4, 4], [0.0] * 3, WORTH) == [0, 4, 0]

    def test_one_good_sequence_is_asked_among_bad_ones(self) -> None:
        member = self.member(seconds=0.003)
        good, bad = sequence_of([1]), sequence_of([2])
        self.gained(member, bad, 0, 200)
        self.gained(member, good, 3, 50)
        assert member.choose([bad, good], [4, 4], [0.0, 0.0], WORTH) == [0, 4]

    def test_what_others_expect_already_counts(self) -> None:
        member = self.member(seconds=0.003)
        sequence = sequence_of([1])
        self.gained(member, sequence, 2, 50)
        assert member.choose([sequence], [4], [0.0], WORTH) == [4]
        assert member.choose([sequence], [4], [1.9], WORTH) == [0]

    def test_a_long_text_must_be_worth_its_reading(self) -> None:
        member = self.member(seconds=0.003)
        member._reading.add(1.0, 1000)
        short, long = sequence_of([1] * 8), sequence_of([1] * 2000)
        assert member.choose([short, long], [4, 4], [0.0, 0.0], WORTH) == [4, 0]

    def test_a_reading_must_be_earned_by_the_drafts_that_usually_follow(self) -> None:
        member = self.member(seconds=0.003)
        member._reading.add(0.1, 1000)
        sequence = sequence_of([1] * 300)
        assert member.choose([sequence], [4], [0.0], WORTH) == [4]  # 0.03 s for some thirty drafts
        for _ in range(60):
            once = sequence_of([1] * 100)
            member._learn_time([once], 0.013)
            member.end(once)
        member._next_try = float("inf")
        assert member.choose([sequence], [4], [0.0], WORTH) == [0]
        for _ in range(60):
            long = sequence_of([1] * 100)
            for _ in range(30):
                member._learn_time([long], 0.003)
                long.tokens.append(1)
            member.end(long)
        member._next_try = float("inf")
        assert member.choose([sequence], [4], [0.0], WORTH) == [4]

    def test_nodes_that_make_the_pass_longer_count_as_time(self) -> None:
        member = self.member(seconds=0.003)
        sequence = sequence_of([1])
        self.gained(member, sequence, 1, 50)
        member._verified.add(8)
        assert member.choose([sequence], [4], [0.0], Worth(0.01, 0.0)) == [4]
        assert member.choose([sequence], [4], [0.0], Worth(0.01, 0.001)) == [0]

    def test_a_cheap_drafter_is_always_asked(self) -> None:
        member = self.member(seconds=0.0001)
        sequence = sequence_of([1])
        self.gained(member, sequence, 0, 200)
        assert member.choose([sequence], [4], [0.0], WORTH) == [4]

    def test_a_few_bad_drafts_at_the_beginning_turn_nothing_off(self) -> None:
        member = self.member(seconds=0.003)
        self.gained(member, sequence_of([1]), 0, FIRST_DRAFTS // 4)
        assert member.choose([sequence_of([2])], [4], [0.0], WORTH) == [4]


def test_a_useful_drafter_is_asked_though_it_takes_time() -> None:
    """A drafter that brings four tokens is worth a third of the time that a token takes."""
    useful = Fixed([7, 7, 7, 7], seconds=0.001)
    hybrid = HybridDrafter(drafters=(Fixed([]), useful))
    sequence = sequence_of([1])
    hybrid.begin(sequence)
    for _ in range(12):
        step(hybrid, [sequence], lambda tokens: 7, 4, seconds=0.015)
    assert all(useful.asked[5:])


def test_drafters_without_scores_are_judged_by_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.drafters.member.CHEAP", float("inf"))  # whatever a busy machine makes them cost
    right, wrong = Fixed([7, 8]), Fixed([900])
    hybrid = HybridDrafter(drafters=(wrong, right))
    sequence = sequence_of([1])
    hybrid.begin(sequence)
    follow = lambda tokens: 7 if len(tokens) % 2 else 8  # noqa: E731
    for _ in range(40):
        tree, _ = step(hybrid, [sequence], follow, 1, seconds=0.005)
    assert tree.tokens[0].tolist() in ([7], [8])


def test_every_drafter_gets_the_features_that_it_asked_for() -> None:
    one = Fixed([], wanted=Wants((3, 1), 2))
    two = Fixed([], wanted=Wants((1, 5), 4))
    none = Fixed([])
    hybrid = HybridDrafter(drafters=(one, two, none))
    assert hybrid.wants == Wants((3, 1, 5), 4)
    hidden = torch.tensor([[[3.0], [1.0], [5.0]]])
    tree = TokenTree.empty(1)
    sequence = sequence_of([1, 2])
    verdict = Verdict(torch.tensor([[2]]), tree.tokens, torch.tensor([1]))
    candidates = torch.arange(4).view(1, 1, 4)
    hybrid.commit([sequence], verdict, Features(tree, verdict.tokens, candidates, hidden))
    shown = [drafter.seen[0] for drafter in (one, two, none)]
    assert shown[0].hidden is not None
    assert shown[0].hidden.flatten().tolist() == [3, 1]
    assert shown[0].candidates is not None
    assert shown[0].candidates.tolist() == [[[0, 1]]]
    assert shown[1].hidden is not None
    assert shown[1].hidden.flatten().tolist() == [1, 5]
    assert shown[2].hidden is None
    assert shown[2].candidates is None


def test_the_default_takes_fewer_steps_than_either_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the text repeats the prompt, half of it repeats an earlier request."""
    monkeypatch.setattr("foredraft.drafters.member.CHEAP", float("inf"))  # whatever a busy machine makes it cost
    phrase, earlier = list(range(100, 130)), list(range(300, 330))
    answer = [*phrase, 5, *earlier]

    def steps(drafter: BaseDrafter) -> int:
        drafter.bind(TARGET)
        write(drafter, [1], [*earlier, 6], budget=8, seconds=0.005)
        return len(write(drafter, [*phrase, 2], answer, budget=8, seconds=0.005))

    in_order = RecyclingDrafter(recycling_from_prompt=False)
    assert steps(HybridDrafter(drafters=(PredictionDrafter(), RecyclingDrafter(recycling_from_prompt=False)))) < min(
        steps(SuffixDrafter()), steps(in_order)
    )


def test_nothing_is_kept_of_a_sequence_that_ended() -> None:
    hybrid = HybridDrafter(drafters=(PredictionDrafter(), RecyclingDrafter(recycling_from_prompt=False)))
    hybrid.bind(TARGET)
    sequence = sequence_of([1, 2, 1])
    hybrid.begin(sequence)
    hybrid.propose([sequence], [4])
    hybrid.end(sequence)
    assert script([1], [2])([1]) == 2
    assert not hybrid._blend._proposals._open
    assert not any(member.proposals._open for member in hybrid._members)
    assert not any((*member._read, *member._runs, *member._own_gains) for member in hybrid._members)


@dataclass(eq=False)
class Strict(BaseDrafter):
    """Knows whom it has begun, and raises for each call in `faults`."""

    faults: tuple[str, ...] = ()
    begun: set[int] = field(default_factory=set)

    def begin(self, sequence: Sequence) -> None:
        if "begin" in self.faults:
            raise ValueError("begin")
        assert sequence.id not in self.begun
        self.begun.add(sequence.id)

    def end(self, sequence: Sequence) -> None:
        self.begun.remove(sequence.id)
        if "end" in self.faults:
            raise OSError("end")

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return TokenTree.empty(len(batch))


def test_a_failed_begin_leaves_no_member_with_the_sequence() -> None:
    members = Strict(), Strict(("end",)), Strict(), Strict(("begin",)), Strict()
    hybrid = HybridDrafter(drafters=members)
    sequence = sequence_of([1, 2])
    with pytest.raises(ValueError, match="begin"):  # not what came of it
        hybrid.begin(sequence)
    assert not any(member.begun for member in members)
    members[3].faults = ()
    hybrid.begin(sequence)
    assert all(member.begun for member in members)


def test_all_members_forget_a_sequence_even_if_one_fails_to() -> None:
    members = Strict(), Strict(("end",)), Strict()
    hybrid = HybridDrafter(drafters=members)
    sequence = sequence_of([1, 2])
    hybrid.begin(sequence)
    with pytest.raises(OSError, match="end"):
        hybrid.end(sequence)
    assert not any(member.begun for member in members)


@pytest.mark.parametrize("count", [0, 7])
def test_too_few_or_too_many_drafters_are_refused(count: int) -> None:
    with pytest.raises(ConfigError, match="list"):
        HybridDrafter(drafters=tuple(NgramDrafter() for _ in range(count)))
