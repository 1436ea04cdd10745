"""Measured control: as many draft nodes as pay, none if none do.

One decision a step for all sequences together. Every draft node has a probability of being accepted; a pass over more
rows takes longer, by the measured costs. Of all numbers of nodes (0 is one of them) the best wins; see `selection`.
Tree shape and depth follow from the same rule, since a child is never likelier than its parent.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field

from foredraft.drafters.averages import RunningMean
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.asking import Asking
from foredraft.engine.controller import Load
from foredraft.engine.decision import Decision, Reason
from foredraft.engine.drafting_time import DraftingTime
from foredraft.engine.exploring import Exploring
from foredraft.engine.profiler import PassCosts
from foredraft.engine.selection import GOODPUT, Objective, Selection, best_nodes, likeliest
from foredraft.tree import TokenTree
from foredraft.types import Sequence, StepReport

__all__ = ["AutoController"]

DOUBT = 0.8
"""A drafter whose drafts come true this much less often than its scores say is tried now and then all the same."""

SMALL = 0.15
"""Share of a step that must be saved for drafts to be cut short before they are made. What they are worth is known
better afterwards, and a draft of fewer nodes is a worse one at every depth if it could have been a tree."""

logger = logging.getLogger(__name__)


@dataclass
class AutoController:
    """Decides from measured costs, and from how the drafts of each request came true so far.

    costs       milliseconds of a pass
    hysteresis  a change between plain and speculative decoding must promise this much more
    explore     share of the time that may go to what is not expected to pay, to notice when it would: half of it to
                making drafts, half to verifying them, and to plain steps where drafts pay
    objective   what is maximised
    trims       whether drafts are cut short before they are made, for the time that making them takes; not if the
                drafter sees to that itself
    """

    costs: PassCosts
    hysteresis: float = 0.02
    explore: float = 0.01
    objective: Objective = GOODPUT
    trims: bool = True
    decision: Decision | None = None
    host_ms: float = 0.5
    """Of the host in a plain step."""
    drafts_host_ms: RunningMean = field(default_factory=lambda: RunningMean(weight=0.05))
    """What verifying drafts adds to it: more rows to pick from, a tree to walk."""
    drafting: DraftingTime = field(default_factory=DraftingTime)
    _asking: Asking = field(init=False)
    _exploring: Exploring = field(init=False)
    _records: dict[int, Acceptance] = field(default_factory=dict)
    _prior: Acceptance = field(default_factory=Acceptance)
    _plain: bool = False
    _explores: bool = False
    _withheld: Reason | None = None
    _left_out: Decision | None = None
    """The drafts that would have been verified in this step, which is plain to see what that takes."""
    _breadth: float = 1.0
    """Nodes per level of recent drafts: a chain has one, a tree takes its time for each level, however broad."""
    _levels: int = 0
    """Of the deepest draft that was proposed in this step."""
    _limited: bool = False
    """Whether it might have been deeper."""

    def __post_init__(self) -> None:
        self._asking = Asking(self.explore / 2)
        self._exploring = Exploring(self.explore / 2)

    def budgets(self, batch: Collection[Sequence], limits: Collection[int], load: Load) -> list[int]:
        """Where drafting costs nearly nothing, everything for the sequences that it pays for; else the depth at which
        expected tokens per second peak.
        """
        plain_ms = self._step_times(len(batch), load)(0)
        asked = self._asking.choose([sequence.id for sequence in batch], plain_ms / len(batch))
        wanted = any(limits)
        limits = [limit if sequence.id in asked else 0 for sequence, limit in zip(batch, limits, strict=True)]
        self._explores = False
        self._withheld = None if any(limits) else Reason.RESTS if wanted else Reason.NOT_WANTED
        self._levels, self._limited = 0, False
        if self._withheld or not self.trims or not self.drafting.deepest:
            return limits
        curves = [self._record(sequence).survival(limit) for sequence, limit in zip(batch, limits, strict=True)]
        best = self._best_depth(curves, load)
        self._explores = best == 0 and self._exploring.affordable
        if self._explores:
            best = 1
        self._withheld = None if best else Reason.DRAFTING_TOO_DEAR
        if best and (self.drafting.deepest - best) * self.drafting.per_level <= SMALL * plain_ms:
            return limits
        budget = math.ceil(best * self._breadth)
        self._limited = budget < max(limits)
        return [min(limit, budget) for limit in limits]

    def select(self, batch: Collection[Sequence], tree: TokenTree, load: Load) -> TokenTree:
        """Keep the likeliest nodes, as many as make tokens per second highest."""
        if not tree.width:
            self._decide_plain(len(batch), load)
            return tree
        rows = self._probabilities(batch, tree)
        drafted = sum(map(len, rows))
        self._levels = max(tree.heights)
        if not self._limited:
            self._breadth += 0.1 * (drafted / sum(tree.heights) - self._breadth)
        kept = self._choose(rows, drafted, load)
        if not load.prompt_rows and self._exploring.affordable:  # a pass that reads prompts would teach nothing
            kept = self._explore(kept, rows, self._doubtful(batch, tree), load)
        self._log(load)
        return tree.subtree(kept) if sum(map(len, kept)) < drafted else tree

    def observe(self, report: StepReport, tree: TokenTree) -> None:
        """Learn acceptance per request, pass times and overheads."""
        if report.batch and not report.prompt_rows:
            self._learn_times(report)
            self._asking.observe(self._saved_ms(report), report.draft_seconds * 1e3)
        if tree.width:
            self._learn_acceptance(report, tree)

    def forget(self, sequence: Sequence) -> None:
        self._records.pop(sequence.id, None)
        self._asking.forget(sequence.id)

    def _learn_acceptance(self, report: StepReport, tree: TokenTree) -> None:
        """Which drafts came true."""
        promised = tree.scores.sum(dim=1).tolist() if tree.scores is not None else [None] * report.batch
        for sequence_id, depth, accepted, promise in zip(
            report.sequence_ids, tree.heights, report.accepted, promised, strict=True
        ):
            if depth:
                self._records.setdefault(sequence_id, self._fresh()).observe(depth, accepted, promise)
                self._prior.observe(depth, accepted, promise)

    def _learn_times(self, report: StepReport) -> None:
        """Of the pass, of drafting, and of the host's work."""
        milliseconds, drafting_ms = report.verify_seconds * 1e3, report.draft_seconds * 1e3
        self.costs.observe(report.rows, report.cached_tokens, report.batch, milliseconds)
        host = min(report.host_seconds * 1e3, 10 * self.host_ms)
        if drafted := [own for own, nodes in zip(report.sequence_ids, report.drafted, strict=True) if nodes]:
            self.drafts_host_ms.add(max(0.0, host - self.host_ms))
            first = any(sequence_id not in self._records for sequence_id in drafted)  # it reads a whole prompt
            if self.trims and self._levels and not first:
                self.drafting.observe(self._levels, drafting_ms)
        else:
            self.host_ms += 0.05 * (host - self.host_ms)
        self._exploring.spent_ms += milliseconds
        if self._left_out is not None:  # what its tokens would have taken with drafts is known, what they took only now
            expected = report.batch * self._left_out.milliseconds / self._left_out.tokens
            self._exploring.explored_ms += max(0.0, milliseconds + host - expected)
            self._left_out = None
        if self._explores:
            self._exploring.explored_ms += drafting_ms

    def _saved_ms(self, report: StepReport) -> dict[int, float]:
        """The time of the tokens that were accepted, less what the drafts added to the step."""
        if self.decision is None:
            return dict.fromkeys(report.sequence_ids, 0.0)
        token_ms = self.decision.plain_milliseconds / report.batch
        node_ms = (self.decision.milliseconds - self.decision.plain_milliseconds) / max(1, sum(report.drafted))
        return {
            sequence_id: accepted * token_ms - drafted * node_ms
            for sequence_id, accepted, drafted in zip(report.sequence_ids, report.accepted, report.drafted, strict=True)
        }

    def _fresh(self) -> Acceptance:
        """A new request starts where the others are."""
        return Acceptance([self._prior.conditional(depth) for depth in range(1, self._prior.depths + 1)])

    def _record(self, sequence: Sequence) -> Acceptance:
        return self._records.get(sequence.id, self._prior)

    def _probabilities(self, batch: Collection[Sequence], tree: TokenTree) -> list[list[float]]:
        """P(node is accepted) for the real nodes of each row: the drafter's scores, corrected, or the record's."""
        if tree.scores is not None:
            return [
                [min(value * self._record(sequence).trust, 0.999) for value in scores[:size]]
                for sequence, scores, size in zip(batch, tree.scores.tolist(), tree.sizes, strict=True)
            ]
        rows = []
        for sequence, levels, height in zip(batch, tree.levels, tree.heights, strict=True):
            curve = self._record(sequence).survival(height)
            rows.append([curve[depth - 1] for depth in levels])
        return rows

    def _choose(self, rows: list[list[float]], drafted: int, load: Load) -> list[list[int]]:
        """The nodes to verify by sequence: what the objective prefers, none unless that beats decoding plainly."""
        batch = len(rows)

        step_ms = self._step_times(batch, load)
        chosen = best_nodes(rows, step_ms, self.objective)
        plain_ms = step_ms(0)
        reason = Reason.PAYS if chosen.nodes else Reason.DOES_NOT_PAY
        if self.objective.floor is None and chosen.nodes:
            needed = 1 + self.hysteresis if self._plain else 1.0
            if chosen.tokens / chosen.milliseconds < batch / plain_ms * needed:
                chosen = Selection([[] for _ in rows], 0, float(batch), plain_ms)
                reason = Reason.HELD_BACK
        self._plain = chosen.nodes == 0
        self.decision = Decision(
            chosen.nodes,
            chosen.tokens,
            chosen.milliseconds,
            float(batch),
            plain_ms,
            reason,
            drafted,
            self._pass_ms(batch, chosen.nodes, load),
        )
        return chosen.kept

    def _decide_plain(self, batch: int, load: Load) -> None:
        """Nothing was drafted."""
        step_ms = self._step_times(batch, load)(0)
        reason = self._withheld or Reason.NOTHING_DRAFTED
        pass_ms = self._pass_ms(batch, 0, load)
        self.decision = Decision(0, float(batch), step_ms, float(batch), step_ms, reason, 0, pass_ms)
        self._log(load)

    def _step_times(self, batch: int, load: Load) -> Callable[[int], float]:
        """Milliseconds of a step by its drafts, without what reading prompts in the same pass takes: that has to be
        done in any case, so an accepted draft saves no more there than in a step of its own.
        """
        whole_pass = self._pass_ms(batch, 0, load)
        plain = (self.costs(batch, load.cached, batch) if load.prompt_rows else whole_pass) + self.host_ms
        drafting = plain - whole_pass + self.drafts_host_ms.value
        return lambda nodes: drafting + self._pass_ms(batch, nodes, load) if nodes else plain

    def _pass_ms(self, batch: int, nodes: int, load: Load) -> float:
        """Of the target's pass."""
        return self.costs(batch + load.prompt_rows + nodes, load.cached, batch)

    def _log(self, load: Load) -> None:
        if self.decision is not None and logger.isEnabledFor(logging.DEBUG):
            about = (
                f"{self.decision.plain_tokens:g} sequences, {load.cached} cached tokens, {load.prompt_rows} prompt rows"
            )
            logger.debug("%s: %s [%s]", about, self.decision.sentence, self.decision.reason)

    def _best_depth(self, curves: list[list[float]], load: Load) -> int:
        """The depth at which a chain for every sequence gives the highest expected tokens per second."""
        batch = len(curves)
        step_ms = self._step_times(batch, load)
        best, best_rate = 0, batch / step_ms(0)
        tokens, nodes = float(batch), 0
        for depth, drafting_ms in enumerate(self.drafting.up_to(max(len(curve) for curve in curves)), start=1):
            reaching = [curve[depth - 1] for curve in curves if len(curve) >= depth]
            tokens += sum(reaching)
            nodes += len(reaching)
            milliseconds = step_ms(nodes) + drafting_ms
            if tokens / milliseconds > best_rate:
                best, best_rate = depth, tokens / milliseconds
        return best

    def _doubtful(self, batch: Collection[Sequence], tree: TokenTree) -> bool:
        """Whether trying drafts could teach anything: they have no scores, or their scores are no longer believed."""
        return tree.scores is None or any(self._record(sequence).trust < DOUBT for sequence in batch)

    def _explore(self, kept: list[list[int]], rows: list[list[float]], doubtful: bool, load: Load) -> list[list[int]]:
        """Instead of the nodes `kept`, those that teach something, where that is due: none, to see what a plain step
        takes, or a few that aren't expected to pay.
        """
        assert self.decision is not None
        chosen, batch = self.decision, len(rows)
        if any(kept):
            if self.costs.plain_is_stale:
                self._decide_otherwise(Reason.MEASURES, 0, batch, load)
                self._left_out = chosen
                return [[] for _ in rows]
            return kept
        if self.costs.plain_is_stale or not (doubtful or self.costs.drafted_is_stale):
            return kept
        count = min(batch if doubtful else math.ceil(self.costs.usual), chosen.drafted)
        self._decide_otherwise(Reason.EXPLORES, count, batch, load)
        self._exploring.explored_ms += max(0.0, self.decision.milliseconds - chosen.milliseconds)
        return likeliest(rows, count)

    def _decide_otherwise(self, reason: Reason, nodes: int, batch: int, load: Load) -> None:
        """No more than plain decoding's tokens are promised."""
        assert self.decision is not None
        self.decision = self.decision._replace(
            nodes=nodes,
            tokens=float(batch),
            milliseconds=self._step_times(batch, load)(nodes),
            reason=reason,
            pass_milliseconds=self._pass_ms(batch, nodes, load),
        )
