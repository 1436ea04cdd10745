"""Threads that compute one pass together, without a thread pool of anybody's and without waiting for one another's
arrival.

A pass is a list of stages; see `sharing` for how a stage's work is claimed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["Crew"]


class Crew:
    """`threads - 1` helpers for whoever calls `run`; they sleep between passes."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._inboxes: list[SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]]] = [
            SimpleQueue() for _ in range(threads - 1)
        ]
        for rank, inbox in enumerate(self._inboxes, start=1):
            threading.Thread(target=_help, args=(rank, inbox), name=f"foredraft-{rank}", daemon=True).start()

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function(rank, *arguments)` in the caller and in every helper; returns when the caller's call does.

        The function claims its work, so that a helper's call that comes late does nothing; it must release the
        interpreter lock.
        """
        for inbox in self._inboxes:
            inbox.put((function, arguments))
        function(0, *arguments)


def _help(rank: int, inbox: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    while True:
        function, arguments = inbox.get()
        function(rank, *arguments)
        del function, arguments  # hold no model while asleep
