"""Why a step verified as many drafts as it did, with the numbers that decided it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Decision", "Reason"]


class Reason(StrEnum):
    """The values are labels of a metric; `words` are for people, in the past tense."""

    PAYS = "pays"
    EXPLORES = "explores"
    MEASURES = "measures"
    DOES_NOT_PAY = "does_not_pay"
    HELD_BACK = "held_back"
    DRAFTING_TOO_DEAR = "drafting_too_dear"
    RESTS = "rests"
    NOTHING_DRAFTED = "nothing_drafted"
    NOT_WANTED = "not_wanted"

    @property
    def words(self) -> str:
        return WORDS[self]


WORDS = {
    Reason.PAYS: "drafts verified",
    Reason.EXPLORES: "drafts tried out",
    Reason.MEASURES: "drafts left out, to compare",
    Reason.DOES_NOT_PAY: "drafts not worth their rows",
    Reason.HELD_BACK: "drafts not worth a change",
    Reason.DRAFTING_TOO_DEAR: "drafting too slow",
    Reason.RESTS: "drafts not looked for, after little success",
    Reason.NOTHING_DRAFTED: "nothing found to draft",
    Reason.NOT_WANTED: "no room for drafts, or not wanted",
}

MEANINGS = {
    Reason.MEASURES: "drafts are expected to pay, but a step without them was last timed long ago",
    Reason.DOES_NOT_PAY: "no number of the {drafted} drafts would be faster",
    Reason.HELD_BACK: "some of the {drafted} drafts would be faster, but not by enough to change over",
    Reason.DRAFTING_TOO_DEAR: "drafting would take longer than it is expected to save",
    Reason.RESTS: "drafts saved less than looking for them took, so they are looked for only now and then",
    Reason.NOTHING_DRAFTED: "the drafter found nothing to draft",
    Reason.NOT_WANTED: "no request wants drafts or has room for them",
}
"""Why nothing is verified, in a clause."""


class Decision(NamedTuple):
    """What a step verifies, and what that is expected to bring.

    nodes               drafts that are verified, over all sequences
    tokens              expected, over all sequences
    milliseconds        expected, of the pass and the host's work beside it, prompts that the pass reads left out
    plain_tokens        of the same step without drafts: one a sequence
    plain_milliseconds  of the same step without drafts
    reason              why it is not more or fewer
    drafted             how many there were to choose from
    pass_milliseconds   measured, of a target pass over as many rows
    """

    nodes: int
    tokens: float
    milliseconds: float
    plain_tokens: float
    plain_milliseconds: float
    reason: Reason
    drafted: int
    pass_milliseconds: float

    @property
    def gain(self) -> float:
        """Expected speedup of the choice over plain decoding of the same step."""
        return (self.tokens / self.milliseconds) / (self.plain_tokens / self.plain_milliseconds)

    @property
    def tokens_per_cycle(self) -> float:
        """Expected tokens of a sequence."""
        return self.tokens / self.plain_tokens

    @property
    def sentence(self) -> str:
        """The decision for people: what, why, and the numbers of both alternatives."""
        plain = _outcome(self.plain_tokens, self.plain_milliseconds)
        if not self.nodes:
            return f"Decodes plainly, {plain}: {MEANINGS[self.reason].format(drafted=self.drafted)}."
        chosen = f"{self.nodes} of {self.drafted} drafts, {_outcome(self.tokens, self.milliseconds)}"
        if self.reason is Reason.EXPLORES:
            return f"Tries {chosen}, to see whether drafts pay by now; plain decoding gives {plain}."
        return f"Verifies {chosen}; plain decoding gives {plain}. Expected gain: {self.gain:.2f} times as fast."


def _outcome(tokens: float, milliseconds: float) -> str:
    rate = 1e3 * tokens / milliseconds
    per_second = f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
    return f"{tokens:.3g} token{'s' * (tokens != 1)} in {milliseconds:.3g} ms ({per_second} tokens/s)"
