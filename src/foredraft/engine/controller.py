"""How many draft nodes to verify: as many as pay, none if none do.

One decision a step for all sequences together. Every draft node has a probability of being accepted; a pass over more
rows takes longer, by the measured costs. Of all numbers of nodes (0 is one of them) the best wins; see `selection`.
Tree shape and depth follow from the same rule, since a child is never likelier than its parent.

The decision is made twice. `budgets` limits what is drafted, from each request's record, as drafting itself may cost;
`select` then looks at the actual drafts, which are now free, and keeps those worth verifying. Neither can change what
is emitted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from foredraft.engine.acceptance import Acceptance
from foredraft.engine.asking import Asking
from foredraft.engine.profiler import PassCosts
from foredraft.engine.selection import GOODPUT, Objective, Selection, best_nodes, likeliest
from foredraft.errors import ConfigError
from foredraft.tree import TokenTree
from foredraft.types import Sequence, StepReport

__all__ = ["AutoController", "Controller", "Decision", "FixedController", "parse_table"]

DOUBT = 0.8
"""A drafter whose drafts come true this much less often than its scores say is tried now and then all the same."""

logger = logging.getLogger(__name__)


class Decision(NamedTuple):
    """Why a step verified `nodes` drafts: expected tokens and milliseconds of the choice, and of decoding plainly."""

    nodes: int
    tokens: float
    milliseconds: float
    plain_tokens: float
    plain_milliseconds: float

    @property
    def gain(self) -> float:
        """Expected speedup of the choice over plain decoding of the same step."""
        return (self.tokens / self.milliseconds) / (self.plain_tokens / self.plain_milliseconds)


class Load(NamedTuple):
    """What the step computes anyway: prompt rows, and the cached tokens its rows attend to."""

    prompt_rows: int
    cached: int


class Controller(Protocol):
    """Decides before and after drafting, and learns from what steps report."""

    @property
    def decision(self) -> Decision | None: ...

    def budgets(self, batch: Collection[Sequence], limits: Collection[int], load: Load) -> list[int]:
        """Most nodes to draft for each sequence, at most `limits`."""
        ...

    def select(self, batch: Collection[Sequence], tree: TokenTree, load: Load) -> TokenTree:
        """The part of the tree that is worth verifying."""
        ...

    def observe(self, report: StepReport, tree: TokenTree) -> None:
        """A step is over; `tree` is what was verified."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence is over."""
        ...


@dataclass
class FixedController:
    """Verifies whatever is drafted, up to the configured length; `table` caps it by batch size, as in vLLM.

    table  (lowest batch, highest batch, tokens), for `num_speculative_tokens_per_batch_size`
    """

    table: tuple[tuple[int, int, int], ...] = ()
    decision: Decision | None = None

    def budgets(self, batch: Collection[Sequence], limits: Collection[int], load: Load) -> list[int]:
        caps = [tokens for low, high, tokens in self.table if low <= len(batch) <= high]
        return [min(limit, *caps) if caps else limit for limit in limits]

    def select(self, batch: Collection[Sequence], tree: TokenTree, load: Load) -> TokenTree:
        # Forced tokens (structured output) come on top of the budget, but a table is the user's word.
        return tree.prune(self.budgets(batch, [tree.width] * len(batch), load)) if self.table else tree

    def observe(self, report: StepReport, tree: TokenTree) -> None:
        return None

    def forget(self, sequence: Sequence) -> None:
        return None


