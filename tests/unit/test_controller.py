"""The controller against machines whose optimum is known."""

from __future__ import annotations

import random

import pytest

from foredraft.economics import MeasuredPasses, PassPoint
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.controller import AutoController, FixedController, Load, parse_table
from foredraft.engine.profiler import PassCosts
from foredraft.errors import ConfigError
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, Sequence, StepReport

NOTHING_ELSE = Load(prompt_rows=0, cached=0)


def sequences(count: int) -> list[Sequence]:
    return [Sequence(id=index, params=SamplingParams(), tokens=[1], prompt_length=1, seed=0) for index in range(count)]


def machine(fixed: float, per_row: float) -> PassCosts:
    """A pass takes fixed + per_row * rows milliseconds, whatever the batch."""
    return PassCosts(
        MeasuredPasses(tuple(PassPoint(rows, 0, 1, fixed + per_row * rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128)))
    )


def chains(batch: int, length: int, acceptance: float) -> TokenTree:
    scores = [[acceptance**depth for depth in range(1, length + 1)]] * batch
    return TokenTree.from_nodes([(list(range(length)), list(range(-1, length - 1)))] * batch, scores)


def best_length(costs: PassCosts, batch: int, longest: int, acceptance: float, host_ms: float) -> int:
    """By trying them all."""

    def rate(length: int) -> float:
        tokens = batch * sum(acceptance**depth for depth in range(length + 1))
        return tokens / (costs(batch * (1 + length), 0, batch) + host_ms)

    return max(range(longest + 1), key=rate)


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize(("fixed", "per_row"), [(10, 0.01), (10, 0.5), (10, 3), (1, 10)])
def test_the_number_of_nodes_is_the_best_one(acceptance: float, batch: int, fixed: float, per_row: float) -> None:
    costs = machine(fixed, per_row)
    controller = AutoController(costs, host_ms=0.0)
    kept = controller.select(sequences(batch), chains(batch, 8, acceptance), NOTHING_ELSE)
    wanted = best_length(costs, batch, 8, acceptance, 0.0)
    total = int(kept.sizes.sum())
    # nodes are taken one by one, so the last level may be cut in the middle
    assert batch * (wanted - 1) <= total <= batch * (wanted + 1)
    if wanted == 0:
        assert total < batch


def test_nothing_is_verified_when_rows_cost_as_much_as_passes() -> None:
    controller = AutoController(machine(0, 10))
    assert controller.select(sequences(4), chains(4, 8, 0.9), NOTHING_ELSE).width == 0


def test_likelier_rows_get_more_nodes() -> None:
    tree = TokenTree.from_nodes(
        [([1, 2, 3, 4], [-1, 0, 1, 2])] * 2, [[0.95, 0.9, 0.85, 0.8], [0.1, 0.01, 0.001, 0.0001]]
    )
    kept = AutoController(machine(10, 2)).select(sequences(2), tree, NOTHING_ELSE)
    assert kept.sizes.tolist() == [4, 0]


def test_what_is_kept_is_a_tree() -> None:
    draw = random.Random(3)
    parents = [draw.randrange(-1, node) if node else -1 for node in range(24)]
    scores: list[float] = []
    for parent in parents:
        scores.append((scores[parent] if parent >= 0 else 1.0) * draw.random())
    tree = TokenTree.from_nodes([(list(range(24)), parents)], [scores])
    for per_row in (0.1, 0.5, 1, 2, 4):
        kept = AutoController(machine(10, per_row)).select(sequences(1), tree, NOTHING_ELSE)
        kept.validate(1, 24)


def report(controller: AutoController, tree: TokenTree, accepted: list[int], costs: PassCosts, noise: float) -> None:
    batch = tree.batch
    rows = batch + int(tree.sizes.sum())
    controller.observe(
        StepReport(
            method="simulated",
            batch=batch,
            rows=rows,
            prompt_rows=0,
            cached_tokens=0,
            sequence_ids=list(range(batch)),
            drafted=tree.sizes.tolist(),
            accepted=accepted,
            verify_seconds=costs(rows, 0, batch) * noise / 1e3,
            host_seconds=0.0001,
        ),
        tree,
    )


