"""Time for what isn't expected to pay, so as to notice when it would: a set share, never more."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Exploring"]


@dataclass
class Exploring:
    """`share` of the time may go to it."""

    share: float
    spent_ms: float = 0.0
    explored_ms: float = 0.0

    @property
    def affordable(self) -> bool:
        return self.explored_ms <= self.share * self.spent_ms
