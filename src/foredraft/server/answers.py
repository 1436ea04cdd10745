"""Answers in OpenAI's shapes, as plain dictionaries: identity, choices, log-probabilities, usage.

Streams and whole answers are made from the same parts. Log-probabilities are the model's raw ones; minus infinity,
which JSON lacks, is written as -9999 as in vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from foredraft.engine.outputs import CompletionOutput, Logprob, SpeculationStats
from foredraft.server.tickets import Job, PromptLogprobs, Result

__all__ = [
    "Identity",
    "chat_logprobs",
    "completion_logprobs",
    "prompt_logprobs",
    "speculation",
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


def chat_logprobs(tokens: Sequence[int], entries: Sequence[Entry] | None, count: int) -> dict[str, Any] | None:
    """One element per token, each with its `count` likeliest alternatives."""
    if entries is None:
        return None
    content = [
        {**_token(entry[token]), "top_logprobs": [_token(value) for value in _likeliest(entry, count)]}
        for token, entry in zip(tokens, entries, strict=True)
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokens: Sequence[int], entries: Sequence[Entry | None], count: int, offset: int
) -> dict[str, Any]:
    """Parallel lists; `offset` is where in the text the first token begins. A prompt's first token has no entry."""
    texts: list[str | None] = []
    values: list[float | None] = []
    alternatives: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for token, entry in zip(tokens, entries, strict=True):
        if entry is None:
            texts.append(None)
            values.append(None)
            alternatives.append(None)
        else:
            texts.append(entry[token].decoded_token or "")
            values.append(_finite(entry[token].logprob))
            top = {value.decoded_token or "": _finite(value.logprob) for value in _likeliest(entry, count)}
            top.setdefault(texts[-1] or "", values[-1] or 0.0)  # the token itself is always there, as at OpenAI
            alternatives.append(top)
        offsets.append(offset)
        offset += len(texts[-1] or "")
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": alternatives, "text_offset": offsets}


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


def _likeliest(entry: Entry, count: int) -> list[Logprob]:
    return sorted((value for value in entry.values() if value.rank <= count), key=lambda value: value.rank)[:count]


def _token(value: Logprob) -> dict[str, Any]:
    text = value.decoded_token or ""
    return {"token": text, "logprob": _finite(value.logprob), "bytes": list(text.encode("utf-8", "replace"))}


def _finite(value: float) -> float:
    return max(value, LOWEST_LOGPROB)
