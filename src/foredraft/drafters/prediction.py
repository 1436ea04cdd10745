"""Predicted outputs: draft from a text that the caller expects, and find back to it after every deviation.

Editing a document mostly copies it, with a few tokens replaced, inserted, deleted or moved. While output and prediction agree, the
prediction's next tokens are drafted. After a deviation several ways to go on are kept at once: the prediction where it was left (an
insertion), as many tokens further as were emitted since (a replacement), behind the nearest places where the latest token stands (a
deletion), each until a token speaks against it. Moved text is found by the suffix index, of which the prediction is a part. All
of these and the request's own text vote on one tree (suffix.py); without a prediction this is suffix decoding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from foredraft.drafters.suffix import SuffixDrafter
from foredraft.types import Sequence

if TYPE_CHECKING:
    from foredraft.drafters.suffix_index import Evidence, SuffixIndex

__all__ = ["Alignment", "PredictionDrafter"]

SETTLED = 3
"""Tokens that must agree in a row before other ways to continue are dropped."""
HYPOTHESES = 6
AHEAD, BEHIND = 2, 1
"""Occurrences of the latest token considered after and before the place where the prediction was left."""
END = -1
BONUS = 1


@dataclass(eq=False)
class PredictionDrafter(SuffixDrafter):
    """`SuffixDrafter` that also draws on `Sequence.prediction`; the same configuration."""

    _alignments: dict[int, Alignment] = field(default_factory=dict, init=False, repr=False)

    def begin(self, sequence: Sequence) -> None:
        if sequence.prediction:
            self._alignments[sequence.id] = Alignment(sequence.prediction, sequence.prompt_length)
            self._open(sequence, [*sequence.prediction, END, *sequence.tokens])
        else:
            self._open(sequence, sequence.tokens)

    def end(self, sequence: Sequence) -> None:
        self._alignments.pop(sequence.id, None)
        super().end(sequence)

    def _foreign(self, sequence: Sequence) -> int:
        return len(sequence.prediction) + 1 if sequence.prediction else 0

    def _gather(self, sequence: Sequence, index: SuffixIndex, evidence: Evidence) -> None:
        if sequence.prediction:
            self._alignments[sequence.id].hint(sequence, evidence)
        super()._gather(sequence, index, evidence)


class Alignment:
    """Where the output may stand in the prediction.

    places  index of the next expected token -> tokens that agreed in a row before it
    left    where the prediction was when it last was certain; `astray` tokens have been emitted since
    """

    def __init__(self, prediction: Collection[int], prompt_length: int) -> None:
        self.prediction = np.array(prediction, dtype=np.int64)
        self.places = {0: 0}
        self.left = 0
        self.astray = 0
        self._followed = prompt_length
        self._tokens = list(prediction)
        self._occurrences: dict[int, list[int]] = {}
        for place, token in enumerate(prediction):
            self._occurrences.setdefault(token, []).append(place)

    def follow(self, tokens: Collection[int]) -> None:
        """Take in emitted tokens."""
        for token in tokens:
            self._step(token)

    def hint(self, sequence: Sequence, evidence: Evidence) -> None:
        """Catch up with the sequence and add every way to go on to `evidence`, the best confirmed first."""
        self.follow(sequence.tokens[self._followed :])
        self._followed = len(sequence.tokens)
        for place, confirmed in self._ranked(self.places):
            evidence.add(self.prediction[place:], confirmed + BONUS)

    def _step(self, token: int) -> None:
        kept = {
            place + 1: confirmed + 1
            for place, confirmed in self.places.items()
            if place < len(self._tokens) and self._tokens[place] == token
        }
        self.astray += 1
        surest = max(kept, key=kept.__getitem__, default=0)
        if kept.get(surest, 0) >= SETTLED:
            self.left, self.astray = surest, 0
        else:
            kept.setdefault(self.left, 0)
            kept.setdefault(self.left + self.astray, 0)
            occurrences = self._occurrences.get(token, [])
            nearest = bisect_left(occurrences, self.left)
            for place in occurrences[max(0, nearest - BEHIND) : nearest + AHEAD]:
                kept.setdefault(place + 1, 1)
        self.places = dict(self._ranked(kept)[:HYPOTHESES])

    def _ranked(self, places: dict[int, int]) -> list[tuple[int, int]]:
        return sorted(places.items(), key=lambda item: (-item[1], abs(item[0] - self.left)))
