"""Threads that compute one pass together, without a thread pool of anybody's and without waiting for one another's arrival.

A pass is a list of stages, a stage a list of tiles. Whoever is there claims tiles, first from its own share, so that it reads weights
one after the other, then from the others'. A stage is over when all its tiles are done, however many threads did them: a helper that the
system has not scheduled yet delays nobody, and one that comes late finds nothing left to claim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from numba import njit, types

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.memory import add_atomically, load_acquire, relax

__all__ = ["STEP_BYTES", "Crew", "claim", "complete"]

STEP_BYTES = 64
"""A counter has a cache line of its own."""

PATIENCE = 4000
"""Spins before a waiting thread offers its core to others; a stage takes a few microseconds."""

give_way = types.ExternalFunction("sched_yield", types.int32())


@njit
def claim(plan, stage, rank, tiles):  # type: ignore[no-untyped-def]
    """The next tile of this stage for thread `rank`, -1 when all are claimed."""
    threads = plan[at.THREADS]
    base = plan[at.STEPS] + stage * (threads + 1) * STEP_BYTES
    for turn in range(threads):
        owner = (rank + turn) % threads
        first = tiles * owner // threads
        share = tiles * (owner + 1) // threads - first
        counter = base + owner * STEP_BYTES
        if load_acquire(counter) < share:
            index = add_atomically(counter, 1)
            if index < share:
                return first + index
    return -1


@njit
def complete(plan, stage, done, tiles):  # type: ignore[no-untyped-def]
    """Report `done` tiles and wait until all of the stage are done."""
    threads = plan[at.THREADS]
    counter = plan[at.STEPS] + (stage * (threads + 1) + threads) * STEP_BYTES
    if done:
        add_atomically(counter, done)
    spins = 0
    while load_acquire(counter) < tiles:
        relax()
        spins += 1
        if spins > PATIENCE:
            give_way()


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

        The function claims its work, so that a helper's call that comes late does nothing; it must release the interpreter lock.
        """
        for inbox in self._inboxes:
            inbox.put((function, arguments))
        function(0, *arguments)


def _help(rank: int, inbox: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    while True:
        function, arguments = inbox.get()
        function(rank, *arguments)
        del function, arguments  # hold no model while asleep
