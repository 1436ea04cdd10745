"""Several drafters under one budget: their trees are blended, and the nodes most likely to be accepted are kept.

Drafters are asked in the order given, cheap ones first. One is skipped for a sequence when the tokens it would add to
what is expected already are not worth its time; both are measured as it goes. That is how a long suffix match overrides
a draft model. Drafters that say how sure they are (`TokenTree.scores`) are believed; for any other, the share of its
nodes that came true at each depth stands in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foredraft.drafters.base import BaseDrafter, Drafter, Features, Wants
from foredraft.drafters.blend import Blend
from foredraft.drafters.eagle import Eagle3Drafter
from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.open_head import facts_of
from foredraft.drafters.prediction import PredictionDrafter
from foredraft.drafters.proposals import Draft, Proposals, drafts_of, tree_of
from foredraft.drafters.recycling import RecyclingDrafter
from foredraft.errors import ConfigError
from foredraft.heads.shipped import shipped_head
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from foredraft.target.target import Target

__all__ = ["HybridDrafter"]

MOST_DRAFTERS = 6
DEPTHS = 16
FIRST_TRIES = 4
"""Calls before a drafter's time and usefulness count as known."""
PROBE, LONGEST_PROBE = 32, 512
"""A drafter that isn't worth asking is asked after so many steps all the same, to see whether that is still so. As long
as it is, each try waits twice as long as the last, since a head may read a whole prompt for it."""
CHEAP = 0.03
"""A drafter that takes less than this share of a token's time is always asked."""
MARGIN = 1.5
"""By how much a drafter must save more time than it takes: its nodes make the pass longer, too."""
HEAD_TREE = {"depth": 4, "top_k": 4, "nodes": 15}
WEIGHT = 0.1
"""Of the latest observation in a running average."""


@dataclass(eq=False)
class HybridDrafter(BaseDrafter):
    """Raises ConfigError for too few or too many drafters.

    num_speculative_tokens  most draft nodes per sequence and step, all drafters together
    drafters                what to combine, the cheapest first; by default suffix decoding, which uses a prediction if
                            there is one, and the head that comes with foredraft for the target, or else recycling
    """

    num_speculative_tokens: int = 32
    drafters: tuple[Drafter, ...] | None = None

    def __post_init__(self) -> None:
        given = self.drafters or ()
        if self.drafters is not None and not given:
            raise ConfigError("A hybrid without drafters drafts nothing; list some, or leave the key out.")
        if len(given) > MOST_DRAFTERS:
            raise ConfigError(f"A hybrid of {len(given)} drafters is too much; list at most {MOST_DRAFTERS}.")
        self._seconds_per_token = 0.0
        self._proposed = 0.0
        self._take(given)

    @property
    def wants(self) -> Wants:
        wants = [member.drafter.wants for member in self._members]
        layers = dict.fromkeys(layer for want in wants for layer in want.layers)
        candidates = [member.drafter.wants.candidates for member in self._members if not member.rests]
        return Wants(tuple(layers), max(candidates, default=0))

    def bind(self, target: Target) -> None:
        if self.drafters is None:
            self._take(_drafters_for(target))
        for member in self._members:
            member.drafter.bind(target)

    def _take(self, drafters: Collection[Drafter]) -> None:
        self._members = [_Member(drafter) for drafter in drafters]
        self._blend = Blend(len(drafters))

    def begin(self, sequence: Sequence) -> None:
        for member in self._members:
            member.drafter.begin(sequence)

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        drafts: list[list[Draft]] = [[] for _ in batch]
        expected = [0.0] * len(batch)
        for member in self._members:
            asked = [
                nodes if member.is_worth_asking(sequence.params.greedy, tokens, self._seconds_per_token) else 0
                for sequence, nodes, tokens in zip(batch, budget, expected, strict=True)
            ]
            member.rests = any(budget) and not any(asked)
            for row, draft in enumerate(member.propose(batch, asked)):
                drafts[row].append(draft)
                expected[row] = max(expected[row], sum(draft.scores))
        tree = tree_of(
            [
                self._blend.merge(sequence, row, nodes)
                for sequence, row, nodes in zip(batch, drafts, budget, strict=True)
            ]
        )
        self._proposed = time.perf_counter()
        return tree

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        if batch and self._proposed:
            seconds = (time.perf_counter() - self._proposed) / int(verdict.lengths.sum())
            self._seconds_per_token = _average(self._seconds_per_token, seconds) if self._seconds_per_token else seconds
            self._proposed = 0.0
        for sequence in batch:
            self._blend.judge(sequence)
        given = self.wants
        for member in self._members:
            member.commit(batch, verdict, _part(features, given, member.drafter.wants))

    def end(self, sequence: Sequence) -> None:
        self._blend.drop(sequence)
        for member in self._members:
            member.proposals.drop(sequence)
            member.drafter.end(sequence)


