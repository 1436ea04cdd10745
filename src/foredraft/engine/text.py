"""From tokens to text, one token at a time.

Characters may be split across tokens and stop strings across tokens and steps, so text is held back while it may still
be part of either. The pieces that are released, joined, are the whole answer, and each remembers whether its token came
from a draft.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Piece", "TextStream"]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Piece(NamedTuple):
    """Text of one token; `drafted` tells whether the token was an accepted draft."""

    text: str
    drafted: bool


class TextStream:
    """The text of one sequence's output."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: tuple[str, ...] = (),
        *,
        skip_special_tokens: bool = True,
        include_stop: bool = False,
    ) -> None:
        self._decoder = _Decoder(tokenizer, skip_special_tokens)
        self._searches = [_StopSearch(each) for each in stop]
        self._include_stop = include_stop
        self._unfinished = False
        self._held: deque[Piece] = deque()
        self._text = ""
        self._released = 0  # characters of it

    @property
    def text(self) -> str:
        """Everything decoded so far, held back or not."""
        return self._text

    def push(self, token: int, drafted: bool, *, check_stop: bool = True) -> str | None:
        """Add a token; the stop string it completed, if any. Text from the stop string on is dropped."""
        text = self._decoder.step(token)
        self._unfinished = text is None
        if not text:
            return None  # an unfinished character, or a token without text
        self._text += text
        self._held.append(Piece(text, drafted))
        found = [each for each in self._searches if each.follow(self._text, skip_complete=not check_stop)]
        return self._cut_at_stop(found) if found else None

    def release(self, *, final: bool) -> list[Piece]:
        """The pieces that no later token can take back; all of them when `final`."""
        if final and self._unfinished:
            tail = self._decoder.rest()
            if tail:
                self._text += tail
                self._held.append(Piece(tail, False))
        ready = (len(self._text) if final else self._certain) - self._released
        released: list[Piece] = []
        while ready > 0:
            piece = self._held.popleft()
            if len(piece.text) > ready:
                self._held.appendleft(Piece(piece.text[ready:], piece.drafted))
                piece = Piece(piece.text[:ready], piece.drafted)
            released.append(piece)
            ready -= len(piece.text)
            self._released += len(piece.text)
        return released

    @property
    def _certain(self) -> int:
        """Characters of the text that no stop string can begin in any more."""
        return min((search.place for search in self._searches), default=len(self._text))

    def _cut_at_stop(self, found: list[_StopSearch]) -> str:
        """End the text at the first of the stop strings that it holds."""
        at, stop = min((search.place, search.stop) for search in found)
        end = at + len(stop) if self._include_stop else at
        excess = len(self._text) - end
        self._text = self._text[:end]
        while excess > 0:
            piece = self._held.pop()
            if len(piece.text) > excess:
                self._held.append(Piece(piece.text[:-excess], piece.drafted))
            excess -= len(piece.text)
        self._unfinished = False
        return stop


class _StopSearch:
    """Looks for one stop string in a text that grows.

    `place` is the first position from which all the text is the stop string's beginning, or begins with all of it. It
    only moves on, as more text makes no beginning of what is none; so a token costs little, however long the stop.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.place = 0

    def follow(self, text: str, *, skip_complete: bool) -> bool:
        """The text has grown: whether the whole stop string is there, or, to `skip_complete`, look behind it."""
        length = len(self.stop)
        while self.place < len(text):
            if self.stop.startswith(text[self.place : self.place + length]):
                complete = len(text) - self.place >= length
                if not (complete and skip_complete):
                    return complete
            following = text.find(self.stop[0], self.place + 1)
            self.place = following if following >= 0 else len(text)
        return False


class _Decoder:
    """Incremental decoding: the text of a short window with and without the new token; the difference is new.

    The window begins with the last tokens that gave text, since spaces and bytes may depend on the token before. Unlike
    `tokenizers.decoders.DecodeStream` it survives byte tokens that form no valid character.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool) -> None:
        decoder = getattr(tokenizer, "backend_tokenizer", None) or tokenizer  # the backend decodes several times faster
        self._decode: Callable[[list[int]], str] = lambda tokens: str(
            decoder.decode(tokens, skip_special_tokens=skip_special_tokens)
        )
        self._window: list[int] = []
        self._context = 0
        self._known = ""

    def step(self, token: int) -> str | None:
        """The text that this token completes; None in the middle of a character."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            return None
        new = text[len(self._known) :]
        if new:
            del self._window[: self._context]
            self._context = len(self._window)
            self._known = self._decode(self._window)
        return new

    def rest(self) -> str:
        """What the bytes of a character that never came to its end look like."""
        return self._decode(self._window)[len(self._known) :]
