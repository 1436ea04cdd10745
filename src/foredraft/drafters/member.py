"""A hybrid's member: a drafter, what a draft of its costs, and how many tokens it brings.

A drafter is asked when its usual draft saves more time than making it and verifying its nodes take. The time of a draft
is that of one that follows upon another: the first one of a sequence, and the first after a pause, also read what was
said meanwhile, which those that usually follow must earn together. Where asking doesn't pay, a draft is tried now and
then, so seldom that trying takes a set share of the time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence as Collection
from functools import cached_property
from typing import NamedTuple

from foredraft.drafters.averages import LowEstimate, OwnMean, Rate, RunningMean
from foredraft.drafters.base import Drafter, Features, Wants
from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.proposals import Draft, Proposals, drafts_of
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

__all__ = ["Member", "Worth"]

DEPTHS = 16
CHEAP = 0.03
"""A drafter that takes less than this share of a token's time is always asked."""
MARGIN = 1.1
"""By how much a drafter must save more time than it takes."""
TRYING = 0.005
"""Share of the time for drafts that aren't expected to pay."""
FRESH = 16
"""Tokens since its last draft that a drafter reads in no time."""
FIRST_RUN, FIRST_RUNS = 32, 8
"""Drafts that are taken to follow a reading, and to earn what it takes, and how many readings that is worth."""
FIRST_GAIN, FIRST_DRAFTS = 0.6, 8
"""Accepted tokens of a draft before anything is known, and how many drafts that is worth."""
HOPE, OWN = 1.3, 0.08
"""Until a sequence's first gain, it is taken to be so many times what all of them gained, since where drafts just don't
pay on the whole, they do in some texts; its newest draft has this weight."""


class Worth(NamedTuple):
    """What a token takes in this batch, and what another verified node adds to a step, in seconds."""

    token: float
    node: float


