"""For which sequences a drafter is worth asking: looking for drafts takes time even where nothing comes of it.

Each sequence has a running average of the milliseconds that its drafts saved. Until they have saved anything, what
drafts usually save at the moment stands in, and before that is known some trust, since most first drafts fail even
where drafting pays. Asking takes a time of its own and some for each sequence, so those that save more than the latter
are asked if together they also save the former. Now and then all are asked together: so seldom that it costs a set
share of the time, often enough to notice when a text begins to repeat itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from foredraft.drafters.averages import OwnMean, RunningMean

__all__ = ["Asking", "AskingTime"]

LATEST = 0.1
TRUST, TRUSTED = 2.0, 8
"""What drafts are taken to save before anything is known, as a multiple of what they take, and how many drafts that
assumption is worth."""
LONGEST_PAUSE = 32
"""Steps; a longer pause would save next to nothing and miss the beginning of what could be copied."""
FALLS, RISES = 0.3, 0.15
"""An estimate rather below the mean: a first draft also reads the prompt, which isn't what asking once more takes."""


@dataclass
class AskingTime:
    """Milliseconds of asking for some sequences: `fixed`, and `each` for every one of them."""

    fixed: float = 0.0
    each: float = 0.0

    def __call__(self, sequences: int) -> float:
        return self.fixed + self.each * sequences

    def observe(self, sequences: int, milliseconds: float) -> None:
        """Move both towards what it took, each as far as it can be the cause."""
        error = milliseconds - self(sequences)
        weight = (RISES if error > 0 else FALLS) if self.each else 1.0
        part = weight * error / (1 + sequences**2)
        self.fixed = max(0.0, self.fixed + part)
        self.each = max(0.0, self.each + part * sequences)


@dataclass
class Asking:
    """`share` is how much of the time may be spent on asking in vain."""

    share: float
    time: AskingTime = field(default_factory=AskingTime)
    _usual: RunningMean | None = None
    """What the drafts of all sequences saved lately, once it is known what asking takes."""
    _saved: defaultdict[int, OwnMean] = field(default_factory=lambda: defaultdict(lambda: OwnMean(LATEST)))
    _waited: int = 0
    """Steps since all were asked."""
    _asked: set[int] = field(default_factory=set)
    _resting: list[int] = field(default_factory=list)
    """Those of whom nobody was asked last time, which holds until all are."""

    def choose(self, sequence_ids: list[int], token_ms: float) -> set[int]:
        """The sequences to ask this step; `token_ms` is what a token takes without drafts."""
        self._waited += 1
        if self._waited >= min(LONGEST_PAUSE, self._each(sequence_ids) / (self.share * token_ms)):
            self._asked, self._waited = set(sequence_ids), 0
        elif sequence_ids == self._resting:
            self._asked = set()
        else:
            self._asked = self._worthwhile(sequence_ids)
        self._resting = [] if self._asked else sequence_ids
        return self._asked

    def observe(self, saved_ms: dict[int, float], draft_ms: float) -> None:
        """What the step's drafts saved for each sequence, and how long drafting took in all, if any was asked."""
        if not self._asked:
            return
        self.time.observe(len(self._asked), draft_ms)
        if self._usual is None:
            self._usual = RunningMean(TRUST * self._each(self._asked), TRUSTED)
        for sequence_id in self._asked & saved_ms.keys():
            self._saved[sequence_id].add(saved_ms[sequence_id])
            self._usual.add(saved_ms[sequence_id])

    def forget(self, sequence_id: int) -> None:
        self._saved.pop(sequence_id, None)
        self._resting = []

    def _worthwhile(self, sequence_ids: list[int]) -> set[int]:
        """Those that save more than they take, if they do so together."""
        if self._usual is None:
            return set(sequence_ids)
        usual = self._usual.value
        gains = {number: self._saved[number].given(usual) - self.time.each for number in sequence_ids}
        hopeful = {number for number, gain in gains.items() if gain >= 0}
        return hopeful if sum(gains[number] for number in hopeful) >= self.time.fixed else set()

    def _each(self, sequence_ids: Collection[int]) -> float:
        """What asking takes for each of them if all are asked."""
        return self.time(len(sequence_ids)) / len(sequence_ids)
