"""The engine's own thread: the only one that touches the engine.

The event loop hands over tickets through an inbox and gets events back, in one wake-up per step however many requests
the step served. However the thread ends, every ticket gets its last event.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from foredraft.engine.llm import LLM
from foredraft.server.api_errors import ApiError, bad_request
from foredraft.server.decoding import RETRY_SECONDS, TicketDecoder, stopping
from foredraft.server.observer import Observer
from foredraft.server.tickets import Ticket
from foredraft.types import SamplingParams

__all__ = ["EngineWorker", "State"]

LOADING_RETRY_SECONDS = 5
WARM_UP_TOKENS = 8

logger = logging.getLogger(__name__)


class State(StrEnum):
    """loading -> ready -> draining -> stopped; failed if the model could not be loaded or the thread broke down."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


OVER = (State.FAILED, State.STOPPED)
Command: TypeAlias = Callable[[TicketDecoder], None]


class EngineWorker:
    """Loads a model with `load`, warms it up and serves tickets until `stop`.

    max_queue  sequences that may wait beyond those being decoded
    """

    def __init__(self, load: Callable[[], LLM], observer: Observer, *, max_queue: int) -> None:
        self.state = State.LOADING
        self.failure: BaseException | None = None
        self.max_queue = max_queue
        self._load = load
        self._observer = observer
        self._llm: LLM | None = None
        self._decoder: TicketDecoder | None = None
        self._settled = threading.Event()
        self._wake = threading.Condition()
        self._inbox: deque[Command] = deque()
        self._open = 0
        self._thread = threading.Thread(target=self._run, name="foredraft-engine", daemon=True)

    # --- called from other threads

    @property
    def llm(self) -> LLM:
        """The loaded model; what only reads it is safe everywhere. Raises ApiError (503) where there is none."""
        if self._llm is None:
            raise ApiError(503, "The model is still being loaded; try again soon.", retry_after=LOADING_RETRY_SECONDS)
        if self.state is State.FAILED:
            raise ApiError(503, "The engine broke down; the server must be restarted.", retry_after=RETRY_SECONDS)
        return self._llm

    @property
    def failing(self) -> bool:
        """Whether steps fail with no request to blame."""
        return self._decoder is not None and self._decoder.failing

    @property
    def ready(self) -> bool:
        return self.state is State.READY and not self.failing and self._thread.is_alive()

    @property
    def open_sequences(self) -> int:
        """Sequences that are decoded or wait."""
        return self._open

    @property
    def _room(self) -> int:
        """Sequences that may run or wait."""
        return self.llm.target.cache.slots + self.max_queue

    def start(self) -> None:
        self._thread.start()

    def wait_until_settled(self, timeout: float | None = None) -> None:
        """Until the model is loaded; raises what loading failed with."""
        self._settled.wait(timeout)
        if self.failure is not None:
            raise self.failure

    def wait_until_idle(self, timeout: float) -> bool:
        """Until nothing is decoded or waits, or nothing can be any more; False if that takes longer than `timeout`."""
        with self._wake:
            return self._wake.wait_for(lambda: self._open == 0 or self.state in (*OVER, State.LOADING), timeout)

    def check_choices(self, count: int) -> None:
        """Raises ApiError (400) for a request of more sequences than may ever run or wait."""
        room = self._room
        if count > room:
            raise bad_request(
                f"The request needs {count} sequences, but {room} is all that may run or wait here; "
                "split it or lower n."
            )

    def check_room(self) -> None:
        """Raises ApiError (429) if not even one sequence more may wait."""
        room = self._room
        if self._open >= room:
            raise _full(self._open, room)

    def submit(self, ticket: Ticket) -> None:
        """Queue a ticket. Raises ApiError: 503 when shutting down, 429 when the queue is full, 400 if it never fits."""
        room = self._room
        with self._wake:
            if self.state is not State.READY:
                raise ApiError(503, "The server is shutting down; send this to another one.", retry_after=RETRY_SECONDS)
            self.check_choices(ticket.choices)
            if self._open + ticket.choices > room:
                raise _full(self._open, room)
            self._open += ticket.choices
            self._inbox.append(lambda decoder: decoder.accept(ticket))
            self._wake.notify_all()

    def cancel(self, ticket: Ticket) -> None:
        """Give a ticket up; its reader is told, if there still is one. Finished ones are ignored."""
        with self._wake:
            self._inbox.append(lambda decoder: decoder.cancel(ticket))
            self._wake.notify_all()

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
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout)

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
        llm.engine.tolerate_drafter()
        decoder = self._decoder = TicketDecoder(llm, self._observer, self._closed)
        self._llm = llm
        with self._wake:
            if self.state is State.LOADING:
                self.state = State.READY
        self._settled.set()
        try:
            self._serve(decoder)
        except BaseException:
            logger.critical("The engine's thread ends; the server must be restarted", exc_info=True)
        finally:
            self._end(decoder)

    def _serve(self, decoder: TicketDecoder) -> None:
        """Until it is stopped."""
        while self._obey(decoder):
            try:
                decoder.advance()
            except BaseException as error:  # a bug on this side of the engine; nobody must wait for ever because of it
                logger.exception("The engine's thread stumbled")
                decoder.start_over(error)
        decoder.start_over(stopping())

    def _end(self, decoder: TicketDecoder) -> None:
        """Nothing is decoded any more: tell everybody, also those who came at the last moment."""
        with self._wake:
            if self.state is not State.STOPPED:
                self.state = State.FAILED
        self._obey(decoder)
        decoder.close(stopping())

    def _obey(self, decoder: TicketDecoder) -> bool:
        """Wait for something to do and do what the inbox says; False when it's over."""
        with self._wake:
            while decoder.idle and not self._inbox and self.state not in OVER:
                self._wake.wait()
            commands, self._inbox = self._inbox, deque()
        for command in commands:
            try:
                command(decoder)
            except BaseException:  # one request's trouble must not end the thread that serves all
                logger.exception("A command to the engine failed")
        return self.state not in OVER

    def _closed(self, ticket: Ticket) -> None:
        with self._wake:
            self._open -= ticket.choices
            self._wake.notify_all()


def _full(count: int, room: int) -> ApiError:
    message = f"{count} sequences are running or waiting and only {room} may; try again soon."
    return ApiError(429, message, code="queue_full", retry_after=RETRY_SECONDS)


def _warm_up(llm: LLM) -> None:
    """Decode a few tokens, so that kernels are compiled and memory is touched before the first request."""
    room = llm.engine.max_length
    tokens = [token % llm.target.vocab_size for token in range(3, 11)] * 3
    prompt = tokens[: max(1, room // 2)]
    count = min(WARM_UP_TOKENS, room - len(prompt))
    if count > 0:
        llm.generate([prompt], SamplingParams(temperature=0, max_tokens=count, seed=0, ignore_eos=True))
