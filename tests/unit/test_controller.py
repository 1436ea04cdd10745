"""The controller against machines whose optimum is known."""

from __future__ import annotations

import random

import pytest

from foredraft.economics import MeasuredPasses, PassPoint
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.auto_controller import AutoController
from foredraft.engine.controller import FixedController, Load, parse_table
from foredraft.engine.decision import Decision, Reason
from foredraft.engine.drafting_time import DraftingTime
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
    total = sum(kept.sizes)
    # nodes are taken one by one, so the last level may be cut in the middle
    assert batch * (wanted - 1) <= total <= batch * (wanted + 1)
    if wanted == 0:
        assert total < batch


def test_nothing_is_verified_when_rows_cost_as_much_as_passes() -> None:
    controller = AutoController(machine(0, 10))
    assert controller.select(sequences(4), chains(4, 8, 0.9), NOTHING_ELSE).width == 0


def test_drafts_are_worth_no_more_beside_a_prompt() -> None:
    """However long the prompt makes the pass, an accepted draft saves only what its token would take otherwise."""
    for acceptance in (0.2, 0.5, 0.8):
        alone, beside = (
            AutoController(machine(10, 2), host_ms=0.0)
            .select(sequences(2), chains(2, 8, acceptance), Load(prompt_rows=prompt_rows, cached=0))
            .sizes
            for prompt_rows in (0, 60)
        )
        assert alone == beside


def test_what_drafts_add_to_a_pass_is_learnt() -> None:
    """A machine whose plain passes are faster than the table, and whose passes with drafts are slower."""
    costs, real = machine(10, 0.1), machine(9, 0.3)
    for turn in range(400):
        rows = 4 + turn % 2 * 12
        costs.observe(rows, 0, 4, real(rows, 0, 4))
    assert costs(4, 0, 4) == pytest.approx(real(4, 0, 4), rel=0.02)
    assert costs(16, 0, 4) == pytest.approx(real(16, 0, 4), rel=0.02)
    assert costs(10, 0, 4) == pytest.approx(real(10, 0, 4), rel=0.02)


def test_a_pass_that_was_disturbed_hardly_counts() -> None:
    costs = machine(10, 1)
    costs.observe(1, 0, 1, 1000.0)
    assert costs(1, 0, 1) < 1.25 * 11


def test_drafts_that_only_looked_slow_for_a_while_are_made_again() -> None:
    """Passes with drafts took thrice their time while another program ran. Drafts are worth it, but none is made."""
    costs = PassCosts(machine(10, 0.5).table)
    controller = AutoController(costs, host_ms=0.1)
    for _ in range(40):
        costs.observe(9, 0, 1, 3 * machine(10, 0.5)(9, 0, 1))
    batch, tree = sequences(1), chains(1, 8, 0.2)
    assert controller.select(batch, tree, NOTHING_ELSE).width == 0
    for _ in range(2000):
        kept = controller.select(batch, tree, NOTHING_ELSE)
        report(controller, kept, [0], machine(10, 0.5), noise=1.0)
        if kept.width:
            break
    assert kept.width > 0


def test_a_plain_pass_is_measured_where_all_steps_have_drafts() -> None:
    """By the table drafts pay, but plain passes are faster than it says."""
    table, real = machine(10, 1.0), machine(10, 1.0)
    real.plain = 0.75
    controller = AutoController(table, host_ms=0.1)
    batch, tree, reasons = sequences(1), chains(1, 8, 0.25), []
    for _ in range(600):
        kept = controller.select(batch, tree, NOTHING_ELSE)
        assert controller.decision is not None
        reasons.append(controller.decision.reason)
        report(controller, kept, [0], real, noise=1.0)
    assert reasons[:64] == [Reason.PAYS] * 64
    assert Reason.MEASURES in reasons
    assert reasons[-100:].count(Reason.PAYS) == 0


def test_a_plain_pass_that_surprises_is_measured_again_at_once() -> None:
    """The table has plain passes at nearly twice their time: a few looks must do, not one in 64 steps each."""
    table, real = machine(10, 1.0), machine(10, 1.0)
    real.plain = 0.6
    controller = AutoController(table, host_ms=0.1)
    batch, tree, drafted = sequences(1), chains(1, 8, 0.2), 0
    for _ in range(200):
        kept = controller.select(batch, tree, NOTHING_ELSE)
        drafted += kept.width > 0
        report(controller, kept, [0], real, noise=1.0)
    assert 64 <= drafted < 90


def test_passes_with_one_draft_and_with_many_leave_the_plain_pass_alone() -> None:
    """The table is right about one draft and wrong about eight: no plain pass was seen to be slow."""
    costs, real = machine(10, 1.0), machine(10, 1.0)
    for turn in range(400):
        nodes = (1, 8)[turn % 2]
        costs.observe(1 + nodes, 0, 1, real(1 + nodes, 0, 1) * (1.0 if nodes == 1 else 0.85))
    assert costs(1, 0, 1) == pytest.approx(real(1, 0, 1))
    assert 0.85 < costs.drafted < 1.0


