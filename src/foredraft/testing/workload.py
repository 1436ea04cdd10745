"""Requests that exercise every processor, and decoding them with a given engine.

The reference for all of them is `decode_plainly`: each request alone, without a drafter. `difference` compares two
answers and says in words where they part.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Collection
from dataclasses import dataclass, replace

from foredraft.engine.engine import Engine
from foredraft.engine.outputs import CompletionOutput
from foredraft.engine.requests import Request
from foredraft.target.target import Target
from foredraft.types import FinishReason, SamplingParams

__all__ = ["Answer", "Ask", "decode", "decode_plainly", "difference", "mixed_asks", "with_predictions"]

Answer = list[CompletionOutput]
"""All choices of one request."""


@dataclass(frozen=True)
class Ask:
    """A request; its name doubles as request id. `prediction` is what the caller expects as the answer."""

    name: str
    prompt: tuple[int, ...]
    params: SamplingParams
    prediction: tuple[int, ...] = ()


def mixed_asks(vocab_size: int, temperature: float, *, max_tokens: int = 20, seed: int = 0) -> list[Ask]:
    """One request per kind of processing, with prompts from a single token up to several chunks."""
    own = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=1000 + seed, logprobs=2)
    some = random.Random(seed).sample(range(3, vocab_size), 12)
    kinds = {
        "no processor": own,
        "filters": replace(own, top_k=12, top_p=0.9, min_p=0.02),
        "penalties": replace(own, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4),
        "bias, minimum and stops": replace(
            own,
            logit_bias={some[0]: 4.0, some[1]: -100.0, 2: 6.0},
            min_tokens=max_tokens // 2,
            stop_token_ids=tuple(some[2:8]),
        ),
        "two choices": replace(own, n=2, logprobs=0),
        "past the end token": replace(own, ignore_eos=True, logprobs=None),
    }
    lengths = (1, 19, 4, 40, 7, 23)
    return [
        Ask(name, _prompt(vocab_size, length, seed + index), params)
        for index, (length, (name, params)) in enumerate(zip(lengths, kinds.items(), strict=True))
    ]


def decode(
    engine: Engine,
    asks: Collection[Ask],
    *,
    arrivals: Collection[int] = (),
    aborts: Mapping[int, str] | None = None,
    after_step: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """Decode requests together and return their answers in order.

    arrivals    the step before which each request is added (default: all at once)
    aborts      before this step, abort the request of that name
    after_step  called after every step
    Raises AssertionError when the engine doesn't come to an end.
    """
    due: dict[int, list[Ask]] = defaultdict(list)
    for ask, step in zip(asks, arrivals or [0] * len(asks), strict=True):
        due[step].append(ask)
    requests: dict[str, Request] = {}
    limit = 50 + 8 * sum(ask.params.n * (len(ask.prompt) + (ask.params.max_tokens or 0)) for ask in asks)
    for step in range(limit):
        for ask in due.pop(step, []):
            requests[ask.name] = engine.add(ask.prompt, ask.params, request_id=ask.name, prediction=ask.prediction)
        if aborts and step in aborts:
            engine.abort(aborts[step])
        if engine.idle and not due:
            break
        engine.step()
        after_step()
    assert engine.idle, f"After {limit} steps the engine still hasn't finished {len(asks)} short requests."
    return [[choice.output for choice in requests[ask.name].choices] for ask in asks]


def decode_plainly(make_target: Callable[[], Target], asks: Collection[Ask]) -> list[Answer]:
    """The reference: every request alone, without a drafter, on a target of its own."""
    return [decode(Engine(make_target()), [ask])[0] for ask in asks]


def with_predictions(asks: Collection[Ask], answers: Collection[Answer]) -> list[Ask]:
    """The same requests, expecting the answers they get but for a gap and a wrong token."""
    expected = [answer[0].token_ids for answer in answers]
    return [
        replace(ask, prediction=(*tokens[:5], *tokens[7:12], ask.prompt[0], *tokens[13:]))
        for ask, tokens in zip(asks, expected, strict=True)
    ]


def difference(answer: Answer, reference: Answer) -> str | None:
    """Where an answer departs from the plain one, as the end of a sentence; None if they are the same.

    An aborted choice must be a beginning of the reference.
    """
    for choice, (found, wanted) in enumerate(zip(answer, reference, strict=True)):
        where = f"choice {choice} " if len(answer) > 1 else ""
        expected = wanted.token_ids
        if found.finish_reason is FinishReason.ABORT:
            expected = expected[: len(found.token_ids)]
        for position, (one, other) in enumerate(zip(found.token_ids, expected, strict=False)):
            if one != other:
                return (
                    f"{where}emits token {one} at position {position} of the answer, where plain decoding emits {other}"
                )
        if len(found.token_ids) != len(expected):
            return f"{where}emits {len(found.token_ids)} tokens, where plain decoding emits {len(expected)}"
        if found.finish_reason is not FinishReason.ABORT and (found.finish_reason, found.stop_reason) != (
            wanted.finish_reason,
            wanted.stop_reason,
        ):
            return (
                f"{where}finishes by {found.finish_reason} ({found.stop_reason}), where plain decoding finishes "
                f"by {wanted.finish_reason} ({wanted.stop_reason})"
            )
        if (index := _first_different_logprob(found, wanted)) is not None:
            return f"{where}reports other log-probabilities for token {index} than plain decoding"
    return None


def _first_different_logprob(found: CompletionOutput, wanted: CompletionOutput) -> int | None:
    if found.logprobs is None or wanted.logprobs is None:
        return None if found.logprobs is wanted.logprobs else 0
    if len(found.logprobs) != len(found.token_ids):
        return len(found.logprobs)
    for index, (one, other) in enumerate(zip(found.logprobs, wanted.logprobs, strict=False)):
        if one.keys() != other.keys() or any(
            one[token].rank != other[token].rank
            or not math.isclose(one[token].logprob, other[token].logprob, abs_tol=1e-4)
            for token in one
        ):
            return index
    return None


def _prompt(vocab_size: int, length: int, seed: int) -> tuple[int, ...]:
    """Random phrases that return, so that a drafter which looks back finds something."""
    source = random.Random(seed)
    phrase = [source.randrange(3, vocab_size) for _ in range(min(length, 6))]
    tokens: list[int] = []
    while len(tokens) < length:
        tokens += phrase if source.random() < 0.6 else [source.randrange(3, vocab_size) for _ in range(3)]
    return tuple(tokens[:length])
