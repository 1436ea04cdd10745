"""For which sequences a drafter is worth asking: looking for drafts takes time even where nothing comes of it.

Each sequence has a running average of the milliseconds that its drafts saved. While that is less than drafting takes,
the sequence is asked only now and then: so seldom that the asking costs a set share of the time, often enough to notice
when its text begins to repeat itself. Until its drafts have saved anything, what drafts usually save at the moment
stands in, and before that is known some trust, since most first drafts fail even where drafting pays.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from foredraft.drafters.averages import LowEstimate, OwnMean

__all__ = ["Asking"]

LATEST = 0.1
USUAL_MEMORY = 0.98
TRUST = 2.0
"""What drafts are taken to save before anything is known, as a multiple of what they take."""
LONGEST_PAUSE = 32
"""Steps; a longer pause would save next to nothing and miss the beginning of what could be copied."""


@dataclass
class Asking:
    """`share` is how much of a token's time may be spent on asking in vain.

    Drafting time is what it takes at least per sequence asked, since a drafter of several members leaves the dear ones
    out by itself where they don't pay.
    """

    share: float
    _draft_ms: LowEstimate = field(default_factory=LowEstimate)
    _usual: float | None = None
    _saved: defaultdict[int, OwnMean] = field(default_factory=lambda: defaultdict(lambda: OwnMean(LATEST)))
    _step: int = 0
    _last: dict[int, int] = field(default_factory=dict)
    """The step that a sequence was last asked in, or came before."""
    _asked: set[int] = field(default_factory=set)
    _resting: list[int] = field(default_factory=list)
    _wake: int = 0
    """The step before which none of those that rest is due, so that nobody needs to look."""

    @property
    def draft_ms(self) -> float:
        """Of a sequence."""
        return self._draft_ms.value

    def choose(self, sequence_ids: list[int], token_ms: float) -> set[int]:
        """The sequences to ask this step; `token_ms` is what a token takes without drafts."""
        self._step += 1
        if self._step < self._wake and sequence_ids == self._resting:
            self._asked = set()
            return self._asked
        pause = min(LONGEST_PAUSE, self.draft_ms / (self.share * token_ms))
        self._asked = {sequence_id for sequence_id in sequence_ids if self._is_due(sequence_id, pause)}
        if not self._asked:
            self._resting = list(sequence_ids)
            self._wake = math.ceil(min(self._last[sequence_id] for sequence_id in sequence_ids) + pause)
        return self._asked

    def observe(self, saved_ms: dict[int, float], draft_ms: float) -> None:
        """What the step's drafts saved for each sequence, and how long drafting took in all, if any was asked."""
        if not self._asked:
            return
        self._draft_ms.add(draft_ms / len(self._asked))
        for sequence_id in self._asked & saved_ms.keys():
            now = saved_ms[sequence_id]
            self._saved[sequence_id].add(now, self._first_ms())
            self._usual = USUAL_MEMORY * self._usual_ms() + (1 - USUAL_MEMORY) * now

    def forget(self, sequence_id: int) -> None:
        self._saved.pop(sequence_id, None)
        self._last.pop(sequence_id, None)
        self._resting = []

    def _is_due(self, sequence_id: int, pause: float) -> bool:
        waited = self._step - self._last.setdefault(sequence_id, self._step - 1)
        pays = self._saved[sequence_id].given(self._first_ms()) >= self.draft_ms
        due = pays or waited >= pause
        if due:
            self._last[sequence_id] = self._step
        return due

    def _usual_ms(self) -> float:
        """What the drafts of all sequences saved lately."""
        return TRUST * self.draft_ms if self._usual is None else self._usual

    def _first_ms(self) -> float:
        """What a new sequence's drafts are taken to save: enough to be asked at once."""
        return max(self.draft_ms, self._usual_ms())
