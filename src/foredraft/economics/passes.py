"""The general form: what a cycle costs when a pass over more rows takes longer.

A pass over `rows` new tokens of `batch` sequences that hold `cached` tokens together takes T(rows, cached, batch)
milliseconds. With g drafts for each of B sequences,

    speedup = tokens(g) * T(B, cached, B) / (T(B (g + 1), cached, B) + draft time(g))

The textbook form is the special case T(B (g + 1)) = T(B): true while compute is idle, false under load.
`MeasuredPasses` reads T from measured points, `roofline` computes it from a machine and a model; both are plain
functions of three integers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

from foredraft.economics.chain import LONGEST, tokens_from_survival
from foredraft.economics.checks import check_cost, check_count, check_length, check_positive
from foredraft.errors import ConfigError

PassTime = Callable[[int, int, int], float]
"""Milliseconds of one target pass, from (rows, cached tokens of all sequences, batch)."""

DraftTime = Callable[[int], float]
"""Milliseconds to draft that many tokens for every sequence of the batch."""


class Cycle(NamedTuple):
    """One operating point: `cost` is in plain passes at the same load, `milliseconds` is the whole cycle."""

    length: int
    tokens: float
    cost: float
    speedup: float
    milliseconds: float


def cycle(
    survival: Sequence[float], length: int, pass_time: PassTime, draft_time: DraftTime, *, context: int, batch: int
) -> Cycle:
    """A cycle of `length` drafts for each of `batch` sequences with `context` cached tokens each."""
    check_length(length)
    check_count(context, "context", smallest=0)
    check_count(batch, "batch")
    cached = batch * context
    plain = pass_time(batch, cached, batch)
    check_positive(plain, "time of a plain pass")
    drafting = draft_time(length) if length else 0.0
    check_cost(drafting, "draft time")
    milliseconds = pass_time(batch * (length + 1), cached, batch) + drafting
    tokens = tokens_from_survival(survival, length)
    return Cycle(length, tokens, milliseconds / plain, tokens * plain / milliseconds, milliseconds)


def best_cycle(
    survival: Sequence[float],
    pass_time: PassTime,
    draft_time: DraftTime,
    *,
    context: int,
    batch: int,
    longest: int = LONGEST,
) -> Cycle:
    """The cycle with the highest speedup over lengths 0..longest, the shortest of equals.

    Every length is tried: measured pass times rise in steps, so the first draft that doesn't pay need not be the last.
    """
    check_length(longest, "longest draft length")
    cycles = [
        cycle(survival, length, pass_time, draft_time, context=context, batch=batch) for length in range(longest + 1)
    ]
    return max(cycles, key=lambda point: (point.speedup, -point.length))


def relative_draft_time(draft_cost: float, pass_time: PassTime, *, context: int, batch: int) -> DraftTime:
    """A draft time of `draft_cost` plain passes per token, the plain pass being the one at this load."""
    check_cost(draft_cost)
    check_count(batch, "batch")
    milliseconds = draft_cost * pass_time(batch, batch * context, batch)
    return lambda length: length * milliseconds


def largest_paying_batch(
    survival: Sequence[float],
    length: int,
    draft_cost: float,
    pass_time: PassTime,
    *,
    context: int,
    largest: int = 1024,
) -> int:
    """The last batch size before a fixed `length` first turns slower than plain: 0 if at once, `largest` if never."""
    for batch in range(1, largest + 1):
        draft_time = relative_draft_time(draft_cost, pass_time, context=context, batch=batch)
        if cycle(survival, length, pass_time, draft_time, context=context, batch=batch).speedup < 1:
            return batch - 1
    return largest


class PassPoint(NamedTuple):
    """One measured pass."""

    rows: int
    cached: int
    batch: int
    milliseconds: float


@dataclass(frozen=True)
class MeasuredPasses:
    """T(rows, cached, batch) through measured points: straight lines between neighbours in rows, then cached, then
    batch.

    Repeated points count as their median. Below the first point of an axis T is that point's value; beyond the last
    one the line through the last two goes on, but never falls.
    """

    points: tuple[PassPoint, ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ConfigError("the profile holds no measured pass: measure with `foredraft plan MODEL --measure`")
        for point in self.points:
            check_count(point.rows, "rows of a measured pass")
            check_count(point.cached, "cached tokens of a measured pass", smallest=0)
            check_count(point.batch, "batch of a measured pass")
            check_positive(point.milliseconds, "time of a measured pass")

    @classmethod
    def from_cells(cls, cells: Iterable[Mapping[str, object]]) -> "MeasuredPasses":
        """From the cells of a bench or profile JSON: those of kind "pass", with rows, cached, pass_ms and maybe batch
        (1)."""
        return cls(tuple(_point(cell) for cell in cells if cell.get("kind") == "pass"))

    @cached_property
    def _curves(self) -> list[tuple[int, list[tuple[int, list[tuple[int, float]]]]]]:
        """Points sorted and nested: batch -> cached -> (rows, median milliseconds)."""
        nested: dict[int, dict[int, dict[int, list[float]]]] = {}
        for rows, cached, batch, milliseconds in sorted(self.points):
            nested.setdefault(batch, {}).setdefault(cached, {}).setdefault(rows, []).append(milliseconds)
        return [
            (
                batch,
                [(cached, [(r, median(times)) for r, times in rows.items()]) for cached, rows in sorted(by.items())],
            )
            for batch, by in sorted(nested.items())
        ]

    def __call__(self, rows: int, cached: int, batch: int) -> float:
        """Milliseconds of a pass over `rows` tokens of `batch` sequences holding `cached` tokens together."""
        return _along(
            [(b, _along([(c, _along(curve, rows)) for c, curve in curves], cached)) for b, curves in self._curves],
            batch,
        )


def _point(cell: Mapping[str, object]) -> PassPoint:
    values = [cell.get("rows"), cell.get("cached", 0), cell.get("batch", 1), cell.get("pass_ms")]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < 4:
        raise ConfigError(
            f"a pass needs the numbers rows, cached and pass_ms, but one reads {dict(cell)}: measure again"
        )
    rows, cached, batch, milliseconds = numbers
    for name, count, smallest in (("rows", rows, 1), ("cached", cached, 0), ("batch", batch, 1)):
        check_count(count, f"{name} of a measured pass", smallest)  # type: ignore[arg-type]
    return PassPoint(int(rows), int(cached), int(batch), float(milliseconds))


def _along(curve: Sequence[tuple[int, float]], x: int) -> float:
    """Piecewise linear through `curve` (sorted by its first entry)."""
    if x <= curve[0][0] or len(curve) == 1:
        return curve[0][1]
    right = next((i for i, (position, _) in enumerate(curve) if position >= x), len(curve) - 1)
    (x0, y0), (x1, y1) = curve[right - 1], curve[right]
    slope = (y1 - y0) / (x1 - x0)
    return y0 + slope * (x - x0) if x <= x1 else y1 + max(slope, 0.0) * (x - x1)
