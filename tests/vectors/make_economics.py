"""Writes economics.json: what every formula of the economics must give, for the Python package and for the page alike.

    python tests/vectors/make_economics.py

Independent of the code under test: closed forms in exact fractions, brute force where there is none. A vector is
{"function", "arguments", "result"}; names are those of `foredraft.economics`, the page says the same in camelCase.
Two names stand for a pass time applied to (rows, cached, batch): "roofline_time" and "measured_time".
"""

import json
from fractions import Fraction
from itertools import combinations, pairwise
from pathlib import Path

HERE = Path(__file__).parent
ACCEPTANCES = ["0", "1/10", "3/10", "1/2", "3/4", "9/10", "99/100", "999999/1000000", "1"]
LENGTHS = [0, 1, 2, 4, 7, 16]
COSTS = ["0", "1/200", "3/20", "2/5", "1", "3/2"]


def tokens(a: Fraction, g: int) -> Fraction:
    """The closed form with its limit at 1."""
    return Fraction(g + 1) if a == 1 else (1 - a ** (g + 1)) / (1 - a)


def ratio(a: Fraction, g: int, c: Fraction) -> Fraction:
    return tokens(a, g) / (1 + g * c)


def best(a: Fraction, c: Fraction, longest: int) -> int:
    """By trying every length."""
    return max(range(longest + 1), key=lambda g: (ratio(a, g, c), -g))


def root(total: Fraction, g: int) -> float | None:
    """The smallest float a with a + ... + a^g >= total - 1, judged in exact arithmetic on the floats themselves."""
    if total > g + 1:
        return None
    low, high = 0.0, 1.0
    if total == 1:
        return 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if tokens(Fraction(middle), g) < total else (low, middle)
    return high


def survivals(conditional: list[Fraction]) -> list[Fraction]:
    products, product = [], Fraction(1)
    for acceptance in conditional:
        product *= acceptance
        products.append(product)
    return products


def word(speedup: Fraction) -> str:
    if speedup >= Fraction(3, 2):
        return "Clear win"
    if speedup >= Fraction(105, 100):
        return "Modest"
    return "Break-even" if speedup >= Fraction(95, 100) else "A loss: paying for compute to go slower"


