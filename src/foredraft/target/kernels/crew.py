"""Threads that compute one pass together, without a thread pool of anybody's and without waiting for one another's
arrival.

A pass is a list of stages; see `sharing` for how a stage's work is claimed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["Crew"]

Inbox = SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None]


class Crew:
    """`threads - 1` helpers for whoever calls `run`; they sleep between passes and end with the crew."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._inboxes: list[Inbox] = [SimpleQueue() for _ in range(threads - 1)]
        helpers = [
            threading.Thread(target=_help, args=(rank, inbox), name=f"foredraft-{rank}", daemon=True)
            for rank, inbox in enumerate(self._inboxes, start=1)
        ]
        for helper in helpers:
            helper.start()
        # also when the interpreter ends: compiled code must not be taken away from a helper that still runs it
        weakref.finalize(self, _dismiss, self._inboxes, helpers)

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function(rank, *arguments)` in the caller and in every helper; returns when the caller's call does.

        The function claims its work, so that a helper's call that comes late does nothing; it must release the
        interpreter lock.
        """
        for inbox in self._inboxes:
            inbox.put((function, arguments))
        function(0, *arguments)


def _help(rank: int, inbox: Inbox) -> None:
    while (call := inbox.get()) is not None:
        function, arguments = call
        function(rank, *arguments)
        del call, function, arguments  # hold no model while asleep


def _dismiss(inboxes: list[Inbox], helpers: list[threading.Thread]) -> None:
    for inbox in inboxes:
        inbox.put(None)
    for helper in helpers:
        if helper is not threading.current_thread():
            helper.join(timeout=10)
