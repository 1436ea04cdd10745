"""Which draft nodes of a step to verify: a walk through all totals, from none to all of them.

Nodes are added one by one to the pass, over all sequences together, and after each the expected outcome is noted. The
best point of the walk wins. A node is never likelier than its parent, so the nodes taken up to any point form a tree.

Two objectives share the walk. *Goodput* takes the likeliest node first, which for every total holds the most expected
tokens, and stops where tokens per second peak. *Latency* takes the node that shortens the mean time per token of the
requests most, so that a request with few accepted drafts gets more of them than it would earn, and stops where that
mean is lowest - among the points whose tokens per second don't fall below a share of the best.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from foredraft.errors import ConfigError

__all__ = ["GOODPUT", "Objective", "Selection", "best_nodes", "likeliest", "parse_objective"]

DEFAULT_FLOOR = 0.9


class Objective(NamedTuple):
    """floor: None maximises tokens per second; else the share of the best tokens per second that may not be given up
    for latency.
    """

    floor: float | None = None


GOODPUT = Objective()


class Selection(NamedTuple):
    """Nodes kept per sequence, in all, the expected tokens of the step, and its milliseconds."""

    kept: list[list[int]]
    nodes: int
    tokens: float
    milliseconds: float


def best_nodes(rows: list[list[float]], step_ms: Callable[[int], float], objective: Objective = GOODPUT) -> Selection:
    """The best part of the drafts. rows[b][i] is the probability that node i of sequence b is accepted, with all its
    ancestors; step_ms(n) the milliseconds of the step with n nodes.
    """
    order = _by_probability(rows)
    best = fastest = max(_walk(rows, order, step_ms), key=lambda point: (point.rate, -point.nodes))
    if objective.floor is not None:
        fair = _by_latency(rows)
        least = objective.floor * fastest.rate
        allowed = [point for point in _walk(rows, fair, step_ms) if point.rate >= least]
        if allowed:
            order, best = fair, min(allowed, key=lambda point: (point.wait, point.nodes))
    return Selection(_kept(order[: best.nodes], len(rows)), best.nodes, best.tokens, best.milliseconds)


def likeliest(rows: list[list[float]], count: int) -> list[list[int]]:
    """The `count` likeliest nodes, by sequence."""
    return _kept(_by_probability(rows)[:count], len(rows))


def parse_objective(value: object) -> Objective:
    """ "goodput", "latency", or {"latency": floor}. Raises ConfigError."""
    if value in (None, "goodput"):
        return GOODPUT
    if value == "latency":
        return Objective(DEFAULT_FLOOR)
    floor = value.get("latency") if isinstance(value, dict) and len(value) == 1 else None
    if isinstance(floor, int | float) and not isinstance(floor, bool) and 0 <= floor <= 1:
        return Objective(float(floor))
    raise ConfigError(
        f"objective is {value!r}; give 'goodput', 'latency', or {{\"latency\": 0.9}} with the share of the best "
        "throughput to keep, from 0 to 1."
    )


class _Point(NamedTuple):
    """A walk after so many nodes; `inverse` is the sum over the sequences of 1 / (expected tokens)."""

    nodes: int
    tokens: float
    inverse: float
    milliseconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.milliseconds

    @property
    def wait(self) -> float:
        """In proportion to the mean time per token of a request."""
        return self.inverse * self.milliseconds


def _walk(rows: list[list[float]], order: list[tuple[int, int]], step_ms: Callable[[int], float]) -> list[_Point]:
    own = [1.0] * len(rows)
    tokens, inverse = float(len(rows)), float(len(rows))
    points = [_Point(0, tokens, inverse, step_ms(0))]
    for nodes, (row, node) in enumerate(order, start=1):
        before = own[row]
        own[row] += rows[row][node]
        inverse += 1 / own[row] - 1 / before
        tokens += rows[row][node]
        points.append(_Point(nodes, tokens, inverse, step_ms(nodes)))
    return points


def _kept(order: list[tuple[int, int]], batch: int) -> list[list[int]]:
    kept: list[list[int]] = [[] for _ in range(batch)]
    for row, node in order:
        kept[row].append(node)
    return kept


def _by_probability(rows: list[list[float]]) -> list[tuple[int, int]]:
    ranking = sorted((-value, row, node) for row, values in enumerate(rows) for node, value in enumerate(values))
    return [(row, node) for _, row, node in ranking]


def _by_latency(rows: list[list[float]]) -> list[tuple[int, int]]:
    """Always the node that lowers the sum of 1 / (expected tokens) most; within a sequence, the likeliest first."""
    ranked = [sorted(range(len(values)), key=lambda node: (-values[node], node)) for values in rows]
    tokens = [1.0] * len(rows)

    def gain(row: int, place: int) -> float:
        return 1 / (tokens[row] + rows[row][ranked[row][place]]) - 1 / tokens[row]

    waiting = [(gain(row, 0), row, 0) for row, nodes in enumerate(ranked) if nodes]
    heapify(waiting)
    order = []
    while waiting:
        _, row, place = heappop(waiting)
        node = ranked[row][place]
        order.append((row, node))
        tokens[row] += rows[row][node]
        if place + 1 < len(ranked[row]):
            heappush(waiting, (gain(row, place + 1), row, place + 1))
    return order
