"""Log-probabilities of emitted tokens: the target's raw ones, before temperature, penalties and filters, as vLLM's
default.

Each goes with its token's text and bytes. A character may be split between tokens, and then neither has a text of its
own (U+FFFD stands for it); but the bytes of an answer's tokens, joined, are the UTF-8 of its text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Collection
from typing import TYPE_CHECKING, Any

from torch import Tensor

from foredraft.engine.outputs import Logprob
from foredraft.sampling import Rows, raw_logprobs
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TokenBytes", "emitted_logprobs", "token_logprobs"]

BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")
CONTEXT = "a"
"""A piece that may come before any other."""


def emitted_logprobs(
    logits: Tensor, rows: list[Rows], verdict: Verdict, tokenizer: PreTrainedTokenizerBase | None = None
) -> list[list[dict[int, Logprob]] | None]:
    """For each sequence, for each token it emitted: the token and the most likely ones. None where not asked for.

    logits [R, V], the rows of all sequences one after the other
    """
    result: list[list[dict[int, Logprob]] | None] = []
    first = 0
    for part, path, emitted, length in zip(
        rows, verdict.path.tolist(), verdict.tokens.tolist(), verdict.lengths.tolist(), strict=True
    ):
        params = part.sequence.params
        if params.logprobs is None:
            result.append(None)
        else:
            at = [first, *(first + 1 + node for node in path if node >= 0)]
            values = raw_logprobs(logits[at])
            entries = [_entry(values[index], emitted[index], params.logprobs) for index in range(length)]
            begins = part.sequence.output_length == 0
            result.append(_with_texts(entries, tokenizer, begins=begins, skip_special=params.skip_special_tokens))
        first += len(part.paths)
    return result


def token_logprobs(
    logits: Tensor, tokens: Collection[int], count: int, tokenizer: PreTrainedTokenizerBase | None = None
) -> list[dict[int, Logprob]]:
    """The entry of tokens[i] in row i of logits [n, V], with the `count` most likely ones."""
    values = raw_logprobs(logits)
    return _with_texts([_entry(values[row], token, count) for row, token in enumerate(tokens)], tokenizer)


class TokenBytes:
    """What single tokens add to the UTF-8 of a text.

    How a fast tokenizer writes bytes into its vocabulary is found out by asking its decoder, not its configuration.
    Tokenizers written in Python don't tell; with them it is the UTF-8 of the token's text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._by_letter = self._backend is not None and self._decode("Ġ") == " "
        self._by_number = self._backend is not None and self._decode("<0x41>") == "A"

    def of(self, token: int, *, begins: bool = False, skip_special: bool = False) -> bytes:
        """A token's bytes.

        begins        it is the first of the text, where some decoders leave a space out
        skip_special  the text is without special tokens, so that these add nothing
        """
        if self._backend is None:
            skipped = skip_special and token in self._tokenizer.all_special_ids
            return b"" if skipped else _utf8(str(self._tokenizer.decode([token])))
        piece = self._backend.id_to_token(token)
        if piece is None or (skip_special and self._is_special(token)):
            return b""
        if self._by_letter:
            return _bytes_of_letters(piece)
        if self._by_number and (number := BYTE_PIECE.fullmatch(piece)):
            return bytes([int(number[1], 16)])
        return _utf8(self._decode(piece) if begins else self._decode_within(piece))

    def _decode_within(self, piece: str) -> str:
        """The text of a piece that is not the first, which is where many have their space."""
        before, both = self._decode(CONTEXT), self._decode(CONTEXT, piece)
        return both.removeprefix(before) if both.startswith(before) else self._decode(piece)

    def _decode(self, *pieces: str) -> str:
        decoder = self._backend.decoder
        return " ".join(pieces) if decoder is None else str(decoder.decode(list(pieces)))

    def _is_special(self, token: int) -> bool:
        if self._backend.decode([token], skip_special_tokens=True):
            return False
        added = self._backend.get_added_tokens_decoder()  # slow where there are thousands, hence not asked first
        return token in added and bool(added[token].special)


def _letters() -> dict[str, int]:
    """The printable letter that byte-level vocabularies have for each byte: itself if it is one, else one from 256."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_OF_LETTER = _letters()


def _bytes_of_letters(piece: str) -> bytes:
    """As the decoder reads it: a piece with any other letter in it, mostly an added token, is plain text."""
    try:
        return bytes([BYTE_OF_LETTER[letter] for letter in piece])
    except KeyError:
        return _utf8(piece)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _entry(values: Tensor, token: int, count: int) -> dict[int, Logprob]:
    entry = {token: Logprob(float(values[token]), int((values > values[token]).sum()) + 1)}
    if count:
        best = values.topk(min(count, len(values)))
        for rank, (value, other) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True), start=1):
            entry.setdefault(other, Logprob(value, rank))
    return entry


def _with_texts(
    entries: list[dict[int, Logprob]],
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    begins: bool = False,
    skip_special: bool = False,
) -> list[dict[int, Logprob]]:
    """The entries of successive tokens; `begins` tells whether the first of them is the text's first."""
    if tokenizer is None:
        return entries
    read = TokenBytes(tokenizer)
    return [
        {
            token: value._replace(
                decoded_token=str(tokenizer.decode([token])),
                bytes=tuple(read.of(token, begins=begins and place == 0, skip_special=skip_special)),
            )
            for token, value in entry.items()
        }
        for place, entry in enumerate(entries)
    ]
