"""How long drafting takes, by how deep the drafts are: a part that is there for any draft, and one for each level.

A draft model takes as long for every token; a head first reads what the target has found out since, and then goes down
a level in no time. Which of the two a drafter is shows in the times of drafts that differ in depth.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DraftingTime"]

LATEST = 0.1


@dataclass
class DraftingTime:
    """Milliseconds by levels. What is slower at one depth, since more sequences draft, say, is so at the others."""

    _by_levels: dict[int, float] = field(default_factory=dict)

    def observe(self, levels: int, milliseconds: float) -> None:
        known = self._by_levels.get(levels)
        if not known:
            self._by_levels[levels] = milliseconds
            return
        factor = 1 + LATEST * (min(milliseconds / known, 4.0) - 1)
        for own in self._by_levels:
            self._by_levels[own] *= factor

    @property
    def deepest(self) -> int:
        """Levels of the deepest draft so far; 0 before the first."""
        return max(self._by_levels, default=0)

    @property
    def per_level(self) -> float:
        """All of it, while only one depth is known."""
        count = len(self._by_levels)
        if count < 2:
            return sum(ms / levels for levels, ms in self._by_levels.items())
        mean = sum(self._by_levels) / count
        spread = sum((levels - mean) ** 2 for levels in self._by_levels)
        slope = sum((levels - mean) * ms for levels, ms in self._by_levels.items()) / spread
        return min(max(slope, 0.0), min(ms / levels for levels, ms in self._by_levels.items()))

    def up_to(self, levels: int) -> list[float]:
        """Of drafts of 1, 2 .. `levels` levels."""
        if not self._by_levels:
            return [0.0] * levels
        count, per_level = len(self._by_levels), self.per_level
        mean, usual = sum(self._by_levels) / count, sum(self._by_levels.values()) / count
        return [max(0.0, usual + (level - mean) * per_level) for level in range(1, levels + 1)]
