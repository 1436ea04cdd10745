"""The word for a speedup.

    speedup            verdict
    1.50 and above     Clear win
    1.05 up to 1.50    Modest
    0.95 up to 1.05    Break-even         a run differs from the next by about this much
    below 0.95         A loss: paying for compute to go slower

A threshold belongs to the better verdict.
"""

from fractions import Fraction

from foredraft.economics.checks import check_cost

CLEAR_WIN_FROM = 1.5
MODEST_FROM = 1.05
BREAK_EVEN_FROM = 0.95


def verdict(speedup: float | Fraction) -> str:
    """The verdict on a speedup (1 = as fast as plain decoding)."""
    check_cost(speedup, "speedup")
    if speedup >= CLEAR_WIN_FROM:
        return "Clear win"
    if speedup >= MODEST_FROM:
        return "Modest"
    if speedup >= BREAK_EVEN_FROM:
        return "Break-even"
    return "A loss: paying for compute to go slower"
