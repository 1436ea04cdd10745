"""The engine's own thread: the only one that touches the engine.

The event loop hands over tickets through an inbox and gets events back, in one wake-up per step however many requests
the step served. Whatever goes wrong with one ticket is that ticket's error; if a whole step fails, the requests in it
fail and decoding goes on with the others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from foredraft.engine.llm import LLM
from foredraft.engine.outputs import Delta, RequestOutput
from foredraft.engine.requests import Request
from foredraft.engine.scoring import PromptScoring
from foredraft.server.api_errors import ApiError, bad_request
from foredraft.server.observer import EngineLoad, Observer
from foredraft.server.tickets import Event, Job, JobDelta, Result, Ticket
from foredraft.types import SamplingParams

__all__ = ["EngineWorker", "State"]

RETRY_SECONDS = 1
LOADING_RETRY_SECONDS = 5
WARM_UP_TOKENS = 8
CLIENT_LEFT = 499  # nginx's code for it; nobody reads the answer, but the log does

logger = logging.getLogger(__name__)


class State(StrEnum):
    """loading -> ready -> draining -> stopped; failed if the model could not be loaded."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(slots=True)
class _Work:
    """An engine request and whose it is. `last` is when it last emitted; `started` when it was first scheduled."""

    ticket: Ticket
    job: int
    request: Request
    started: float | None = None
    last: float | None = None


class _Scoring(NamedTuple):
    ticket: Ticket
    job: int
    scoring: PromptScoring


