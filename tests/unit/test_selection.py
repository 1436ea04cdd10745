"""The choice of draft nodes against trying them all."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.engine.selection import GOODPUT, Objective, best_nodes, likeliest, parse_objective
from foredraft.errors import ConfigError

CHAINS = st.lists(
    st.lists(st.floats(0.05, 0.95), max_size=3).map(
        lambda values: list(itertools.accumulate(values, lambda a, b: a * b))
    ),
    min_size=1,
    max_size=3,
)


def machine(fixed: float, per_row: float, batch: int) -> Callable[[int], float]:
    return lambda nodes: fixed + per_row * (batch + nodes)


def expected(rows: list[list[float]], lengths: tuple[int, ...]) -> list[float]:
    return [1 + sum(row[:length]) for row, length in zip(rows, lengths, strict=True)]


@given(CHAINS, st.floats(0.01, 3.0))
def test_goodput_is_the_best_of_all_lengths(rows: list[list[float]], per_row: float) -> None:
    step_ms = machine(3.0, per_row, len(rows))
    chosen = best_nodes(rows, step_ms)
    every = itertools.product(*(range(len(row) + 1) for row in rows))
    best = max(sum(expected(rows, lengths)) / step_ms(sum(lengths)) for lengths in every)
    assert chosen.tokens / chosen.milliseconds == pytest.approx(best)
    assert all(sorted(nodes) == list(range(len(nodes))) for nodes in chosen.kept)


@given(CHAINS, st.floats(0.01, 3.0))
def test_latency_without_a_floor_is_never_worse_for_the_mean_request(rows: list[list[float]], per_row: float) -> None:
    step_ms = machine(3.0, per_row, len(rows))

    def time_per_token(kept: list[list[int]]) -> float:
        tokens = expected(rows, tuple(len(nodes) for nodes in kept))
        return step_ms(sum(map(len, kept))) * sum(1 / count for count in tokens)

    patient, eager = best_nodes(rows, step_ms), best_nodes(rows, step_ms, Objective(0.0))
    assert time_per_token(eager.kept) <= time_per_token(patient.kept) + 1e-9


def test_a_floor_keeps_most_of_the_throughput_and_latency_helps_the_slow_request() -> None:
    rows = [[0.95, 0.9, 0.86, 0.81], [0.35, 0.2, 0.1, 0.05]]
    step_ms = machine(3.0, 1.0, 2)
    best = best_nodes(rows, step_ms)
    for floor in (0.0, 0.9, 0.97, 1.0):
        chosen = best_nodes(rows, step_ms, Objective(floor))
        assert chosen.tokens / chosen.milliseconds >= floor * best.tokens / best.milliseconds - 1e-9
    assert len(best.kept[1]) == 0
    assert len(best_nodes(rows, machine(3.0, 0.8, 2), Objective(0.0)).kept[1]) >= 1


def test_the_likeliest_nodes() -> None:
    assert likeliest([[0.5, 0.1], [0.9, 0.4]], 3) == [[0], [0, 1]]


def test_objectives_are_read() -> None:
    assert parse_objective(None) == parse_objective("goodput") == GOODPUT
    assert parse_objective({"latency": 0.5}) == Objective(0.5)
    assert parse_objective("latency").floor == 0.9


@pytest.mark.parametrize("value", ["speed", {"latency": 2}, {"latency": True}, {"goodput": 1}, 3, {}])
def test_a_wrong_objective_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ConfigError, match="give 'goodput', 'latency'"):
        parse_objective(value)