MACHINE = {"flops_per_second": 1e12, "bytes_per_second": 60e9}
MODEL = {
    "parameters": 596e6,
    "layers": 28,
    "query_width": 2048,
    "key_value_width": 1024,
    "bytes_per_parameter": 2.0,
    "cache_bytes": 2.0,
}
POINTS = [
    {
        "rows": rows,
        "cached": cached,
        "batch": batch,
        "milliseconds": float(10 + max(0, rows - 4) * 2 + cached // 256 + batch),
    }
    for batch in (1, 4)
    for cached in (0, 512, 2048)
    for rows in (batch, 2 * batch, 4 * batch, 9 * batch)
] + [
    {"rows": 4, "cached": 512, "batch": 1, "milliseconds": 13.5},
    {"rows": 4, "cached": 512, "batch": 1, "milliseconds": 99.0},
]


def roofline(rows: int, cached: int, batch: int) -> Fraction:
    flops, speed = Fraction(10**12), Fraction(60 * 10**9)
    linear = max(2 * 596 * 10**6 * rows / flops, 2 * 596 * 10**6 / speed)
    attention = max(4 * 28 * 2048 * rows * Fraction(cached, batch) / flops, 2 * 28 * 1024 * 2 * cached / speed)
    return 1000 * (linear + attention)


def interpolate(curve: list[tuple[int, Fraction]], x: int) -> Fraction:
    curve = sorted(curve)
    if x <= curve[0][0] or len(curve) == 1:
        return curve[0][1]
    pairs = list(pairwise(curve))
    (x0, y0), (x1, y1) = next((pair for pair in pairs if x <= pair[1][0]), pairs[-1])
    slope = (y1 - y0) / (x1 - x0)
    return y0 + slope * (x - x0) if x <= x1 else y1 + max(slope, Fraction(0)) * (x - x1)


def measured(rows: int, cached: int, batch: int) -> Fraction:
    def median(b: int, c: int, r: int) -> Fraction:
        times = sorted(Fraction(p["milliseconds"]) for p in POINTS if (p["batch"], p["cached"], p["rows"]) == (b, c, r))
        half = len(times) // 2
        return times[half] if len(times) % 2 else (times[half - 1] + times[half]) / 2

    def at(b: int, c: int) -> Fraction:
        return interpolate([(r, median(b, c, r)) for r in {p["rows"] for p in POINTS if p["batch"] == b}], rows)

    return interpolate([(b, interpolate([(c, at(b, c)) for c in (0, 512, 2048)], cached)) for b in (1, 4)], batch)


PASSES = {"roofline": roofline, "measured": measured}


def cycle(survival: list[Fraction], g: int, c: Fraction, kind: str, context: int, batch: int) -> dict[str, object]:
    plain = PASSES[kind](batch, batch * context, batch)
    milliseconds = PASSES[kind](batch * (g + 1), batch * context, batch) + g * c * plain
    expected = 1 + sum(survival[:g])
    return {
        "length": g,
        "tokens": expected,
        "cost": milliseconds / plain,
        "speedup": expected * plain / milliseconds,
        "milliseconds": milliseconds,
    }


def ranks(a: Fraction, s: Fraction, width: int) -> list[Fraction]:
    found: list[Fraction] = []
    for rank in range(width):
        found.append(a if rank == 0 else min((1 - sum(found)) * s, found[-1]))
    return found


def most_tokens(levels: list[list[Fraction]], nodes: int) -> Fraction:
    """The most expected tokens of any tree of `nodes` nodes, by trying every set of paths with all their parents."""
    paths: dict[tuple[int, ...], Fraction] = {(): Fraction(1)}
    for depth, level in enumerate(levels):
        parents = {path: chance for path, chance in paths.items() if len(path) == depth}
        paths |= {(*path, rank): chance * p for path, chance in parents.items() for rank, p in enumerate(level)}
    del paths[()]
    closed = [one for one in map(set, combinations(paths, nodes)) if all(path[:-1] in {(), *one} for path in one)]
    return 1 + max(sum(paths[path] for path in one) for one in closed)


def vectors() -> list[dict[str, object]]:
    found: list[dict[str, object]] = []

    def add(function: str, *arguments: object, result: object) -> None:
        found.append({"function": function, "arguments": list(arguments), "result": result})

    reference = Fraction(3, 4), 4, Fraction(3, 20)
    add("tokens_per_cycle", *reference[:2], result=tokens(*reference[:2]))
    add("cost_per_cycle", *reference[1:], result=1 + reference[1] * reference[2])
    add("speedup", *reference, result=ratio(*reference))
    add("verdict", ratio(*reference), result="Clear win")
    for a in map(Fraction, ACCEPTANCES):
        for g in LENGTHS:
            add("tokens_per_cycle", a, g, result=tokens(a, g))
            add("survival_curve", a, g, result=[a**i for i in range(1, g + 1)])
            if g:
                add("marginal_tokens", a, g, result=a**g)
                add("break_even_cost", a, g, result=(tokens(a, g) - 1) / g)
        for c in map(Fraction, COSTS):
            add("speedup", a, 4, c, result=ratio(a, 4, c))
            add("best_length", a, c, 16, result=best(a, c, 16))
            curve = survivals([a] * 16)
            add("waterline", curve, c, result=c * ratio(a, best(a, c, 16), c))
    for c in map(Fraction, COSTS):
        for g in LENGTHS:
            add("cost_per_cycle", g, c, result=1 + g * c)
            add("break_even_acceptance", g, c, result=root(1 + g * Fraction(float(c)), g))
    for total in map(Fraction, ("1", "3/2", "3", "5")):
        add("acceptance_for_tokens", total, 4, result=root(total, 4))
    add("acceptance_for_tokens", Fraction(11, 2), 4, result=None)
    for speedup in map(Fraction, ("0", "1/2", "15/16", "1", "17/16", "5/4", "23/16", "3/2", "7")):
        add("verdict", speedup, result=word(speedup))
    fading = [Fraction(f, 100) for f in (80, 70, 55, 40, 40, 10)]
    add("survival_from_conditional", fading, result=survivals(fading))
    for g in (0, 1, 3, 6, 9):
        add("tokens_from_survival", survivals(fading), g, result=1 + sum(survivals(fading)[:g]))
    for rows, cached, batch in ((1, 0, 1), (5, 128, 1), (40, 4096, 8), (320, 65536, 64), (9, 100000, 1)):
        add("roofline_time", MACHINE, MODEL, rows, cached, batch, result=roofline(rows, cached, batch))
    for rows, cached, batch in ((1, 0, 1), (3, 300, 1), (4, 512, 1), (20, 9000, 1), (6, 700, 2), (50, 4096, 7)):
        add("measured_time", POINTS, rows, cached, batch, result=measured(rows, cached, batch))
    for kind in PASSES:
        for g, context, batch in ((0, 512, 1), (4, 0, 1), (4, 512, 3), (2, 4096, 16)):
            point = cycle(survivals(fading), g, Fraction(1, 8), kind, context, batch)
            add("cycle", survivals(fading), g, Fraction(1, 8), kind, context, batch, result=point)
        for context, batch in ((128, 1), (128, 6), (8192, 64)):
            curve, c = survivals(fading), Fraction(1, 8)
            every = [cycle(curve, g, c, kind, context, batch) for g in range(7)]
            add(
                "best_cycle",
                curve,
                c,
                kind,
                context,
                batch,
                6,
                result=max(every, key=lambda p: (p["speedup"], -p["length"])),
            )
        for context in (0, 1024):
            curve, c = survivals(fading), Fraction(1, 32)
            lost = (b for b in range(1, 65) if cycle(curve, 4, c, kind, context, b)["speedup"] < 1)
            add("largest_paying_batch", curve, 4, c, kind, context, 64, result=next(lost, 65) - 1)
    for a, s in (("3/4", "1/2"), ("1/5", "9/10"), ("1", "1/2"), ("0", "1/2")):
        add("rank_probabilities", Fraction(a), Fraction(s), 5, result=ranks(Fraction(a), Fraction(s), 5))
    tree = {"parents": [-1, 0, -1, 1, 2, 0], "probabilities": [Fraction(p, 16) for p in (9, 8, 4, 12, 3, 5)]}
    chances = [Fraction(9, 16), Fraction(9, 32), Fraction(1, 4), Fraction(27, 128), Fraction(3, 64), Fraction(45, 256)]
    add("reach", tree, result=chances)
    add("tree_tokens", tree, result=1 + sum(chances))
    add("tree_depth", tree, result=3)
    add("tree_tokens", {"parents": [], "probabilities": []}, result=1)
    for a, s in (("5/8", "1/2"), ("1/4", "3/4")):
        levels = [ranks(Fraction(a), Fraction(s), 2) for _ in range(3)]
        levels = [[p * (8 - depth) / 8 for p in level] for depth, level in enumerate(levels)]
        for nodes in (1, 3, 5):
            add("best_tree_tokens", levels, nodes, result=most_tokens(levels, nodes))
    add("goodput", [survivals(fading), [Fraction(1, 2)] * 2, []], [3, 1, 0], Fraction(25),
        result=1000 * (3 + sum(survivals(fading)[:3]) + Fraction(1, 2)) / 25)  # fmt: skip
    return found


def plain(value: object) -> object:
    """Fractions as the nearest float; whole arguments such as lengths stay whole."""
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def text() -> str:
    lines = ",\n  ".join(json.dumps(plain(vector)) for vector in vectors())
    return f'{{"vectors": [\n  {lines}\n]}}\n'


if __name__ == "__main__":
    (HERE / "economics.json").write_text(text(), encoding="utf-8")