class EngineWorker:
    """Loads a model with `load`, warms it up and serves tickets until `stop`.

    max_queue  sequences that may wait beyond those being decoded
    """

    def __init__(self, load: Callable[[], LLM], observer: Observer, *, max_queue: int) -> None:
        self.state = State.LOADING
        self.failure: BaseException | None = None
        self.failing = False
        self.max_queue = max_queue
        self._load = load
        self._observer = observer
        self._llm: LLM | None = None
        self._settled = threading.Event()
        self._wake = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._open = 0
        self._work: dict[str, _Work] = {}
        self._scoring: deque[_Scoring] = deque()
        self._tickets: set[Ticket] = set()
        self._outbox: list[tuple[Ticket, Event]] = []
        self._thread = threading.Thread(target=self._run, name="foredraft-engine", daemon=True)

    # --- called from other threads

    @property
    def llm(self) -> LLM:
        """The loaded model; what only reads it is safe everywhere. Raises ApiError (503) before it is there."""
        if self._llm is None or self.state in (State.LOADING, State.FAILED):
            raise ApiError(503, "The model is still being loaded; try again soon.", retry_after=LOADING_RETRY_SECONDS)
        return self._llm

    @property
    def ready(self) -> bool:
        return self.state is State.READY and not self.failing and self._thread.is_alive()

    @property
    def open_sequences(self) -> int:
        """Sequences that are decoded or wait."""
        return self._open

    def start(self) -> None:
        self._thread.start()

    def wait_until_settled(self, timeout: float | None = None) -> None:
        """Until the model is loaded; raises what loading failed with."""
        self._settled.wait(timeout)
        if self.failure is not None:
            raise self.failure

    def submit(self, ticket: Ticket) -> None:
        """Queue a ticket. Raises ApiError: 503 when shutting down, 429 when the queue is full, 400 if it never fits."""
        room = self.llm.target.cache.slots + self.max_queue
        with self._wake:
            if self.state is not State.READY:
                raise ApiError(503, "The server is shutting down; send this to another one.", retry_after=RETRY_SECONDS)
            if ticket.choices > room:
                raise bad_request(
                    f"The request needs {ticket.choices} sequences, but {room} is all that may run or wait here; "
                    "split it or lower n."
                )
            if self._open + ticket.choices > room:
                raise ApiError(
                    429,
                    f"{self._open} sequences are running or waiting and only {room} may; try again soon.",
                    code="queue_full",
                    retry_after=RETRY_SECONDS,
                )
            self._open += ticket.choices
            self._inbox.append(partial(self._accept, ticket))
            self._wake.notify()

    def cancel(self, ticket: Ticket) -> None:
        """Give a ticket up; its reader is told, if there still is one. Finished ones are ignored."""
        self._call(partial(self._cancel, ticket))

    def drain(self) -> None:
        """Accept nothing new; what was accepted goes on."""
        with self._wake:
            if self.state is State.READY:
                self.state = State.DRAINING

    def stop(self, timeout: float | None = 10.0) -> None:
        """End: what still runs fails with 503."""
        with self._wake:
            if self.state is not State.FAILED:
                self.state = State.STOPPED
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _call(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    # --- the engine's thread

    def _run(self) -> None:
        try:
            llm = self._load()
            _warm_up(llm)
        except BaseException as error:
            self.failure = error
            self.state = State.FAILED
            self._settled.set()
            return
        self._llm = llm
        with self._wake:
            if self.state is State.LOADING:
                self.state = State.READY
        self._settled.set()
        while self._obey():
            try:
                self._expire()
                self._score()
                self._step(llm)
                self._observer.loaded(EngineLoad.of(llm.engine))  # first, so that answers find fresh gauges
                self._flush()
            except Exception as error:  # a bug on this side of the engine; nobody must wait for ever because of it
                logger.exception("The engine's thread stumbled")
                llm.engine.drop_running()
                for ticket in list(self._tickets):
                    self._fail(ticket, error)
                self._flush()
        for ticket in list(self._tickets):
            self._fail(ticket, ApiError(503, "The server is shutting down.", retry_after=RETRY_SECONDS))
        self._flush()

    def _obey(self) -> bool:
        """Wait for something to do and do what the inbox says; False when it's over."""
        with self._wake:
            while self._idle and not self._inbox and self.state is not State.STOPPED:
                self._wake.wait()
            commands, self._inbox = self._inbox, deque()
        for command in commands:
            try:
                command()
            except Exception:  # one request's trouble must not end the thread that serves all
                logger.exception("A command to the engine failed")
        return self.state is not State.STOPPED

    @property
    def _idle(self) -> bool:
        return not self._scoring and (self._llm is None or self._llm.engine.idle)

    def _accept(self, ticket: Ticket) -> None:
        self._tickets.add(ticket)
        ticket.results = [None] * len(ticket.jobs)
        ticket.open_jobs = len(ticket.jobs)
        try:
            for index, job in enumerate(ticket.jobs):
                if job.score is None:
                    self._add(ticket, index)
                else:
                    target, chunk = self.llm.target, self.llm.engine.scheduler.max_batched_tokens
                    scoring = PromptScoring(target, job.prompt, job.score, chunk=chunk)
                    self._scoring.append(_Scoring(ticket, index, scoring))
        except Exception as error:  # refused or broken, it concerns this ticket only
            self._fail(ticket, error)

    def _add(self, ticket: Ticket, index: int) -> None:
        job = ticket.jobs[index]
        request = self.llm.engine.add(job.prompt, job.params, text=job.text, prediction=job.prediction)
        self._work[request.id] = _Work(ticket, index, request)

    def _cancel(self, ticket: Ticket) -> None:
        if ticket in self._tickets:
            self._fail(ticket, ApiError(CLIENT_LEFT, "The client left."))

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

    def _step(self, llm: LLM) -> None:
        engine = llm.engine
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
        self._note_starts(now)
        self._deliver(deltas, now)
        self._observer.stepped(engine, deltas)

    def _note_starts(self, now: float) -> None:
        for work in self._work.values():
            if work.started is None and any(choice.sequence.slot is not None for choice in work.request.choices):
                work.started = now
                self._observer.started(now - work.ticket.created)

    def _deliver(self, deltas: list[Delta], now: float) -> None:
        """Post a step's news, one event for each ticket that is concerned."""
        news: dict[Ticket, list[JobDelta]] = {}
        for delta in deltas:
            work = self._work.get(delta.request_id)
            if work is None:
                continue
            if work.started is None:
                work.started = now
                self._observer.started(now - work.ticket.created)
            if work.last is None:
                self._observer.first_token(now - work.ticket.created)
                work.ticket.first_token = work.ticket.first_token or now
            else:
                self._observer.next_tokens(now - work.last)
            work.last = now
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
        self._observer.finished(output, now - work.ticket.created, (work.ticket.first_token or now, now))
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
                self.llm.engine.abort(name)
            except Exception:  # the ticket's other requests still have to go
                logger.exception("A request could not be aborted")
            self._observer.aborted(work.request.result())
        self._scoring = deque(entry for entry in self._scoring if entry.ticket is not ticket)
        self._close(ticket, Event([], error=error))

    def _close(self, ticket: Ticket, event: Event) -> None:
        if ticket not in self._tickets:
            return
        self._tickets.discard(ticket)
        with self._wake:
            self._open -= ticket.choices
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
                    self._cancel(ticket)


def _post_all(items: list[tuple[Ticket, Event]]) -> None:
    for ticket, event in items:
        ticket.post(event)


def _nothing_yet(job: Job) -> RequestOutput:
    return RequestOutput("", job.text, job.prompt, [])


def _warm_up(llm: LLM) -> None:
    """Decode a few tokens, so that kernels are compiled and memory is touched before the first request."""
    room = llm.engine.max_length
    tokens = [token % llm.target.vocab_size for token in range(3, 11)] * 3
    prompt = tokens[: max(1, room // 2)]
    count = min(WARM_UP_TOKENS, room - len(prompt))
    if count > 0:
        llm.generate([prompt], SamplingParams(temperature=0, max_tokens=count, seed=0, ignore_eos=True))
