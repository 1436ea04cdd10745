"""Refusals: one sentence with the offending value and what would be accepted.

Comparisons are written so that NaN fails them, and infinity is refused wherever it would make every answer infinite.
"""

from collections.abc import Iterable
from fractions import Fraction

from foredraft.errors import ConfigError

MAX_LENGTH = 256

Real = float | Fraction


def check_acceptance(acceptance: Real, name: str = "acceptance") -> None:
    """A probability, 0 to 1."""
    if not 0 <= acceptance <= 1:
        raise ConfigError(f"{name} is {acceptance}, but it is a probability: give a number from 0 to 1")


def check_length(length: int, name: str = "draft length", smallest: int = 0) -> None:
    """A number of draft tokens or nodes."""
    if not smallest <= length <= MAX_LENGTH or length != int(length):
        raise ConfigError(f"{name} is {length}: give a whole number from {smallest} to {MAX_LENGTH}")


def check_cost(cost: Real, name: str = "draft cost") -> None:
    """A time that isn't negative and isn't infinite."""
    if not 0 <= cost < float("inf"):
        raise ConfigError(f"{name} is {cost}, but time can't be negative or infinite: give a number of at least 0")


def check_positive(value: Real, name: str) -> None:
    """A quantity that must exist: a rate, a size, a time of a real pass."""
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value}: give a positive number")


def check_count(count: int, name: str, smallest: int = 1) -> None:
    """A whole number of rows, tokens or sequences."""
    if not smallest <= count < float("inf") or count != int(count):
        raise ConfigError(f"{name} is {count}: give a whole number of at least {smallest}")


def check_survival(survival: Iterable[Real]) -> None:
    """Probabilities that the first i drafts all count: each in [0, 1] and none above the one before."""
    before: Real = 1
    for position, probability in enumerate(survival, 1):
        check_acceptance(probability, f"survival at draft {position}")
        if probability > before:
            raise ConfigError(
                f"survival rises from {before} to {probability} at draft {position}, but a draft only counts when all "
                "before it do: give a curve that never rises"
            )
        before = probability
