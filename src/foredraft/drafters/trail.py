"""Where a text is being copied from, through insertions, replacements and deletions.

Editing a document mostly copies it. As long as the copy agrees with its source, the source's next tokens are the best
guess. After a deviation several ways to go on are kept at once: the source where it was left (something was inserted),
as many tokens further as were emitted since (replaced), or behind the next places where the latest token stands
(deleted). Each is dropped when a token speaks against it. What this adds to matching suffixes is the order of things:
among fifty records of the same form, the next one is the one after the last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Trail"]

SETTLED = 3
"""Tokens that must agree in a row before other ways to go on are dropped."""
CERTAIN = 16
"""Tokens that must match for a trail to start at, or move to, a place that it didn't come from."""
PLACES = 6
AHEAD = 2
WINDOW = 64
"""The latest token is looked for at most this far behind the place where the source was left, and taken `AHEAD`
times.
"""


class Trail:
    """Places in a text that may be the one copied next.

    places  index of the next token to be copied -> tokens that agreed in a row before it
    left    where the source was left when that was last certain; `astray` tokens were emitted since
    """

    def __init__(self, place: int | None = None) -> None:
        self.places: dict[int, int] = {} if place is None else {place: 0}
        self.left = place
        self.astray = 0

    def follow(self, text: NDArray[np.int64]) -> None:
        """A token was emitted; `text` is everything up to and including it."""
        if self.left is None:
            return
        token = text[-1]
        kept = {place + 1: agreed + 1 for place, agreed in self.places.items() if text[place] == token}
        self.astray += 1
        surest = max(kept, key=kept.__getitem__, default=self.left)
        if kept.get(surest, 0) >= SETTLED:
            self.left, self.astray = surest, 0
        else:
            kept.setdefault(self.left, 0)
            kept.setdefault(self.left + self.astray, 0)
            behind = text[self.left : min(self.left + WINDOW, len(text) - 1)]
            for distance in (behind == token).nonzero()[0][:AHEAD].tolist():
                kept.setdefault(self.left + distance + 1, 1)
        self.places = {place: agreed for place, agreed in kept.items() if place < len(text)}
        if len(self.places) > PLACES:
            self.places = dict(self.ranked()[:PLACES])

    def meet(self, place: int, matched: int) -> None:
        """The text before `place` matches the latest `matched` tokens: go on there if that is surer than what is
        known.
        """
        if matched >= CERTAIN and matched > max(self.places.values(), default=0) + 1:
            self.places = {place: matched}
            self.left, self.astray = place, 0

    def ranked(self) -> list[tuple[int, int]]:
        """(place, agreed) from the surest to the least sure, near ones first."""
        left = self.left or 0
        return sorted(self.places.items(), key=lambda item: (-item[1], abs(item[0] - left)))
