"""How likely a request's drafts are to be accepted, from what happened to its earlier ones.

Two views of the same outcomes. `survival` is per depth: the probability that the first d drafts of a chain are all
accepted; it serves before anything is drafted, and for drafters that say nothing about their guesses. `trust` corrects
a drafter that does: the ratio of what was accepted to what its scores promised. Both start from a prior and forget,
since text changes its nature.
"""

from __future__ import annotations

__all__ = ["Acceptance"]

PRIOR_RATE = 0.5
PRIOR_WEIGHT = 4.0
MEMORY = 0.95


class Acceptance:
    """One request's record. `prior` gives the conditional acceptance per depth that a new request starts from."""

    def __init__(self, prior: list[float] | None = None) -> None:
        self._tried = [PRIOR_WEIGHT] * len(prior or ())
        self._passed = [PRIOR_WEIGHT * rate for rate in prior or ()]
        self._promised = PRIOR_WEIGHT
        self._kept = PRIOR_WEIGHT

    @property
    def depths(self) -> int:
        """Depths that something is known about; deeper ones are taken to be like the last of them."""
        return len(self._tried)

    @property
    def trust(self) -> float:
        """Accepted drafts per draft that the drafter's scores promised; 1 for an honest drafter."""
        return self._kept / self._promised

    def conditional(self, depth: int) -> float:
        """P(the draft at `depth` is accepted | the ones before it were), depth from 1 on."""
        if not self._tried:
            return PRIOR_RATE
        known = min(depth, len(self._tried)) - 1
        return self._passed[known] / self._tried[known]

    def survival(self, longest: int) -> list[float]:
        """P(the first d drafts are accepted) for d = 1 .. longest: [longest], falling."""
        curve: list[float] = []
        for depth in range(1, longest + 1):
            curve.append((curve[-1] if curve else 1.0) * self.conditional(depth))
        return curve

    def observe(self, deepest: int, accepted: int, promised: float | None) -> None:
        """A draft of depth `deepest` was verified and `accepted` nodes were kept; its scores summed to `promised`."""
        for depth in range(1, min(deepest, accepted + 1) + 1):
            if depth > len(self._tried):
                rate = self.conditional(depth)
                self._tried.append(PRIOR_WEIGHT)
                self._passed.append(PRIOR_WEIGHT * rate)
            self._tried[depth - 1] = MEMORY * self._tried[depth - 1] + 1.0
            self._passed[depth - 1] = MEMORY * self._passed[depth - 1] + (depth <= accepted)
        if promised is not None:
            self._promised = MEMORY * self._promised + promised
            self._kept = MEMORY * self._kept + accepted
