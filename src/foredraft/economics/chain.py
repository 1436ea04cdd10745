"""The textbook form: a chain of drafts, each accepted with one probability, verified by one pass that costs 1.

A cycle drafts g tokens at cost c each and verifies them in one target pass. Draft i counts only when drafts 1..i are
all accepted, probability a^i; the pass itself always yields one token more. So (Leviathan et al. 2022, sec. 3)

    tokens per cycle = 1 + a + a^2 + ... + a^g = (1 - a^(g+1)) / (1 - a)
    cost per cycle   = 1 + g c
    speedup          = tokens / cost

Sums are evaluated as a(1 + a(1 + ...)): no cancellation near a = 1, no special case at a = 0 or 1, exact for fractions.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, repeat
from operator import mul
from typing import TypeVar, cast

from foredraft.economics.checks import check_acceptance, check_cost, check_length, check_survival
from foredraft.errors import ConfigError

Number = TypeVar("Number", float, Fraction)

LONGEST = 16
"""The longest draft that the searches for a best length consider unless told otherwise."""


def survival_curve(acceptance: Number, length: int) -> tuple[Number, ...]:
    """Probability that draft i counts, for i = 1..length: a, a^2, a^3, ..."""
    check_acceptance(acceptance)
    check_length(length)
    return tuple(accumulate(repeat(acceptance, length), mul))


def survival_from_conditional(acceptances: Sequence[Number]) -> tuple[Number, ...]:
    """Survival from conditional acceptances: entry i is P(draft i accepted | all before it were)."""
    for position, acceptance in enumerate(acceptances, 1):
        check_acceptance(acceptance, f"acceptance of draft {position}")
    return tuple(accumulate(acceptances, mul))


def tokens_from_survival(survival: Sequence[Number], length: int) -> Number:
    """Expected tokens of a cycle that drafts `length` tokens: 1 + the survival of each; beyond the curve drafts add
    nothing."""
    check_survival(survival)
    check_length(length)
    return cast(Number, 1 + sum(survival[:length]))  # an empty sum is the integer 0, which any number can stand for


def tokens_per_cycle(acceptance: Number, length: int) -> Number:
    """Expected tokens a cycle commits: between 1 (nothing accepted) and length + 1."""
    check_acceptance(acceptance)
    check_length(length)
    drafts = acceptance * 0
    for _ in range(length):
        drafts = acceptance * (1 + drafts)
    return 1 + drafts


def cost_per_cycle(length: int, draft_cost: Number) -> Number:
    """Time of a cycle in plain passes: one verification and `length` drafts of `draft_cost` each."""
    check_length(length)
    check_cost(draft_cost)
    return 1 + length * draft_cost


def speedup(acceptance: Number, length: int, draft_cost: Number) -> Number:
    """Times as fast as plain decoding; length 0 is plain decoding and gives 1."""
    return tokens_per_cycle(acceptance, length) / cost_per_cycle(length, draft_cost)


def marginal_tokens(acceptance: Number, position: int) -> Number:
    """What draft `position` (from 1) adds to a cycle: its own survival a^position."""
    check_acceptance(acceptance)
    check_length(position, "draft position", smallest=1)
    return survival_curve(acceptance, position)[-1]


def best_length(acceptance: Number, draft_cost: Number, longest: int = LONGEST) -> int:
    """The draft length with the highest speedup, the shortest of equals; 0 means: don't draft.

    Draft g + 1 raises the speedup exactly when a^(g+1) > c * speedup(g). The left side falls with g; the right side
    rises while drafting pays, so the first draft that fails the test ends the search.
    """
    check_acceptance(acceptance)
    check_cost(draft_cost)
    check_length(longest, "longest draft length")
    for length in range(longest):
        if not marginal_tokens(acceptance, length + 1) > draft_cost * speedup(acceptance, length, draft_cost):
            return length
    return longest


def waterline(survival: Sequence[Number], draft_cost: Number) -> Number:
    """The survival a draft needs to be worth its cost: c times the best speedup within the curve.

    Drafts above the line belong to the best chain, those at or below it don't; their number is the best length.
    """
    check_cost(draft_cost)
    best = tokens_from_survival(survival, 0)
    for length in range(1, len(survival) + 1):
        best = max(best, tokens_from_survival(survival, length) / cost_per_cycle(length, draft_cost))
    return draft_cost * best


def acceptance_for_tokens(tokens: float | Fraction, length: int) -> float | None:
    """The smallest acceptance whose chain of `length` reaches `tokens` per cycle, to the last bit; None if none does.

    Solves a + a^2 + ... + a^length = tokens - 1 by bisection until no float lies between.
    """
    check_length(length)
    if not tokens >= 1:
        raise ConfigError(f"tokens per cycle is {tokens}, but a cycle always yields at least 1: give 1 or more")
    if tokens == 1:
        return 0.0
    if tokens > length + 1:
        return None
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if tokens_per_cycle(middle, length) < tokens:
            low = middle
        else:
            high = middle
    return high


def break_even_acceptance(length: int, draft_cost: Number) -> float | None:
    """The acceptance from which a chain of `length` is no slower than plain; None when even 1 isn't enough (cost
    above 1)."""
    return acceptance_for_tokens(cost_per_cycle(length, draft_cost), length)


def break_even_cost(acceptance: Number, length: int) -> Number:
    """The draft cost up to which a chain of `length` (at least 1) is no slower than plain: the mean survival of its
    drafts."""
    check_length(length, smallest=1)
    return (tokens_per_cycle(acceptance, length) - 1) / length
