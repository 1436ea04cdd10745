"""A batch of unlike requests: committed tokens per second, and how to split one budget of drafts over the rows.

A step over R rows with g_r drafts each commits sum_r (1 + s_r1 + ... + s_rg) tokens in expectation. Its time depends on
the total number of draft nodes. So the drafts are added one by one, always the one most likely to count; after each the
goodput is noted, and the best point of the walk wins. Survival falls with depth, hence for every total the walk holds
the most expected tokens, and the answer is the optimum, whatever shape the time has.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from foredraft.economics.chain import tokens_from_survival
from foredraft.economics.checks import check_positive, check_survival
from foredraft.errors import ConfigError


def goodput(survivals: Sequence[Sequence[float]], lengths: Sequence[int], milliseconds: float) -> float:
    """Expected committed tokens per second of one step that takes `milliseconds`; one survival curve and length per
    row."""
    if len(survivals) != len(lengths):
        raise ConfigError(f"there are {len(survivals)} rows but {len(lengths)} draft lengths: give one length per row")
    check_positive(milliseconds, "time of a step")
    tokens = sum(tokens_from_survival(curve, length) for curve, length in zip(survivals, lengths, strict=True))
    return 1000 * tokens / milliseconds


def best_lengths(survivals: Sequence[Sequence[float]], step_time: Callable[[int], float]) -> tuple[int, ...]:
    """Draft lengths, one per row, that maximise goodput; of equals, the fewest drafts.

    `step_time(n)` is the milliseconds of a step with n drafts in total over all rows.
    """
    for curve in survivals:
        check_survival(curve)
    lengths = [0] * len(survivals)
    tokens = float(len(survivals))
    best, best_rate = tuple(lengths), tokens / _positive(step_time(0))
    waiting = [(-curve[0], row) for row, curve in enumerate(survivals) if curve]
    heapify(waiting)
    for drafts in range(1, sum(len(curve) for curve in survivals) + 1):
        gain, row = heappop(waiting)
        lengths[row] += 1
        tokens -= gain
        if lengths[row] < len(survivals[row]):
            heappush(waiting, (-survivals[row][lengths[row]], row))
        rate = tokens / _positive(step_time(drafts))
        if rate > best_rate:
            best, best_rate = tuple(lengths), rate
    return best


def _positive(milliseconds: float) -> float:
    check_positive(milliseconds, "time of a step")
    return milliseconds
