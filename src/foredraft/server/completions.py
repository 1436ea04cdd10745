"""Answers of /v1/completions, whole and in chunks. Choices are numbered through all prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from foredraft.engine.outputs import Logprob
from foredraft.server.answers import (
    Identity,
    TextPlace,
    completion_logprobs,
    prompt_logprobs,
    token_bytes,
    token_name,
)
from foredraft.server.tickets import Job, JobDelta, PromptLogprobs, Result

__all__ = ["CompletionAnswer", "Echo"]


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt as it is repeated before the answer: its text, and its log-probabilities if they were asked for."""

    text: str
    tokens: Sequence[int]
    logprobs: Callable[[], PromptLogprobs | None]


@dataclass(slots=True)
class CompletionAnswer:
    """One request's answer, being written; fields as in ChatAnswer. `echoes` has one entry per prompt, or is empty.

    prompt_scores  the prompts' log-probabilities are part of a whole answer
    """

    identity: Identity
    logprobs: int | None
    token_ids: bool
    usage_null: bool
    jobs: Sequence[Job]
    totals: Callable[[], dict[str, Any]]
    echoes: Sequence[Echo] = ()
    generates: bool = True
    prompt_scores: bool = False
    _places: dict[int, TextPlace] = field(default_factory=dict)

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The answer in one object."""
        choices = []
        for number, (job, result) in enumerate(zip(self.jobs, results, strict=True)):
            if not self.generates:
                choices += [self._echo_only(number, copy, result) for copy in range(job.params.n)]
            for choice in result.output.outputs:
                text, entries, tokens = choice.text, list(choice.logprobs or []), choice.token_ids
                body = self._body(number, choice.index, text, tokens, entries, opening=True)
                body |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
                choices.append(body | self._prompt_scores(result))
        return {**self.identity.envelope(choices), **self.totals()}

    def step(self, part: JobDelta) -> Iterator[dict[str, Any]]:
        """Text, and how it ended."""
        delta = part.delta
        index = part.job * self.jobs[0].params.n + delta.index
        opening = index not in self._places
        if not (delta.text or delta.finish_reason or opening or self.logprobs is not None or self.token_ids):
            return
        body = self._body(
            part.job, delta.index, delta.text, delta.token_ids, list(delta.logprobs or []), opening=opening
        )
        body |= {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        chunk = self.identity.envelope([body])
        if self.usage_null:
            chunk["usage"] = None
        yield chunk

    def last(self) -> Iterator[dict[str, Any]]:
        """Prompts that nothing was generated for, and the usage chunk."""
        if not self.generates:
            for number, job in enumerate(self.jobs):
                for copy in range(job.params.n):
                    yield self.identity.envelope([self._echo_only(number, copy)])
        if self.usage_null:
            yield {**self.identity.envelope([]), **self.totals()}

    def _echo_only(self, number: int, copy: int, result: Result | None = None) -> dict[str, Any]:
        """A choice for max_tokens 0: the prompt and nothing else. `result` is known for whole answers."""
        body = self._body(number, copy, "", [], [], opening=True)
        body |= {"finish_reason": "length", "stop_reason": None}
        return body | (self._prompt_scores(result) if result else {})

    def _prompt_scores(self, result: Result) -> dict[str, Any]:
        wanted = self.prompt_scores and result.prompt_logprobs is not None
        return {"prompt_logprobs": prompt_logprobs(result.prompt_logprobs or [])} if wanted else {}

    def _body(
        self,
        number: int,
        choice: int,
        text: str,
        tokens: Sequence[int],
        entries: list[dict[int, Logprob]],
        *,
        opening: bool,
    ) -> dict[str, Any]:
        """A choice's next text; `opening` puts the prompt before it if it is echoed."""
        index = number * self.jobs[number].params.n + choice
        echo = self.echoes[number] if self.echoes and opening else None
        self._places.setdefault(index, TextPlace())
        body: dict[str, Any] = {"index": index, "text": (echo.text if echo else "") + text, "logprobs": None}
        if self.logprobs is not None:
            prompt = self._prompt_logprobs(index, echo) if echo else {}
            answer = completion_logprobs(tokens, entries, self.logprobs, self._places[index])
            body["logprobs"] = {name: prompt.get(name, []) + values for name, values in answer.items()}
        if self.token_ids:
            body["token_ids"] = list(tokens)
            if opening:
                body["prompt_token_ids"] = self.jobs[number].prompt
        return body

    def _prompt_logprobs(self, index: int, echo: Echo) -> dict[str, list[Any]]:
        """Those of the echoed tokens; the choice's place is behind them afterwards.

        The first token has a text, though no log-probability: what the others leave of the prompt.
        """
        scored = [entry for entry in echo.logprobs() or [] if entry is not None]
        following = list(echo.tokens)[1:]
        rest = b"".join(token_bytes(entry[token]) for token, entry in zip(following, scored, strict=True))
        first, start = _first_token(echo.text, rest)
        place = self._places[index] = TextPlace(start)
        offset = place.advance(first)
        others = completion_logprobs(following, scored, self.logprobs or 0, place)
        place.close()
        opening = {"tokens": token_name(first), "token_logprobs": None, "top_logprobs": None, "text_offset": offset}
        return {name: [opening[name], *values] for name, values in others.items()}


def _first_token(text: str, rest: bytes) -> tuple[bytes, int]:
    """The prompt's first token, given its text and the bytes of its other tokens; and where in the text it begins.

    That is before the text if the others are longer: a decoder leaves out the space that its first word has. So the
    rest is in its place all the same.
    """
    whole = text.encode("utf-8", "replace")
    if whole.endswith(rest):
        return whole[: len(whole) - len(rest)], 0
    left = len(text) - len(rest.decode("utf-8", "replace"))
    return text[: max(0, left)].encode("utf-8", "replace"), min(0, left)
