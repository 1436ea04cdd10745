"""How often guesses of each kind come true: what drafters turn into scores.

Every kind starts from a prior, worth a few observations, and follows what is seen; old observations fade, so that the
rates move with the text being decoded. They only ever decide how much is drafted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["HitRates"]

PRIOR_WEIGHT = 8.0
MEMORY = 400.0


class HitRates:
    """`rates[kind]`, a float64 array, is the running share of guesses of that kind that were right."""

    def __init__(self, prior: Sequence[float]) -> None:
        self.rates = np.array(prior, dtype=np.float64)
        self._seen = np.full(len(prior), PRIOR_WEIGHT)

    def record(self, kind: int, right: bool) -> None:
        """Add one observation."""
        seen = self._seen[kind] = min(self._seen[kind] + 1.0, MEMORY)
        self.rates[kind] += (right - self.rates[kind]) / seen
