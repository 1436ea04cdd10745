"""From tokens to text, one token at a time.

Characters may be split across tokens and stop strings across tokens and steps, so text is held back while it may still
be part of either. The pieces that are released, joined, are the whole answer, and each remembers whether its token came
from a draft.
"""

from __future__ import annotations

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
        self._stop = stop
        self._include_stop = include_stop
        self._unfinished = False
        self._held: list[Piece] = []
        self._text = ""

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
        searched_from = len(self._text)
        self._text += text
        self._held.append(Piece(text, drafted))
        return self._cut_at_stop(searched_from) if check_stop and self._stop else None

    def release(self, *, final: bool) -> list[Piece]:
        """The pieces that no later token can take back; all of them when `final`."""
        if final and self._unfinished:
            tail = self._decoder.rest()
            if tail:
                self._text += tail
                self._held.append(Piece(tail, False))
        keep = 0 if final else self._possible_stop()
        released: list[Piece] = []
        while self._held and keep < sum(len(piece.text) for piece in self._held):
            piece = self._held.pop(0)
            excess = keep - sum(len(later.text) for later in self._held)
            if excess > 0:
                self._held.insert(0, Piece(piece.text[-excess:], piece.drafted))
                piece = Piece(piece.text[:-excess], piece.drafted)
            released.append(piece)
        return released

    def _cut_at_stop(self, searched_from: int) -> str | None:
        found = [
            (at, stop)
            for stop in self._stop
            if (at := self._text.find(stop, max(0, searched_from - len(stop) + 1))) >= 0
        ]
        if not found:
            return None
        at, stop = min(found)
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

    def _possible_stop(self) -> int:
        """Length of the longest end of the text that may be the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self._text)), longest, -1):
                if self._text.endswith(stop[:length]):
                    longest = length
                    break
        return longest


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
