"""Answers in OpenAI's shapes, as plain dictionaries: identity, choices, log-probabilities, usage.

Streams and whole answers are made from the same parts. Log-probabilities are the model's raw ones; minus infinity,
which JSON lacks, is written as -9999 as in vLLM. Tokens that are no whole characters read "bytes:\\xf0\\x9f" in plain
completions, which have no other place for their bytes; OpenAI wrote them so, and what comes after the colon is undone
by Python's "unicode_escape" and "latin-1". In chat they read as U+FFFD, and have their bytes beside it.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from foredraft.engine.outputs import CompletionOutput, Logprob, SpeculationStats
from foredraft.server.tickets import Job, PromptLogprobs, Result

__all__ = [
    "Identity",
    "TextPlace",
    "chat_logprobs",
    "completion_logprobs",
    "prompt_logprobs",
    "speculation",
    "token_bytes",
    "token_name",
    "usage",
]

LOWEST_LOGPROB = -9999.0
PREDICTION_START = -1

Entry = dict[int, Logprob]


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of an answer repeats."""

    id: str
    object: str
    created: int
    model: str
    fingerprint: str

    def envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


class TextPlace:
    """Where in a text its next token begins, counted in characters from `start`.

    A token that goes on with a character begins where the character does.
    """

    def __init__(self, start: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._next = start

    def advance(self, token: bytes) -> int:
        """Where this token begins; what is asked next is where the one after it does."""
        if token and not 0x80 <= token[0] < 0xC0:  # it begins a character
            self.close()
        begin = self._next
        self._next += len(self._decoder.decode(token))
        return max(0, begin)

    def close(self) -> None:
        """What is unfinished of a character stays so, and is shown as one that is wrong."""
        self._next += len(self._decoder.decode(b"", final=True))


def chat_logprobs(tokens: Sequence[int], entries: Sequence[Entry] | None, count: int) -> dict[str, Any] | None:
    """One element per token, each with its `count` likeliest alternatives."""
    if entries is None:
        return None
    content = [
        {**_token(entry[token]), "top_logprobs": [_token(entry[other]) for other in _likeliest(entry, count)]}
        for token, entry in zip(tokens, entries, strict=True)
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokens: Sequence[int], entries: Sequence[Entry], count: int, place: TextPlace
) -> dict[str, list[Any]]:
    """Parallel lists. `place` is where the first token begins, and afterwards where the next one will."""
    values = [entry[token] for token, entry in zip(tokens, entries, strict=True)]
    return {
        "tokens": [_name(value) for value in values],
        "token_logprobs": [_finite(value.logprob) for value in values],
        "top_logprobs": [_alternatives(entry, token, count) for token, entry in zip(tokens, entries, strict=True)],
        "text_offset": [place.advance(token_bytes(value)) for value in values],
    }


def token_name(raw: bytes) -> str:
    """A token as plain completions write it: its text, or its bytes if they are no whole characters."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        plain = (chr(byte) if 0x20 <= byte < 0x7F and byte != ord("\\") else f"\\x{byte:02x}" for byte in raw)
        return "bytes:" + "".join(plain)


def token_bytes(value: Logprob) -> bytes:
    """What a token adds to the text, in UTF-8."""
    if value.bytes is not None:
        return bytes(value.bytes)
    return (value.decoded_token or "").encode("utf-8", "replace")


def prompt_logprobs(entries: PromptLogprobs) -> list[dict[str, Any] | None]:
    """vLLM's shape: by token id, with rank and text."""
    return [
        None
        if entry is None
        else {
            str(token): {
                "logprob": _finite(value.logprob),
                "rank": value.rank,
                "decoded_token": value.decoded_token,
            }
            for token, value in entry.items()
        }
        for entry in entries
    ]


def usage(jobs: Sequence[Job], results: Sequence[Result], *, accounted: bool) -> dict[str, Any]:
    """Tokens of all prompts and answers. `accounted` adds what became of a prediction."""
    prompt = sum(len(job.prompt) for job in jobs)
    choices = [choice for result in results for choice in result.output.outputs]
    completion = sum(len(choice.token_ids) for choice in choices)
    cached = sum(result.output.num_cached_tokens for result in results)
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if accounted:
        accepted = total = 0
        for job, result in zip(jobs, results, strict=True):
            for choice in result.output.outputs:
                accepted += _predicted(job.prediction, choice)
                total += len(job.prediction)
        counts["completion_tokens_details"] = {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": total - accepted,
        }
    return counts


def speculation(results: Sequence[Result]) -> dict[str, object]:
    """vLLM's `speculative_decoding`, over all choices."""
    stats = [choice.speculative_decoding for result in results for choice in result.output.outputs]
    total = SpeculationStats(limit=max((one.limit for one in stats), default=0))
    for one in stats:
        total.add(one)
    return total.as_dict()


def _predicted(prediction: tuple[int, ...], choice: CompletionOutput) -> int:
    """How many of the prediction's tokens came out as accepted drafts; each of them counts once.

    A draft counts if the prediction has it after the same token, since drafts may come from the prompt, too.
    """
    left = Counter(pairwise((PREDICTION_START, *prediction)))
    accepted = 0
    for pair, drafted in zip(pairwise((PREDICTION_START, *choice.token_ids)), choice.drafted, strict=True):
        if drafted and left[pair] > 0:
            left[pair] -= 1
            accepted += 1
    return accepted


def _alternatives(entry: Entry, token: int, count: int) -> dict[str, float]:
    """The likeliest tokens, and the token itself, which is always there, as at OpenAI.

    Two tokens may read the same, a byte and the character that it is for one. Neither may get lost, so the one that
    comes second is named by its id, in vLLM's way.
    """
    likeliest = _likeliest(entry, count)
    own, named = _name(entry[token]), dict[str, float]()
    for other in likeliest if token in likeliest else [*likeliest, token]:
        name = _name(entry[other])
        if other != token and (name == own or name in named):
            name = f"token_id:{other}"
        named[name] = _finite(entry[other].logprob)
    return named


def _likeliest(entry: Entry, count: int) -> list[int]:
    return sorted((token for token in entry if entry[token].rank <= count), key=lambda token: entry[token].rank)[:count]


def _name(value: Logprob) -> str:
    """What the text is without, such as an end token, has a name all the same."""
    return token_name(token_bytes(value)) or value.decoded_token or ""


def _token(value: Logprob) -> dict[str, Any]:
    raw = token_bytes(value)
    text = raw.decode("utf-8", "replace") or value.decoded_token or ""
    return {"token": text, "logprob": _finite(value.logprob), "bytes": list(raw)}


def _finite(value: float) -> float:
    return max(value, LOWEST_LOGPROB)