def simulate(costs: PassCosts, acceptance: list[float], *, batch: int = 1, scored: bool = True, seed: int = 0) -> float:
    """Tokens per second of the controlled machine, as a share of the best fixed length's at each moment."""
    draw = random.Random(seed)
    controller = AutoController(PassCosts(costs.table), host_ms=0.1)
    tokens = milliseconds = best_tokens = best_milliseconds = 0.0
    for truth in acceptance:
        tree = chains(batch, 8, truth)
        if not scored:
            tree = TokenTree(tree.tokens, tree.parents)
        kept = controller.select(sequences(batch), tree, NOTHING_ELSE)
        accepted = []
        for size in kept.sizes.tolist():
            count = 0
            while count < size and draw.random() < truth:
                count += 1
            accepted.append(count)
        report(controller, kept, accepted, costs, noise=draw.lognormvariate(0, 0.1))
        tokens += sum(1 + count for count in accepted)
        milliseconds += costs(batch + int(kept.sizes.sum()), 0, batch)
        length = best_length(costs, batch, 8, truth, 0.0)
        best_tokens += batch * sum(truth**depth for depth in range(length + 1))
        best_milliseconds += costs(batch * (1 + length), 0, batch)
    return (tokens / milliseconds) / (best_tokens / best_milliseconds)


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("truth", [0.05, 0.4, 0.8, 0.95])
@pytest.mark.parametrize("per_row", [0.1, 1.0, 6.0])
def test_regret_is_bounded_under_a_noisy_clock(scored: bool, truth: float, per_row: float) -> None:
    """Within 7% of the best length known in hindsight, over 1,500 steps with a clock that is off by 10%."""
    assert simulate(machine(10, per_row), [truth] * 1500, scored=scored) > 0.93


@pytest.mark.parametrize("scored", [True, False])
def test_it_follows_a_change_of_the_text_both_ways(scored: bool) -> None:
    drift = ([0.9] * 400 + [0.05] * 400) * 3
    assert simulate(machine(10, 1.5), drift, scored=scored) > 0.85


def test_it_comes_back_after_a_load_peak() -> None:
    controller = AutoController(machine(5, 2), host_ms=0.1)
    assert controller.select(sequences(16), chains(16, 4, 0.3), NOTHING_ELSE).width == 0
    assert controller.select(sequences(1), chains(1, 4, 0.9), NOTHING_ELSE).width > 0


def test_exploration_costs_little() -> None:
    """A drafter without scores that is never right: little time goes to trying it again once it is known."""
    costs = machine(10, 4)
    share = simulate(costs, [0.0] * 4000, scored=False)
    assert share > 0.98


def test_an_outlier_hardly_moves_the_costs() -> None:
    costs = machine(10, 0.1)
    before = costs(1, 0, 1)
    costs.observe(1, 0, 1, 100 * before)
    assert costs(1, 0, 1) < 1.3 * before


def test_costs_follow_a_machine_that_slows_down() -> None:
    costs = machine(10, 0.1)
    before = costs(1, 0, 1)
    for _ in range(100):
        costs.observe(1, 0, 1, 2 * before)
    assert costs(1, 0, 1) == pytest.approx(2 * before, rel=0.01)


def test_acceptance_falls_with_depth_and_learns() -> None:
    record = Acceptance()
    for _ in range(200):
        record.observe(deepest=6, accepted=3, promised=6.0)
    curve = record.survival(6)
    assert curve == sorted(curve, reverse=True)
    assert curve[2] > 0.9
    assert curve[3] < 0.1
    assert record.trust == pytest.approx(0.5, abs=0.01)


def test_a_table_caps_by_batch_size() -> None:
    controller = FixedController(parse_table({"1-4": 8, "5-16": 2, "17-": 0}))
    for batch, cap in ((1, 8), (4, 8), (5, 2), (17, 0), (500, 0)):
        assert controller.budgets(sequences(batch), [10] * batch, NOTHING_ELSE) == [cap] * batch


def test_a_table_may_be_a_list() -> None:
    assert parse_table([[1, 4, 8], [5, 16, 2]]) == ((1, 4, 8), (5, 16, 2))


@pytest.mark.parametrize("value", [3, "1-4", {"a": 1}, [[1, 2]], {"4-1": 3}, [[0, 4, 1]], {"1-4": -1}])
def test_a_malformed_table_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ConfigError, match="give"):
        parse_table(value)
