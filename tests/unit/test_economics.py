"""The arithmetic of speculation: against the shared vectors, in exact fractions, and under bad input."""

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft import economics as e
from foredraft.errors import ConfigError

VECTORS = Path(__file__).parents[1] / "vectors"
LOADED = json.loads((VECTORS / "economics.json").read_text(encoding="utf-8"))["vectors"]

unhurried = settings(deadline=None)  # a busy machine is no failure
probabilities = st.fractions(0, 1, max_denominator=40)
costs = st.fractions(0, 3, max_denominator=40)
lengths = st.integers(0, 12)


# --- the shared vectors


def _roofline(machine: dict[str, float], model: dict[str, float]) -> e.PassTime:
    return e.roofline(e.Machine(**machine), e.ModelShape(**model))  # type: ignore[arg-type]


def _measured(points: list[dict[str, float]]) -> e.PassTime:
    return e.MeasuredPasses(tuple(e.PassPoint(**point) for point in points))  # type: ignore[arg-type]


def _by_kind(kind: str) -> e.PassTime:
    """The pass time that cycle vectors mean by a word: the one that the time vectors describe."""
    arguments = next(v["arguments"] for v in LOADED if v["function"] == f"{kind}_time")
    return _roofline(*arguments[:2]) if kind == "roofline" else _measured(arguments[0])


def _cycle(survival: list[float], length: int, cost: float, kind: str, context: int, batch: int) -> dict[str, float]:
    time = _by_kind(kind)
    draft_time = e.relative_draft_time(cost, time, context=context, batch=batch)
    return e.cycle(survival, length, time, draft_time, context=context, batch=batch)._asdict()


def _best_cycle(
    survival: list[float], cost: float, kind: str, context: int, batch: int, longest: int
) -> dict[str, float]:
    time = _by_kind(kind)
    draft_time = e.relative_draft_time(cost, time, context=context, batch=batch)
    return e.best_cycle(survival, time, draft_time, context=context, batch=batch, longest=longest)._asdict()


def _largest(survival: list[float], length: int, cost: float, kind: str, context: int, largest: int) -> int:
    return e.largest_paying_batch(survival, length, cost, _by_kind(kind), context=context, largest=largest)


def _tree(tree: dict[str, list[float]]) -> e.TreeShape[float]:
    return e.TreeShape(tuple(map(int, tree["parents"])), tuple(tree["probabilities"]))


ADAPTED: dict[str, Callable[..., object]] = {
    "roofline_time": lambda machine, model, *point: _roofline(machine, model)(*point),
    "measured_time": lambda points, *point: _measured(points)(*point),
    "cycle": _cycle,
    "best_cycle": _best_cycle,
    "largest_paying_batch": _largest,
    "reach": lambda tree: list(e.reach(_tree(tree))),
    "tree_tokens": lambda tree: e.tree_tokens(_tree(tree)),
    "tree_depth": lambda tree: e.tree_depth(_tree(tree)),
    "best_tree_tokens": lambda levels, nodes: e.tree_tokens(e.best_tree(levels, nodes)),
}


def same(found: object, wanted: object) -> bool:
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict) and found.keys() == wanted.keys() and all(same(found[k], wanted[k]) for k in wanted)
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list | tuple)
            and len(found) == len(wanted)
            and all(same(f, w) for f, w in zip(found, wanted, strict=True))
        )
    if isinstance(wanted, float):
        return isinstance(found, int | float) and math.isclose(found, wanted, rel_tol=1e-12, abs_tol=1e-15)
    return found == wanted


@pytest.mark.parametrize("function", sorted({vector["function"] for vector in LOADED}))
def test_shared_vectors(function: str) -> None:
    chosen = [vector for vector in LOADED if vector["function"] == function]
    formula = ADAPTED.get(function) or getattr(e, function)
    wrong = [(v, found) for v in chosen if not same(found := formula(*v["arguments"]), v["result"])]
    assert not wrong, f"{len(wrong)} of {len(chosen)} differ, first: {wrong[0]}"


