"""Answers of /v1/completions, whole and in chunks. Choices are numbered through all prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from foredraft.engine.outputs import Logprob
from foredraft.server.answers import Identity, completion_logprobs, prompt_logprobs
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

    first_texts  the text of each prompt's first token, which has no log-probability of its own
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
    _offsets: dict[int, int] = field(default_factory=dict)

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The answer in one object."""
        choices = []
        for number, (job, result) in enumerate(zip(self.jobs, results, strict=True)):
            if not self.generates:
                choices += [self._echo_only(number, copy) for copy in range(job.params.n)]
            for choice in result.output.outputs:
                text, entries, tokens = choice.text, list(choice.logprobs or []), choice.token_ids
                body = self._body(number, choice.index, text, tokens, entries, opening=True)
                body |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
                if self.prompt_scores and result.prompt_logprobs is not None:
                    body["prompt_logprobs"] = prompt_logprobs(result.prompt_logprobs)
                choices.append(body)
        return {**self.identity.envelope(choices), **self.totals()}

    def step(self, part: JobDelta) -> Iterator[dict[str, Any]]:
        """Text, and how it ended."""
        delta = part.delta
        index = part.job * self.jobs[0].params.n + delta.index
        opening = index not in self._offsets
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

    def _echo_only(self, number: int, copy: int) -> dict[str, Any]:
        """A choice for max_tokens 0: the prompt and nothing else."""
        body = self._body(number, copy, "", [], [], opening=True)
        return {**body, "finish_reason": "length", "stop_reason": None}

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
        offset = self._offsets.get(index, 0)
        shown = (echo.text if echo else "") + text
        self._offsets[index] = offset + len(shown)
        body: dict[str, Any] = {"index": index, "text": shown, "logprobs": None}
        if self.logprobs is not None:
            scored = (echo.logprobs() or []) if echo else []
            before = list(echo.tokens) if echo and scored else []
            start = offset if scored or echo is None else offset + len(echo.text)
            both: list[dict[int, Logprob] | None] = [*scored, *entries]
            body["logprobs"] = completion_logprobs([*before, *tokens], both, self.logprobs, start)
            if before:
                self._complete_first(body["logprobs"], echo)
        if self.token_ids:
            body["token_ids"] = list(tokens)
            if opening:
                body["prompt_token_ids"] = self.jobs[number].prompt
        return body

    def _complete_first(self, logprobs: dict[str, Any], echo: Echo | None) -> None:
        """The prompt's first token has a text, though no log-probability: what the others leave of the prompt."""
        assert echo is not None
        rest = sum(len(text) for text in logprobs["tokens"][1 : len(echo.tokens)])
        logprobs["tokens"][0] = echo.text[: max(0, len(echo.text) - rest)]
        first = len(logprobs["tokens"][0])
        logprobs["text_offset"] = [0, *(offset + first for offset in logprobs["text_offset"][1:])]
