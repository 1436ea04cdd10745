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
    """One request's, where little is known of it: until its first gain it is the usual one of the moment, less for each
    try without a gain. (Were it the usual one of the request's beginning, a request that begins at a low load would
    take long to notice that nothing pays any more at a high one, which all requests together find out at once.)
    """

    weight: float
    """Of the newest value."""
    vain: int = 0
    value: float | None = None

    def given(self, usual: float) -> float:
        return usual * (1 - self.weight) ** self.vain if self.value is None else self.value

    def add(self, value: float, usual: float) -> None:
        if self.value is None and value <= 0:
            self.vain += 1
        else:
            before = self.given(usual)
            self.value = before + self.weight * (value - before)


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