def test_vectors_are_current() -> None:
    spec = importlib.util.spec_from_file_location("make_economics", VECTORS / "make_economics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (VECTORS / "economics.json").read_text(encoding="utf-8") == module.text()


# --- the textbook form, exactly


def test_reference_point() -> None:
    a, g, c = Fraction(3, 4), 4, Fraction(3, 20)
    assert e.tokens_per_cycle(a, g) == Fraction(781, 256)
    assert e.cost_per_cycle(g, c) == Fraction(8, 5)
    assert e.speedup(a, g, c) == Fraction(3905, 2048)
    assert (
        f"{e.tokens_per_cycle(0.75, 4):.2f} {e.cost_per_cycle(4, 0.15):.2f} {e.speedup(0.75, 4, 0.15):.2f}"
        == "3.05 1.60 1.91"
    )
    assert e.verdict(e.speedup(0.75, 4, 0.15)) == "Clear win"
    assert e.best_length(0.75, 0.15) == 4


@unhurried
@given(probabilities, lengths)
def test_closed_form(a: Fraction, g: int) -> None:
    closed = Fraction(g + 1) if a == 1 else (1 - a ** (g + 1)) / (1 - a)
    assert e.tokens_per_cycle(a, g) == closed == e.tokens_from_survival(e.survival_curve(a, g), g)


@unhurried
@given(lengths, costs)
def test_limits(g: int, c: Fraction) -> None:
    assert e.tokens_per_cycle(Fraction(0), g) == 1
    assert e.tokens_per_cycle(Fraction(1), g) == g + 1
    assert e.speedup(Fraction(1, 2), 0, c) == 1


@unhurried
@given(probabilities, costs, lengths)
def test_marginal_rule_and_best_length(a: Fraction, c: Fraction, g: int) -> None:
    gains = e.speedup(a, g + 1, c) > e.speedup(a, g, c)
    assert gains == (e.marginal_tokens(a, g + 1) > c * e.speedup(a, g, c))
    speedups = [e.speedup(a, length, c) for length in range(13)]
    assert e.best_length(a, c, 12) == speedups.index(max(speedups))


@unhurried
@given(st.lists(probabilities, max_size=10), costs)
def test_waterline_counts_the_best_length(conditional: list[Fraction], c: Fraction) -> None:
    survival = e.survival_from_conditional(conditional)
    speedups = [e.tokens_from_survival(survival, g) / e.cost_per_cycle(g, c) for g in range(len(survival) + 1)]
    above = sum(chance > e.waterline(survival, c) for chance in survival)
    assert above == speedups.index(max(speedups))


@unhurried
@given(st.integers(1, 12), costs)
def test_break_even_acceptance_is_tight(g: int, c: Fraction) -> None:
    found = e.break_even_acceptance(g, c)
    if found is None:
        assert e.speedup(Fraction(1), g, c) < 1
        return
    assert e.speedup(Fraction(found), g, c) >= 1 - Fraction(1, 10**15)
    if found > 0:
        assert e.speedup(Fraction(math.nextafter(found, 0) - 1e-15), g, c) < 1


@unhurried
@given(probabilities, st.integers(1, 12))
def test_break_even_cost_is_exact(a: Fraction, g: int) -> None:
    assert e.speedup(a, g, e.break_even_cost(a, g)) == 1


def test_verdict_thresholds_belong_to_the_better_word() -> None:
    words = {1.5: "Clear win", 1.05: "Modest", 0.95: "Break-even", 0: "A loss: paying for compute to go slower"}
    assert {at: e.verdict(at) for at in words} == words
    assert [e.verdict(math.nextafter(at, 0)) for at in (1.5, 1.05, 0.95)] == list(words.values())[1:]


# --- pass times, roofline, goodput, trees


def flat(rows: int, cached: int, batch: int) -> float:
    return 10.0


@unhurried
@given(st.floats(0, 1), lengths, st.floats(0, 2), st.integers(1, 64), st.integers(0, 4096))
def test_general_form_with_a_flat_pass_is_the_textbook(a: float, g: int, c: float, batch: int, context: int) -> None:
    draft_time = e.relative_draft_time(c, flat, context=context, batch=batch)
    point = e.cycle(e.survival_curve(a, 12), g, flat, draft_time, context=context, batch=batch)
    assert point.speedup == pytest.approx(e.speedup(a, g, c), rel=1e-12)
    assert point.cost == pytest.approx(e.cost_per_cycle(g, c), rel=1e-12)


def test_a_step_in_the_pass_time_does_not_hide_what_lies_beyond() -> None:
    """A pass twice as long from 3 rows on, and flat after that: length 1 pays, 2 doesn't, 8 pays most."""
    survival = e.survival_curve(0.95, 8)
    point = e.best_cycle(
        survival, lambda rows, *_: 1.0 if rows < 3 else 2.0, lambda _: 0.0, context=0, batch=1, longest=8
    )
    assert point.length == 8


def test_compute_bound_batches_lose_and_long_contexts_win_again() -> None:
    time = e.roofline(e.MACHINES["h200"], e.MODELS["llama-3.1-8b"])
    survival = e.survival_curve(0.75, 4)
    paying = [e.largest_paying_batch(survival, 4, 0.15, time, context=c, largest=512) for c in (0, 1024, 16384)]
    assert 50 < paying[0] < paying[1] < paying[2] == 512


def test_roofline_is_flat_until_the_ridge_and_linear_after() -> None:
    machine, model = e.Machine(100.0, 10.0), e.ModelShape(1000.0, 1, 1, 1)
    time = e.roofline(machine, model)
    assert [time(rows, 0, 1) for rows in (1, 10, 20)] == [200_000.0, 200_000.0, 400_000.0]
    assert model.weight_bytes == 2000
    assert model.cache_bytes_per_token == 4


def test_measured_passes_take_medians_and_never_fall_beyond_the_last_point() -> None:
    cells: list[dict[str, object]] = [
        {"kind": "pass", "rows": 1, "cached": 0, "pass_ms": 5.0},
        {"kind": "pass", "rows": 1, "cached": 0, "pass_ms": 50.0},
        {"kind": "pass", "rows": 1, "cached": 0, "pass_ms": 6.0},
        {"kind": "pass", "rows": 3, "cached": 0, "pass_ms": 4.0},
        {"kind": "drafter", "rows": 1, "pass_ms": -1},
    ]
    time = e.MeasuredPasses.from_cells(cells)
    assert [time(rows, 0, 1) for rows in (1, 2, 3, 30)] == [6.0, 5.0, 4.0, 4.0]


@unhurried
@given(
    st.lists(st.lists(st.floats(0, 1), max_size=3).map(e.survival_from_conditional), min_size=1, max_size=3),
    st.lists(st.floats(0.1, 4), min_size=10, max_size=10),
)
def test_best_lengths_is_the_optimum(survivals: list[tuple[float, ...]], increments: list[float]) -> None:
    """Against every combination, for step times of any shape."""
    times = [sum(increments[: n + 1]) for n in range(10)]
    chosen = e.best_lengths(survivals, lambda drafts: times[drafts])
    rates = [
        e.goodput(survivals, combination, times[sum(combination)])
        for combination in product(*(range(len(curve) + 1) for curve in survivals))
    ]
    assert e.goodput(survivals, chosen, times[sum(chosen)]) == pytest.approx(max(rates), rel=1e-12)


@unhurried
@given(probabilities, st.integers(1, 8))
def test_a_chain_is_a_tree(a: Fraction, g: int) -> None:
    chain = e.TreeShape(tuple(range(-1, g - 1)), (a,) * g)
    assert e.tree_tokens(chain) == e.tokens_per_cycle(a, g)
    assert e.tree_depth(chain) == g
    assert e.best_tree([(a,)] * g, g) == chain


@unhurried
@given(probabilities, probabilities, st.integers(1, 6))
def test_rank_probabilities_are_ordered_and_share_one(a: Fraction, second: Fraction, width: int) -> None:
    ranks = e.rank_probabilities(a, second, width)
    assert list(ranks) == sorted(ranks, reverse=True)
    assert ranks[0] == a
    assert sum(ranks) <= 1


@unhurried
@given(probabilities, probabilities, st.integers(1, 20))
def test_a_larger_best_tree_extends_the_smaller(a: Fraction, second: Fraction, nodes: int) -> None:
    levels = [e.rank_probabilities(a, second, 4)] * 5
    small, large = e.best_tree(levels, nodes), e.best_tree(levels, nodes + 1)
    assert large.parents[:nodes] == small.parents
    assert e.tree_tokens(large) >= e.tree_tokens(small)


# --- bad input: one sentence with the value and the remedy

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: e.speedup(1.5, 4, 0.15), "acceptance is 1.5"),
        (lambda: e.speedup(-0.1, 4, 0.15), "acceptance is -0.1"),
        (lambda: e.speedup(NAN, 4, 0.15), "acceptance is nan"),
        (lambda: e.speedup(0.5, -1, 0.15), "draft length is -1"),
        (lambda: e.speedup(0.5, 10**9, 0.15), "draft length is 1000000000"),
        (lambda: e.speedup(0.5, 2.5, 0.15), "draft length is 2.5"),  # type: ignore[arg-type]
        (lambda: e.speedup(0.5, 4, -0.15), "draft cost is -0.15"),
        (lambda: e.speedup(0.5, 4, INFINITY), "draft cost is inf"),
        (lambda: e.break_even_cost(0.5, 0), "from 1 to"),
        (lambda: e.marginal_tokens(0.5, 0), "draft position is 0"),
        (lambda: e.acceptance_for_tokens(0.5, 4), "always yields at least 1"),
        (lambda: e.tokens_from_survival([0.5, 0.6], 2), "survival rises from 0.5 to 0.6 at draft 2"),
        (lambda: e.survival_from_conditional([0.5, 2.0]), "acceptance of draft 2 is 2.0"),
        (lambda: e.verdict(-1.0), "speedup is -1.0"),
        (lambda: e.Machine(0.0, 1.0), "FLOP/s of the machine is 0.0"),
        (lambda: e.ModelShape(1e9, 0, 1, 1), "layers of the model is 0"),
        (lambda: e.MeasuredPasses(()), "no measured pass"),
        (lambda: e.MeasuredPasses.from_cells([{"kind": "pass", "rows": "four", "pass_ms": 1.0}]), "'four'"),
        (lambda: e.MeasuredPasses.from_cells([{"kind": "pass", "rows": 1.5, "cached": 0, "pass_ms": 1.0}]), "rows"),
        (lambda: e.MeasuredPasses.from_cells([{"kind": "pass", "rows": 1, "cached": 0, "pass_ms": 0.0}]), "0.0"),
        (lambda: e.goodput([[0.5]], [1, 1], 5.0), "1 rows but 2 draft lengths"),
        (lambda: e.goodput([[0.5]], [1], 0.0), "time of a step is 0.0"),
        (lambda: e.reach(e.TreeShape((0,), (0.5,))), "node 0 has parent 0"),
        (lambda: e.reach(e.TreeShape((-1, -1), (0.7, 0.7))), "add up to 1.4"),
        (lambda: e.reach(e.TreeShape((-1,), ())), "1 parents but 0 probabilities"),
        (lambda: e.best_tree([(0.2, 0.4)], 2), "likelier than guess 1"),
        (lambda: e.cycle([0.5], 1, flat, lambda _: -1.0, context=0, batch=1), "draft time is -1.0"),
        (lambda: e.cycle([0.5], 1, flat, lambda _: 1.0, context=0, batch=0), "batch is 0"),
    ],
)
def test_bad_input(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_imports_neither_torch_nor_numpy() -> None:
    program = "import sys, foredraft.economics; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
