"""Predicted outputs: draft from a text that the caller expects (`Sequence.prediction`).

The prediction is put in front of the text that suffix decoding searches, or found in the prompt if it stands there
already, and the trail (trail.py) starts at its beginning. So it is drafted from the first token on, however long it is,
and found again after insertions, replacements, deletions and moves. Without a prediction this is suffix decoding.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass

from foredraft.drafters.suffix import Source, SuffixDrafter
from foredraft.types import Sequence

__all__ = ["PredictionDrafter"]

END = -1
EDGE = 2
"""Tokens at either end that may come out differently when the same text is tokenised inside a prompt."""


@dataclass(eq=False)
class PredictionDrafter(SuffixDrafter):
    """`SuffixDrafter` that knows where to begin; the same configuration."""

    def _source(self, sequence: Sequence) -> Source:
        if not sequence.prediction:
            return super()._source(sequence)
        quoted = _find(sequence.prediction, sequence.tokens)
        if quoted is None:
            return Source((*sequence.prediction, END), start=0)
        return Source((), start=quoted)


def _find(prediction: Collection[int], text: list[int]) -> int | None:
    """Where in `text` the prediction begins, or None if it isn't there in full."""
    core = list(prediction[EDGE:-EDGE])
    if not core:
        return None
    place = -1
    for _ in range(text.count(core[0])):
        place = text.index(core[0], place + 1)
        if text[place : place + len(core)] == core:
            return max(0, place - EDGE)
    return None