def _drafters_for(target: Target) -> tuple[Drafter, ...]:
    """Suffix decoding knows what the text says already; a head knows the model. Recycling adds what the target itself
    came up with."""
    if shipped_head("eagle3", facts_of(target)) is not None:
        return PredictionDrafter(), Eagle3Drafter(tree=HEAD_TREE)
    return PredictionDrafter(), RecyclingDrafter(recycling_from_prompt=False)


class _Member:
    """A drafter, what it costs, and what it is good for. It `rests` in steps that don't ask it; candidates, which cost
    time, aren't computed for it then.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.proposals = Proposals(HitRates([0.5] * DEPTHS))
        self.seconds = float("inf")
        self.usual = {True: 0.0, False: 0.0}
        """Accepted tokens of a draft, for greedy requests and for sampled ones, which are two different trades."""
        self.rests = False
        self._commit_seconds = 0.0
        self._tries = {True: 0, False: 0}
        self._passed_over = 0
        self._patience = PROBE

    def is_worth_asking(self, greedy: bool, expected: float, seconds_per_token: float) -> bool:
        """Whether its usual draft, compared with `expected` accepted tokens without it, saves more time than it
        takes.
        """
        cost = self.seconds + self._commit_seconds
        if self._tries[greedy] < FIRST_TRIES or cost < CHEAP * seconds_per_token:
            return True
        if (self.usual[greedy] - expected) * seconds_per_token > MARGIN * cost:
            self._patience = PROBE
            return True
        self._passed_over += 1
        if self._passed_over < self._patience:
            return False
        self._passed_over, self._patience = 0, min(2 * self._patience, LONGEST_PROBE)
        return True

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> list[Draft]:
        began = time.perf_counter()
        tree = self.drafter.propose(batch, budget)
        asked = sum(nodes > 0 for nodes in budget)
        if asked:
            seconds = (time.perf_counter() - began) / asked
            known = sum(self._tries.values()) >= FIRST_TRIES  # the first calls may have read a prompt
            self.seconds = _average(self.seconds, seconds) if known else min(self.seconds, seconds)
            for greedy in {seq.params.greedy for seq, nodes in zip(batch, budget, strict=True) if nodes}:
                self._tries[greedy] += 1
        return [
            self.proposals.note(sequence, draft, _depths(draft)) if nodes else draft
            for sequence, draft, nodes in zip(batch, self._drafts(tree, budget), budget, strict=True)
        ]

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        """Learn from the tokens that came."""
        for sequence, length in zip(batch, verdict.lengths.tolist(), strict=True):
            came_true = self.proposals.judge(sequence)
            if came_true is not None:
                greedy, gained = (
                    sequence.params.greedy,
                    min(came_true, length - 1),
                )  # what wasn't verified gained nothing
                self.usual[greedy] = _average(self.usual[greedy], gained)
        began = time.perf_counter()
        self.drafter.commit(batch, verdict, features)
        if batch and not self.rests:
            self._commit_seconds = _average(self._commit_seconds, (time.perf_counter() - began) / len(batch))

    def _drafts(self, tree: TokenTree, budget: Collection[int]) -> list[Draft]:
        """The rows; a node without a score gets the product of the shares that came true at its depth and above."""
        drafts = drafts_of(tree, budget)
        if tree.scores is None:
            rates = self.proposals.rates.tolist()
            for draft in drafts:
                for node, (parent, depth) in enumerate(zip(draft.parents, _depths(draft), strict=True)):
                    draft.scores[node] = (draft.scores[parent] if parent >= 0 else 1.0) * rates[depth]
        return drafts


def _depths(draft: Draft) -> list[int]:
    """Depth of each node, 0 for the root's children, as an index into a member's rates."""
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return [min(depth, DEPTHS - 1) for depth in depths]


def _average(old: float, new: float) -> float:
    return old + WEIGHT * (new - old)


def _part(features: Features, given: Wants, wanted: Wants) -> Features:
    """The features that one member asked for, in its own order; no candidates in a step that computed fewer."""
    candidates = hidden = None
    if features.candidates is not None and 0 < wanted.candidates <= features.candidates.shape[-1]:
        candidates = features.candidates[..., : wanted.candidates]
    if features.hidden is not None and wanted.layers:
        hidden = features.hidden
        if wanted.layers != given.layers:
            hidden = hidden[:, [given.layers.index(layer) for layer in wanted.layers]]
    return features._replace(candidates=candidates, hidden=hidden)
