"""The work of tickets in one engine. Everything here is called from the engine's thread only.

Whatever goes wrong with one ticket is that ticket's error: its requests leave the engine, its reader is told, and
decoding goes on with the others. If a whole step fails, the requests in it do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from foredraft.engine.llm import LLM
from foredraft.engine.outputs import Delta, RequestOutput
from foredraft.engine.requests import Request
from foredraft.engine.scoring import PromptScoring
from foredraft.server.api_errors import CLIENT_LEFT, ApiError
from foredraft.server.observer import EngineLoad, Observer
from foredraft.server.tickets import Event, Job, JobDelta, Result, Ticket

__all__ = ["RETRY_SECONDS", "TicketDecoder", "stopping"]

RETRY_SECONDS = 1

logger = logging.getLogger(__name__)


def stopping() -> ApiError:
    return ApiError(503, "The server is shutting down.", retry_after=RETRY_SECONDS)


@dataclass(slots=True)
class _Work:
    """An engine request and whose it is. Times are by time.monotonic(): when it was first scheduled, when it first
    emitted, and when each of its choices last did.
    """

    ticket: Ticket
    job: int
    request: Request
    started: float | None = None
    first: float | None = None
    last: dict[int, float] = field(default_factory=dict)


class _Scoring(NamedTuple):
    ticket: Ticket
    job: int
    scoring: PromptScoring


class TicketDecoder:
    """Decodes tickets with `llm`; `closed` is called once for each ticket that is over.

    failing  whether the last step raised with no request to blame, so that the next ones will, too
    """

    def __init__(self, llm: LLM, observer: Observer, closed: Callable[[Ticket], None]) -> None:
        self.failing = False
        self._engine = llm.engine
        self._target = llm.target
        self._observer = observer
        self._closed = closed
        self._work: dict[str, _Work] = {}
        self._scoring: deque[_Scoring] = deque()
        self._tickets: set[Ticket] = set()
        self._outbox: list[tuple[Ticket, Event]] = []

    @property
    def idle(self) -> bool:
        return not self._scoring and self._engine.idle

    def accept(self, ticket: Ticket) -> None:
        """Begin with a ticket."""
        self._tickets.add(ticket)
        ticket.results = [None] * len(ticket.jobs)
        ticket.open_jobs = len(ticket.jobs)
        try:
            for index, job in enumerate(ticket.jobs):
                if job.score is None:
                    self._add(ticket, index)
                else:
                    chunk = self._engine.scheduler.max_batched_tokens
                    scoring = PromptScoring(self._target, job.prompt, job.score, chunk=chunk)
                    self._scoring.append(_Scoring(ticket, index, scoring))
        except BaseException as error:  # refused or broken, it concerns this ticket only
            self._fail(ticket, error)

    def cancel(self, ticket: Ticket) -> None:
        """Give a ticket up, unless it is over."""
        if ticket in self._tickets:
            self._fail(ticket, ApiError(CLIENT_LEFT, "The client left."))

    def advance(self) -> None:
        """One step for everybody, and what it changed."""
        self._expire()
        self._score()
        self._step()
        self._observer.loaded(EngineLoad.of(self._engine))  # first, so that answers find fresh gauges
        self._flush()

    def start_over(self, error: BaseException) -> None:
        """Fail all tickets, and leave the engine ready for others."""
        self._engine.drop_running()
        for ticket in list(self._tickets):
            self._fail(ticket, error)
        self._flush()

    def close(self, error: Exception) -> None:
        """Tell the readers of all tickets that this was it. Nothing else is touched, since it may be broken."""
        for ticket in list(self._tickets):
            self._close(ticket, Event([], error=error))
        self._flush()

    def _add(self, ticket: Ticket, index: int) -> None:
        job = ticket.jobs[index]
        request = self._engine.add(job.prompt, job.params, text=job.text, prediction=job.prediction, form=job.form)
        self._work[request.id] = _Work(ticket, index, request)

    def _expire(self) -> None:
        now = time.monotonic()
        for ticket in [one for one in self._tickets if one.deadline is not None and now > one.deadline]:
            if ticket.first_token is None:
                waited = "The request waited until its deadline; the server is overloaded."
                self._fail(ticket, ApiError(503, waited, code="deadline", retry_after=RETRY_SECONDS))
            else:
                self._fail(ticket, ApiError(504, "The request was not done by its deadline.", code="deadline"))

    def _score(self) -> None:
        """One chunk of the oldest prompt that is to be scored."""
        if not self._scoring:
            return
        ticket, index, scoring = self._scoring[0]
        job = ticket.jobs[index]
        try:
            scoring.advance()
            if not scoring.done:
                return
            self._scoring.popleft()
            if job.generate:
                self._add(ticket, index)
                ticket.results[index] = Result(_nothing_yet(job), scoring.logprobs)
            else:
                self._finish(ticket, index, Result(_nothing_yet(job), scoring.logprobs))
        except Exception as error:  # it concerns this ticket only
            logger.exception("Scoring a prompt failed")
            self._fail(ticket, error)

    def _step(self) -> None:
        engine = self._engine
        if engine.idle:
            return
        try:
            deltas = engine.step()
        except Exception as error:  # fails what was running; the others go on
            logger.exception("A step of the engine failed")
            dropped = {self._work[name].ticket for name in engine.drop_running() if name in self._work}
            self.failing = not dropped  # nothing left to blame: the engine itself is broken
            self._observer.step_failed()
            for ticket in dropped or set(self._tickets):
                self._fail(ticket, error)
            return
        self.failing = False
        now = time.monotonic()
        self._fail_broken()
        self._note_starts(now)
        self._deliver(deltas, now)
        self._observer.stepped(engine, deltas)

    def _fail_broken(self) -> None:
        """Requests that the engine couldn't go on with, while it did with the others."""
        broken = {work.ticket: failure for work in self._work.values() if (failure := work.request.failure) is not None}
        for ticket, failure in broken.items():
            logger.error("Request %s failed", ticket.id, exc_info=failure)
            self._observer.request_failed()
            self._fail(ticket, failure)

    def _note_starts(self, now: float) -> None:
        for work in self._work.values():
            if work.started is None and any(choice.sequence.slot is not None for choice in work.request.choices):
                self._note_start(work, now)

    def _note_start(self, work: _Work, now: float) -> None:
        work.started = now
        work.ticket.started = work.ticket.started or now
        self._observer.started(now - work.ticket.created)

    def _deliver(self, deltas: list[Delta], now: float) -> None:
        """Post a step's news, one event for each ticket that is concerned."""
        news: dict[Ticket, list[JobDelta]] = {}
        for delta in deltas:
            work = self._work.get(delta.request_id)
            if work is None:
                continue
            if work.started is None:
                self._note_start(work, now)
            if work.first is None:
                work.first = now
                self._observer.first_token(now - work.ticket.created)
                work.ticket.first_token = work.ticket.first_token or now
            if (last := work.last.get(delta.index)) is not None:
                self._observer.next_tokens(now - last)
            work.last[delta.index] = now
            news.setdefault(work.ticket, []).append(JobDelta(work.job, delta))
        for ticket, parts in news.items():
            if ticket.streams:
                self._outbox.append((ticket, Event(parts)))
            for part in parts:
                work = self._work.get(part.delta.request_id)
                if work is not None and work.request.result().finished:
                    self._end(work, now)

    def _end(self, work: _Work, now: float) -> None:
        del self._work[work.request.id]
        output = work.request.result()
        self._observer.finished(output, now - work.ticket.created, (work.first or now, now))
        scored = work.ticket.results[work.job]
        self._finish(work.ticket, work.job, Result(output, scored.prompt_logprobs if scored else None))

    def _finish(self, ticket: Ticket, index: int, result: Result) -> None:
        ticket.results[index] = result
        ticket.open_jobs -= 1
        if ticket.open_jobs == 0:
            self._close(ticket, Event([], finished=True))

    def _fail(self, ticket: Ticket, error: BaseException) -> None:
        """Take everything of a ticket out of the engine and tell its reader why."""
        for name in [name for name, work in self._work.items() if work.ticket is ticket]:
            work = self._work.pop(name)
            try:
                self._engine.abort(name)
            except Exception:  # the ticket's other requests still have to go
                logger.exception("A request could not be aborted")
            self._observer.aborted(work.request.result())
        self._scoring = deque(entry for entry in self._scoring if entry.ticket is not ticket)
        known = error if isinstance(error, Exception) else RuntimeError(repr(error))  # what an event loop can carry
        self._close(ticket, Event([], error=known))

    def _close(self, ticket: Ticket, event: Event) -> None:
        if ticket not in self._tickets:
            return
        self._tickets.discard(ticket)
        self._closed(ticket)
        self._outbox.append((ticket, event))

    def _flush(self) -> None:
        """Hand the events over, with one wake-up for each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, Event]]] = {}
        for ticket, event in self._outbox:
            by_loop.setdefault(ticket.loop, []).append((ticket, event))
        self._outbox = []
        for loop, items in by_loop.items():
            try:
                loop.call_soon_threadsafe(_post_all, items)
            except RuntimeError:  # that loop is closed, so nobody reads any more
                for ticket in {ticket for ticket, _ in items}:
                    self.cancel(ticket)


def _post_all(items: list[tuple[Ticket, Event]]) -> None:
    for ticket, event in items:
        ticket.post(event)


def _nothing_yet(job: Job) -> RequestOutput:
    return RequestOutput("", job.text, job.prompt, [])