class Member:
    """It `rests` in steps that don't ask it; candidates, which cost time, aren't computed for it then."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.proposals = Proposals(HitRates([0.5] * DEPTHS))
        self.rests = False
        self._gains = {greedy: RunningMean(FIRST_GAIN, FIRST_DRAFTS) for greedy in (True, False)}
        """Accepted tokens of a draft, for greedy requests and for sampled ones, which are two different trades."""
        self._own_gains: defaultdict[int, OwnMean] = defaultdict(lambda: OwnMean(OWN))
        self._verified = RunningMean()
        """Nodes that were verified in a step with a draft of a sequence's."""
        self._seconds = LowEstimate()
        """Of a draft that follows upon another, by sequence."""
        self._reading = Rate()
        """Seconds by unread token."""
        self._commit_seconds = RunningMean()
        self._read: dict[int, int] = {}
        """By sequence, the tokens that were there at its last draft."""
        self._runs: dict[int, int] = {}
        """By sequence, its drafts since something had to be read for one, that one included."""
        self._usual_run = RunningMean(FIRST_RUN, FIRST_RUNS)
        self._next_try = 0.0

    @cached_property
    def wants(self) -> Wants:
        """The drafter's, once it is bound."""
        return self.drafter.wants

    def choose(
        self, batch: Collection[Sequence], budget: Collection[int], expected: Collection[float], worth: Worth
    ) -> list[int]:
        """The budgets of those whose drafts should save more time than they take, compared with `expected` accepted
        tokens without them; 0 for the others.
        """
        wishes = [
            nodes if nodes and self._pays(sequence, tokens, worth) else 0
            for sequence, nodes, tokens in zip(batch, budget, expected, strict=True)
        ]
        if self._seconds.value and (any(wishes) or time.perf_counter() < self._next_try):
            return wishes
        # Nothing is known, or it is time for a try: one sequence is enough, that with the least to read.
        unread = {row: self._unread(batch[row]) for row, nodes in enumerate(budget) if nodes}
        tried = min(unread, key=unread.__getitem__, default=None)
        return [nodes if row == tried else 0 for row, nodes in enumerate(budget)]

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> list[Draft]:
        if not any(budget):
            return [Draft([], [], [])] * len(batch)
        began = time.perf_counter()
        tree = self.drafter.propose(batch, budget)
        self._learn_time([seq for seq, nodes in zip(batch, budget, strict=True) if nodes], time.perf_counter() - began)
        return [
            self.proposals.note(sequence, draft, kinds) if nodes else draft
            for sequence, (draft, kinds), nodes in zip(batch, self._drafts(tree, budget), budget, strict=True)
        ]

    def learn(self, batch: Collection[Sequence], lengths: Collection[int], verified: Collection[int]) -> None:
        """How many tokens of the last draft came true, of `verified` nodes; what wasn't verified gained nothing."""
        for sequence, length, nodes in zip(batch, lengths, verified, strict=True):
            came_true = self.proposals.judge(sequence)
            if came_true is not None:
                self._learn_gain(sequence, min(came_true, length - 1))
                self._verified.add(nodes)

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        began = time.perf_counter()
        self.drafter.commit(batch, verdict, features)
        if batch and not self.rests:
            self._commit_seconds.add((time.perf_counter() - began) / len(batch))

    def end(self, sequence: Sequence) -> None:
        self.proposals.drop(sequence)
        self._read.pop(sequence.id, None)
        self._end_run(sequence)
        self._own_gains.pop(sequence.id, None)
        self.drafter.end(sequence)

    def _pays(self, sequence: Sequence, expected: float, worth: Worth) -> bool:
        drafting = self._seconds.value + self._commit_seconds.value
        if drafting < CHEAP * worth.token:
            return True
        unread = max(0, self._unread(sequence) - FRESH)
        saved = (self._gain(sequence) - expected) * worth.token
        taken = drafting + self._verified.value * worth.node
        return saved - MARGIN * taken > self._reading.value * unread / self._usual_run.value

    def _gain(self, sequence: Sequence) -> float:
        return self._own_gains[sequence.id].given(HOPE * self._gains[sequence.params.greedy].value)

    def _learn_gain(self, sequence: Sequence, tokens: int) -> None:
        gains = self._gains[sequence.params.greedy]
        self._own_gains[sequence.id].add(tokens)
        gains.add(tokens)

    def _end_run(self, sequence: Sequence) -> None:
        if (run := self._runs.pop(sequence.id, 0)) > 0:
            self._usual_run.add(run)

    def _unread(self, sequence: Sequence) -> int:
        return len(sequence.tokens) - self._read.get(sequence.id, 0)

    def _learn_time(self, asked: Collection[Sequence], seconds: float) -> None:
        unread = [self._unread(sequence) for sequence in asked]
        each = seconds / len(asked)
        if max(unread) <= FRESH or each < self._seconds.value:  # without anything to read it would be less still
            self._seconds.add(each)
        else:
            self._reading.add(max(0.0, seconds - len(asked) * self._seconds.value), sum(unread))
        for sequence, new in zip(asked, unread, strict=True):
            if new > FRESH:
                self._end_run(sequence)
            self._runs[sequence.id] = self._runs.get(sequence.id, 0) + 1
            self._read[sequence.id] = len(sequence.tokens)
        self._next_try = time.perf_counter() + seconds / TRYING

    def _drafts(self, tree: TokenTree, budget: Collection[int]) -> list[tuple[Draft, list[int]]]:
        """The rows, and the depth of each node as an index into the rates, 0 for the root's children. A node without a
        score gets the product of the shares that came true at its depth and above.
        """
        drafts = []
        for draft, levels in zip(drafts_of(tree, budget), tree.levels, strict=True):
            kinds = [min(level, DEPTHS) - 1 for level in levels[: len(draft.tokens)]]
            if tree.scores is None:
                rates = self.proposals.rates.tolist()
                for node, (parent, kind) in enumerate(zip(draft.parents, kinds, strict=True)):
                    draft.scores[node] = (draft.scores[parent] if parent >= 0 else 1.0) * rates[kind]
            drafts.append((draft, kinds))
        return drafts