def test_likelier_rows_get_more_nodes() -> None:
    tree = TokenTree.from_nodes(
        [([1, 2, 3, 4], [-1, 0, 1, 2])] * 2, [[0.95, 0.9, 0.85, 0.8], [0.1, 0.01, 0.001, 0.0001]]
    )
    kept = AutoController(machine(10, 2)).select(sequences(2), tree, NOTHING_ELSE)
    assert kept.sizes == [4, 0]


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
    rows = batch + sum(tree.sizes)
    controller.observe(
        StepReport(
            method="simulated",
            batch=batch,
            rows=rows,
            prompt_rows=0,
            cached_tokens=0,
            sequence_ids=list(range(batch)),
            drafted=tree.sizes,
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
        for size in kept.sizes:
            count = 0
            while count < size and draw.random() < truth:
                count += 1
            accepted.append(count)
        report(controller, kept, accepted, costs, noise=draw.lognormvariate(0, 0.1))
        tokens += sum(1 + count for count in accepted)
        milliseconds += costs(batch + sum(kept.sizes), 0, batch)
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


def test_each_decision_has_its_reason_and_numbers() -> None:
    batch = sequences(2)

    def decided(controller: AutoController, tree: TokenTree, limits: list[int]) -> Decision:
        controller.budgets(batch, limits, NOTHING_ELSE)
        controller.select(batch, tree, NOTHING_ELSE)
        assert controller.decision is not None
        return controller.decision

    good = decided(AutoController(machine(10, 0.1), host_ms=1.0), chains(2, 4, 0.9), [4, 4])
    assert (good.reason, good.nodes, good.drafted, good.plain_tokens) == (Reason.PAYS, 8, 8, 2.0)
    assert good.tokens == pytest.approx(2 * sum(0.9**depth for depth in range(5)))
    assert good.pass_milliseconds == pytest.approx(11.0)
    assert good.milliseconds == pytest.approx(12.0)
    assert good.gain > 1

    bad = decided(AutoController(machine(0, 10)), chains(2, 4, 0.9), [4, 4])
    assert (bad.reason, bad.nodes, bad.drafted, bad.gain) == (Reason.DOES_NOT_PAY, 0, 8, 1.0)
    nothing, none = TokenTree.empty(2), [0, 0]
    assert decided(AutoController(machine(10, 0.1)), nothing, [4, 4]).reason is Reason.NOTHING_DRAFTED
    assert decided(AutoController(machine(10, 0.1)), nothing, none).reason is Reason.NOT_WANTED
    dear = AutoController(machine(10, 0.1), drafting=DraftingTime({1: 1000.0}))
    dear._exploring.explored_ms = 1.0
    assert decided(dear, nothing, [4, 4]).reason is Reason.DRAFTING_TOO_DEAR


def test_a_change_must_promise_more_than_a_little() -> None:
    controller = AutoController(machine(10, 1.0), hysteresis=0.5, host_ms=0.0)
    controller.select(sequences(1), chains(1, 1, 0.01), NOTHING_ELSE)
    assert controller.decision is not None
    assert controller.decision.reason is Reason.DOES_NOT_PAY
    controller.select(sequences(1), chains(1, 1, 0.3), NOTHING_ELSE)  # 1.3 tokens in 12 ms, not 1 in 11
    assert (controller.decision.reason, controller.decision.nodes) == (Reason.HELD_BACK, 0)


def test_trying_drafts_is_no_promise() -> None:
    """A drafter without scores, of which nothing good is known."""
    controller = AutoController(machine(0, 10), explore=0.5)
    chain = chains(1, 4, 0.9)
    controller.select(sequences(1), TokenTree(chain.tokens, chain.parents), NOTHING_ELSE)
    assert controller.decision is not None
    assert controller.decision.reason is Reason.EXPLORES
    assert controller.decision.gain < 1


def test_nothing_is_tried_beside_a_prompt() -> None:
    """The pass's time would tell nothing of what drafts add."""
    chain = chains(1, 4, 0.9)
    unscored = TokenTree(chain.tokens, chain.parents)
    controller = AutoController(machine(0, 10), explore=0.5)
    assert controller.select(sequences(1), unscored, Load(prompt_rows=30, cached=0)).width == 0
    assert controller.select(sequences(1), unscored, NOTHING_ELSE).width > 0


def test_acceptance_is_learnt_beside_prompts() -> None:
    """On a server that reads prompts all the time, nearly every step has some rows of them."""
    controller = AutoController(machine(10, 1.0), host_ms=0.1)
    batch, beside = sequences(1), Load(prompt_rows=30, cached=0)
    tree = chains(1, 4, 0.9)
    for _ in range(40):
        kept = controller.select(batch, tree, beside)
        nodes = sum(kept.sizes)
        step = StepReport("x", 1, 31 + nodes, 30, 0, [0], [nodes], [0], verify_seconds=0.04)
        controller.observe(step, kept)
    assert controller.select(batch, tree, beside).width == 0


def test_a_drafter_without_success_is_left_alone_for_a_while() -> None:
    controller = AutoController(machine(10, 4), host_ms=0.1)
    [sequence] = batch = sequences(1)
    reasons = []
    for _ in range(60):
        controller.budgets(batch, [4], NOTHING_ELSE)
        controller.select(batch, TokenTree.empty(1), NOTHING_ELSE)
        assert controller.decision is not None
        reasons.append(controller.decision.reason)
        controller.observe(
            StepReport("x", 1, 1, 0, 0, [sequence.id], [0], [0], draft_seconds=0.001, verify_seconds=0.01),
            TokenTree.empty(1),
        )
    assert set(reasons) == {Reason.NOTHING_DRAFTED, Reason.RESTS}
    assert reasons.count(Reason.RESTS) > reasons.count(Reason.NOTHING_DRAFTED)


def test_decisions_are_logged_at_level_debug(caplog: pytest.LogCaptureFixture) -> None:
    controller = AutoController(machine(10, 0.1))
    with caplog.at_level("INFO", "foredraft"):
        controller.select(sequences(1), chains(1, 4, 0.9), NOTHING_ELSE)
    assert not caplog.messages
    with caplog.at_level("DEBUG", "foredraft"):
        controller.select(sequences(1), chains(1, 4, 0.9), Load(prompt_rows=3, cached=99))
    [message] = caplog.messages
    assert message.startswith("1 sequences, 99 cached tokens, 3 prompt rows: Verifies 4 of 4 drafts, ")
    assert message.endswith("[pays]")


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
