"""Running estimates of what a drafter costs and brings."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LowEstimate", "OwnMean", "Rate", "RunningMean", "Slope"]

LATEST = 0.02
FALLS, RISES = 0.3, 0.02


@dataclass
class RunningMean:
    """Of all values while there are few, then with a fixed weight for the newest."""

    value: float = 0.0
    count: int = 0
    weight: float = LATEST

    def add(self, value: float) -> None:
        self.count += 1
        self.value += max(self.weight, 1 / self.count) * (value - self.value)


@dataclass
class OwnMean:
    """One request's, in which what is usual makes up for what isn't known of it yet: the usual value of the moment, not
    that of the request's beginning, since all requests together find out soon that nothing pays any more.
    """

    weight: float
    """Of the newest value."""
    own: float = 0.0
    """Its values, each with its weight."""
    missing: float = 1.0
    """What these weights lack of 1."""

    def given(self, usual: float) -> float:
        return self.own + self.missing * usual

    def add(self, value: float) -> None:
        self.own += self.weight * (value - self.own)
        self.missing *= 1 - self.weight


@dataclass
class LowEstimate:
    """Of a time that is longer now and then, for reasons that pass: it falls quickly and rises slowly. 0 at first."""

    value: float = 0.0

    def add(self, value: float) -> None:
        weight = FALLS if value < self.value else RISES
        self.value += weight * (value - self.value) if self.value else value


@dataclass
class Rate:
    """An amount for each unit, over everything so far; 0 at first."""

    amount: float = 0.0
    units: float = 0.0

    def add(self, amount: float, units: float) -> None:
        self.amount += amount
        self.units += units

    @property
    def value(self) -> float:
        return self.amount / self.units if self.units else 0.0


@dataclass
class Slope:
    """By how much one quantity grows with another, from the latest pairs of both; 0 until the other has varied."""

    _x: float = 0.0
    _y: float = 0.0
    _variance: float = 0.0
    _covariance: float = 0.0

    def add(self, x: float, y: float) -> None:
        if not self._y:
            self._x, self._y = x, y
            return
        dx, dy = x - self._x, y - self._y
        self._x += LATEST * dx
        self._y += LATEST * dy
        self._variance = (1 - LATEST) * (self._variance + LATEST * dx * dx)
        self._covariance = (1 - LATEST) * (self._covariance + LATEST * dx * dy)

    @property
    def value(self) -> float:
        return self._covariance / self._variance if self._variance else 0.0
