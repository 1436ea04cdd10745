"""A parser that gives up on a draft's path must not give up on the text."""

from __future__ import annotations

from typing import Any, cast

import pytest

from foredraft.engine.structured import Matcher
from foredraft.types import SamplingParams

PROMPT = [1, 1]
FATAL, EVERYTHING = 9, b"\xff\xff"


class Fragile:
    """Like llguidance's matcher with any text allowed: once its limit is exceeded, here by a token, it stays broken."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.broken = False

    def deep_copy(self) -> Fragile:
        return Fragile()

    def try_consume_tokens(self, tokens: list[int]) -> int:
        if self.broken:
            return 0
        self.read += tokens
        return len(tokens)

    def rollback(self, count: int) -> bool:
        if not self.broken:
            del self.read[len(self.read) - count :]
        return not self.broken

    def compute_bitmask(self) -> bytes:
        self.broken = self.broken or FATAL in self.read
        return b"\x04\x00" if self.broken else EVERYTHING

    def is_error(self) -> bool:
        return self.broken

    def get_error(self) -> str:
        return "too complex" if self.broken else ""

    def is_accepting(self) -> bool:
        return True


def test_a_draft_that_exceeds_a_limit_leaves_no_trace() -> None:
    matcher = Matcher(cast(Any, Fragile()), SamplingParams(), len(PROMPT), (2,))
    tokens = [*PROMPT, 5]
    paths: list[tuple[int, ...]] = [(), (6,), (FATAL,), (FATAL, 4), (7,), (10, 7)]
    assert matcher.masks(tokens, paths) == [EVERYTHING, EVERYTHING, None, None, EVERYTHING, EVERYTHING]
    assert matcher.dead_end(tokens) is None
    assert matcher.masks([*tokens, 6], [(), (3,)]) == [EVERYTHING, EVERYTHING]


class Weary(Fragile):
    """Its limit is on all the tokens ever read; taking them back gives nothing back."""

    FUEL = 12

    def __init__(self) -> None:
        super().__init__()
        self.spent = 0

    def deep_copy(self) -> Weary:
        return Weary()

    def try_consume_tokens(self, tokens: list[int]) -> int:
        self.spent += len(tokens)
        self.broken = self.broken or self.spent > self.FUEL
        return super().try_consume_tokens(tokens)


@pytest.mark.parametrize("drafts", [[], [(5,)], [(6, 6, 6)], [(5,), (6, 6, 6)], [(5, 5, 5, 5), (6, 7), (7, 6)]])
def test_a_limit_that_drafts_used_up_is_no_limit_of_the_text(drafts: list[tuple[int, ...]]) -> None:
    """Every place in the text has its mask, and the text ends where it does without drafts."""
    matcher = Matcher(cast(Any, Weary()), SamplingParams(), len(PROMPT), (2,))
    paths = [(), *(draft[:end] for draft in drafts for end in range(1, len(draft) + 1))]
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + Weary.FUEL:
        reachable = [path for path in paths if len(tokens) + len(path) <= len(PROMPT) + Weary.FUEL]
        assert matcher.masks(tokens, reachable) == [EVERYTHING] * len(reachable)
        for token in (5, 5)[: 1 + (reachable[1:2] == [(5,)])]:
            assert matcher.dead_end(tokens) is None
            tokens.append(token)
    tokens.append(5)
    assert matcher.masks(tokens, [()]) == [None]
    assert matcher.dead_end(tokens) == "too complex"


def test_text_that_exceeds_a_limit_ends_with_the_reason() -> None:
    matcher = Matcher(cast(Any, Fragile()), SamplingParams(), len(PROMPT), (2,))
    assert matcher.masks(PROMPT, [(FATAL,)]) == [None]
    assert matcher.dead_end([*PROMPT, FATAL]) == "too complex"
    assert matcher.masks([*PROMPT, FATAL], [()]) == [None]
    assert matcher.dead_end([*PROMPT, FATAL]) == "too complex"
