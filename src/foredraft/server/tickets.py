"""What the event loop and the engine's thread exchange.

A `Ticket` is one HTTP request's work: one `Job` for each of its prompts. The event loop makes it and reads its events;
the engine's thread decodes the jobs and posts what happens. Each side writes its own fields only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple

from foredraft.engine.outputs import Delta, Logprob, RequestOutput
from foredraft.engine.structured import CompiledForm
from foredraft.server.api_errors import ApiError
from foredraft.types import SamplingParams

__all__ = ["Event", "Job", "JobDelta", "Result", "Ticket"]

GRACE_SECONDS = 5.0

PromptLogprobs = list[dict[int, Logprob] | None]


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt to continue.

    score     alternatives per token of the prompt, if its log-probabilities are wanted
    generate  False: score the prompt only
    form      what `params.structured` was compiled to
    """

    prompt: list[int]
    params: SamplingParams
    text: str | None = None
    prediction: tuple[int, ...] = ()
    score: int | None = None
    generate: bool = True
    form: CompiledForm | None = None


@dataclass(slots=True)
class Result:
    """What became of a job."""

    output: RequestOutput
    prompt_logprobs: PromptLogprobs | None = None


class JobDelta(NamedTuple):
    """What a step added to a choice of job number `job`."""

    job: int
    delta: Delta


class Event(NamedTuple):
    """News about a ticket: what one step added, and whether that was all; or why it failed."""

    deltas: list[JobDelta]
    finished: bool = False
    error: BaseException | None = None


@dataclass(eq=False, slots=True)
class Ticket:
    """Times are by time.monotonic().

    streams      whether every step is reported, or the end only
    deadline     when it is given up
    started      when the first of its sequences was scheduled; then first_token and ended
    failure      what it failed with
    """

    id: str
    jobs: tuple[Job, ...]
    streams: bool
    deadline: float | None = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    created: float = field(default_factory=time.monotonic)
    results: list[Result | None] = field(default_factory=list)
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    failure: BaseException | None = None
    open_jobs: int = 0
    over: bool = False
    _events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)

    @property
    def choices(self) -> int:
        """Sequences it needs."""
        return sum(job.params.n for job in self.jobs)

    def post(self, event: Event) -> None:
        """Called in the event loop."""
        if event.finished or event.error is not None:
            self.over, self.failure, self.ended = True, event.error, time.monotonic()
        self._events.put_nowait(event)

    async def events(self) -> AsyncIterator[list[JobDelta]]:
        """What the steps added, until the end; raises what the ticket failed with."""
        while True:
            event = await self._next()
            if event.error is not None:
                raise event.error
            if event.deltas:
                yield event.deltas
            if event.finished:
                return

    async def _next(self) -> Event:
        """The engine's thread gives up late tickets itself, between steps. If it doesn't, a step hangs."""
        if self.deadline is None:
            return await self._events.get()
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.monotonic()) + GRACE_SECONDS):
                return await self._events.get()
        except TimeoutError as error:
            raise ApiError(504, "The engine did not answer by the request's deadline.", code="deadline") from error

    async def finish(self) -> list[Result]:
        """All results, when everything is decoded."""
        async for _ in self.events():
            pass
        return self.done_results

    @property
    def done_results(self) -> list[Result]:
        return [result for result in self.results if result is not None]