@dataclass
class AutoController:
    """Measured control.

    costs       milliseconds of a pass
    hysteresis  a change between plain and speculative decoding must promise this much more
    explore     share of the time that may go to drafts which are not expected to pay, to notice when they would
    objective   what is maximised
    """

    costs: PassCosts
    hysteresis: float = 0.02
    explore: float = 0.01
    objective: Objective = GOODPUT
    decision: Decision | None = None
    host_ms: float = 0.5
    draft_ms_per_level: float = 0.0
    _asking: Asking = field(init=False)
    _records: dict[int, Acceptance] = field(default_factory=dict)
    _prior: Acceptance = field(default_factory=Acceptance)
    _spent_ms: float = 0.0
    _explored_ms: float = 0.0
    _plain: bool = False
    _explores: bool = False
    _breadth: float = 1.0
    """Nodes per level of recent drafts: a chain has one, a tree takes its time for each level, however broad."""

    def __post_init__(self) -> None:
        self._asking = Asking(self.explore)

    def budgets(self, batch: Collection[Sequence], limits: Collection[int], load: Load) -> list[int]:
        """Where drafting costs nearly nothing, everything for the sequences that it pays for; else the depth at which
        expected tokens per second peak.
        """
        plain_ms = self.costs(len(batch) + load.prompt_rows, load.cached, len(batch)) + self.host_ms
        asked = self._asking.choose([sequence.id for sequence in batch], plain_ms / len(batch))
        limits = [limit if sequence.id in asked else 0 for sequence, limit in zip(batch, limits, strict=True)]
        self._explores = False
        if not any(limits) or self.draft_ms_per_level < 0.01 * plain_ms:
            return limits
        curves = [self._record(sequence).survival(limit) for sequence, limit in zip(batch, limits, strict=True)]
        best = self._best_depth(curves, load)
        self._explores = best == 0 and self._may_explore()
        if self._explores:
            best = 1
        return [min(limit, math.ceil(best * self._breadth)) for limit in limits]

    def select(self, batch: Collection[Sequence], tree: TokenTree, load: Load) -> TokenTree:
        """Keep the likeliest nodes, as many as make tokens per second highest."""
        if not tree.width:
            self.decision = None
            return tree
        rows = self._probabilities(batch, tree)
        drafted = sum(map(len, rows))
        self._breadth += 0.1 * (drafted / int(tree.depths.max(dim=1).values.sum()) - self._breadth)
        kept, count = self._choose(rows, load)
        if count == 0 and self._doubtful(batch, tree) and self._may_explore():
            count = self._explore(min(len(batch), drafted), load)
            kept = likeliest(rows, count)
        return tree.subtree(kept) if count < drafted else tree

    def observe(self, report: StepReport, tree: TokenTree) -> None:
        """Learn acceptance per request, pass times and overheads."""
        if not report.batch or report.prompt_rows:
            return
        milliseconds = report.verify_seconds * 1e3
        self.costs.observe(report.rows, report.cached_tokens, report.batch, milliseconds)
        self.host_ms += 0.05 * (min(report.host_seconds * 1e3, 10 * self.host_ms) - self.host_ms)
        depths = tree.depths.max(dim=1).values.tolist() if tree.width else [0] * report.batch
        if deepest := max(depths, default=0):
            self.draft_ms_per_level += 0.1 * (report.draft_seconds * 1e3 / deepest - self.draft_ms_per_level)
        promised = tree.scores.sum(dim=1).tolist() if tree.scores is not None else [None] * report.batch
        for sequence_id, depth, accepted, promise in zip(
            report.sequence_ids, depths, report.accepted, promised, strict=True
        ):
            if depth:
                self._records.setdefault(sequence_id, self._fresh()).observe(depth, accepted, promise)
                self._prior.observe(depth, accepted, promise)
        self._asking.observe(self._saved_ms(report), report.draft_seconds * 1e3)
        self._spent_ms += milliseconds
        if self._explores:
            self._explored_ms += report.draft_seconds * 1e3
        if self.decision is not None and self.decision.gain < 1:
            self._explored_ms += self.decision.milliseconds - self.decision.plain_milliseconds

    def forget(self, sequence: Sequence) -> None:
        self._records.pop(sequence.id, None)
        self._asking.forget(sequence.id)

    def _saved_ms(self, report: StepReport) -> dict[int, float]:
        """The time of the tokens that were accepted, less what the drafts added to the pass."""
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
                for sequence, scores, size in zip(batch, tree.scores.tolist(), tree.sizes.tolist(), strict=True)
            ]
        rows = []
        for sequence, depths, size in zip(batch, tree.depths.tolist(), tree.sizes.tolist(), strict=True):
            curve = self._record(sequence).survival(max(depths))
            rows.append([curve[depth - 1] for depth in depths[:size]])
        return rows

    def _choose(self, rows: list[list[float]], load: Load) -> tuple[list[list[int]], int]:
        """The nodes to verify, by sequence and in all: what the objective prefers, none unless that beats decoding
        plainly.
        """
        batch = len(rows)
        width = batch + load.prompt_rows

        def step_ms(nodes: int) -> float:
            return self.costs(width + nodes, load.cached, batch) + self.host_ms

        chosen = best_nodes(rows, step_ms, self.objective)
        plain_ms = step_ms(0)
        needed = 1 + (self.hysteresis if self._plain and self.objective.floor is None else 0.0)
        if chosen.tokens / chosen.milliseconds < batch / plain_ms * needed and self.objective.floor is None:
            chosen = Selection([[] for _ in rows], 0, float(batch), plain_ms)
        self._plain = chosen.nodes == 0
        self.decision = Decision(chosen.nodes, chosen.tokens, chosen.milliseconds, float(batch), plain_ms)
        logger.debug("verify %d nodes: %s", chosen.nodes, self.decision)
        return chosen.kept, chosen.nodes

    def _best_depth(self, curves: list[list[float]], load: Load) -> int:
        """The depth at which a chain for every sequence gives the highest expected tokens per second."""
        batch = len(curves)
        width = batch + load.prompt_rows
        best, best_rate = 0, batch / (self.costs(width, load.cached, batch) + self.host_ms)
        tokens, nodes = float(batch), 0
        for depth in range(1, max(len(curve) for curve in curves) + 1):
            reaching = [curve[depth - 1] for curve in curves if len(curve) >= depth]
            tokens += sum(reaching)
            nodes += len(reaching)
            milliseconds = (
                self.costs(width + nodes, load.cached, batch) + self.host_ms + depth * self.draft_ms_per_level
            )
            if tokens / milliseconds > best_rate:
                best, best_rate = depth, tokens / milliseconds
        return best

    def _doubtful(self, batch: Collection[Sequence], tree: TokenTree) -> bool:
        """Whether trying drafts could teach anything: they have no scores, or their scores are no longer believed."""
        return tree.scores is None or any(self._record(sequence).trust < DOUBT for sequence in batch)

    def _explore(self, count: int, load: Load) -> int:
        """Verify a few drafts although they aren't expected to pay; the decision shows what that costs."""
        assert self.decision is not None
        plain_tokens, plain_ms = self.decision.plain_tokens, self.decision.plain_milliseconds
        batch = int(plain_tokens)
        milliseconds = self.costs(batch + load.prompt_rows + count, load.cached, batch) + self.host_ms
        self.decision = Decision(count, plain_tokens, milliseconds, plain_tokens, plain_ms)
        return count

    def _may_explore(self) -> bool:
        return self._explored_ms <= self.explore * self._spent_ms


def parse_table(value: object) -> tuple[tuple[int, int, int], ...]:
    """vLLM's `num_speculative_tokens_per_batch_size`: [[lowest, highest, tokens], ...] or {"1-16": 3, "17-": 0}."""
    rows: list[tuple[int, int, int]] = []
    try:
        if isinstance(value, dict):
            for span, tokens in value.items():
                low, _, high = str(span).partition("-")
                rows.append((int(low), int(high or (low if "-" not in str(span) else 1 << 30)), int(tokens)))
        elif isinstance(value, list):
            rows = [(int(low), int(high), int(tokens)) for low, high, tokens in value]
        else:
            raise ValueError
        if any(low < 1 or high < low or tokens < 0 for low, high, tokens in rows):
            raise ValueError
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"num_speculative_tokens_per_batch_size is {value!r}; "
            'give [[lowest, highest, tokens], ...] or {"1-4": 8, "5-16": 2}.'
        ) from error
    return tuple(sorted(rows))
