"""Several drafters under one budget: their trees are blended, and the nodes most likely to be accepted are kept.

Drafters are asked in the order given, cheap ones first: the first always, another one for the sequences in which the
tokens it would add to what is expected already are worth its time (`member`). That is how a long suffix match overrides
a draft model. Drafters that say how sure they are (`TokenTree.scores`) are believed; for any other, the share of its
nodes that came true at each depth stands in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from foredraft.drafters.averages import RunningMean, Slope
from foredraft.drafters.base import BaseDrafter, Drafter, Features, Wants
from foredraft.drafters.blend import Blend
from foredraft.drafters.eagle import Eagle3Drafter
from foredraft.drafters.member import Member, Worth
from foredraft.drafters.open_head import facts_of
from foredraft.drafters.prediction import PredictionDrafter
from foredraft.drafters.proposals import Draft, tree_of
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
HEAD_TREE = {"depth": 4, "top_k": 4, "nodes": 15}


@dataclass(eq=False)
class HybridDrafter(BaseDrafter):
    """Raises ConfigError for too few or too many drafters.

    num_speculative_tokens  most draft nodes per sequence and step, all drafters together
    drafters                what to combine, the cheapest first; by default suffix decoding, which uses a prediction if
                            there is one, and the head that comes with foredraft for the target, or else recycling
    """

    num_speculative_tokens: int = 32
    drafters: tuple[Drafter, ...] | None = None
    frugal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given = self.drafters or ()
        if self.drafters is not None and not given:
            raise ConfigError("A hybrid without drafters drafts nothing; list some, or leave the key out.")
        if len(given) > MOST_DRAFTERS:
            raise ConfigError(f"A hybrid of {len(given)} drafters is too much; list at most {MOST_DRAFTERS}.")
        self._token_seconds = RunningMean(weight=0.1)
        self._step_seconds = Slope()
        """By verified nodes."""
        self._began = self._proposed = 0.0
        self._take(given)

    @property
    def wants(self) -> Wants:
        candidates = [member.wants.candidates for member in self._members if not member.rests]
        return Wants(self._layers, max(candidates, default=0))

    @cached_property
    def _layers(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(layer for member in self._members for layer in member.wants.layers))

    def bind(self, target: Target) -> None:
        if self.drafters is None:
            self._take(_drafters_for(target))
        for member in self._members:
            member.drafter.bind(target)

    def _take(self, drafters: Collection[Drafter]) -> None:
        self._members = [Member(drafter) for drafter in drafters]
        self._blend = Blend(len(drafters))

    def begin(self, sequence: Sequence) -> None:
        begun: list[Member] = []
        try:
            for member in self._members:
                member.drafter.begin(sequence)
                begun.append(member)
        except Exception:
            with suppress(Exception):  # the first failure is the one to tell
                self._end(begun, sequence)
            raise

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        self._began = time.perf_counter()
        drafts: list[list[Draft]] = [[] for _ in batch]
        expected = [0.0] * len(batch)
        worth = Worth(self._token_seconds.value, max(0.0, self._step_seconds.value))
        for member in self._members:
            first = member is self._members[0]
            asked = budget if first else member.choose(batch, budget, expected, worth)
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
        if self._proposed:
            self._learn(batch, verdict.lengths.tolist(), features)
        given = self.wants
        for member in self._members:
            member.commit(batch, verdict, _part(features, given, member.wants))

    def _learn(self, batch: Collection[Sequence], lengths: Collection[int], features: Features) -> None:
        """What the step took, unless prompts were read in it, which take their own time; and which drafts came true.
        `lengths` are the tokens that came.
        """
        emitted, verified = sum(lengths), features.tree.sizes
        if sum(features.counts) <= emitted:
            now = time.perf_counter()
            self._token_seconds.add((now - self._began) / emitted)
            self._step_seconds.add(sum(verified), now - self._proposed)
        self._proposed = 0.0
        for sequence in batch:
            self._blend.judge(sequence)
        for member in self._members:
            member.learn(batch, lengths, verified)

    def end(self, sequence: Sequence) -> None:
        self._blend.drop(sequence)
        self._end(self._members, sequence)

    def _end(self, members: Collection[Member], sequence: Sequence) -> None:
        """All of them, whatever one raises; then the first of the errors."""
        errors: list[Exception] = []
        for member in members:
            try:
                member.end(sequence)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _drafters_for(target: Target) -> tuple[Drafter, ...]:
    """Suffix decoding knows what the text says already; a head knows the model. Recycling adds what the target itself
    came up with."""
    if shipped_head("eagle3", facts_of(target)) is not None:
        return PredictionDrafter(), Eagle3Drafter(tree=HEAD_TREE)
    return PredictionDrafter(), RecyclingDrafter(recycling_from_prompt=False)


def _part(features: Features, given: Wants, wanted: Wants) -> Features:
    """The features that one member asked for, in its own order; no candidates in a step that computed fewer."""
    if wanted == given:
        return features
    candidates = hidden = None
    if features.candidates is not None and 0 < wanted.candidates <= features.candidates.shape[-1]:
        candidates = features.candidates[..., : wanted.candidates]
    if features.hidden is not None and wanted.layers:
        hidden = features.hidden
        if wanted.layers != given.layers:
            hidden = hidden[:, [given.layers.index(layer) for layer in wanted.layers]]
    return features._replace(candidates=candidates, hidden=hidden)
