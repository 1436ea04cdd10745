"""How the threads of a pass share the tiles of a stage: a counter for each thread's share, one for the tiles that are
done.

Whoever is there claims tiles, first from its own share, so that it reads weights one after the other, then from the
others'. A stage is over when all its tiles are done, however many threads did them: a helper that the system has not
scheduled yet delays nobody, and one that comes late finds nothing left to claim.
"""

# mypy: ignore-errors
# numba compiles this file; its types are not Python's.
from __future__ import annotations

from numba import njit, types

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.memory import add_atomically, load_acquire, relax

__all__ = ["STEP_BYTES", "claim", "complete"]

STEP_BYTES = 64
"""A counter has a cache line of its own."""

PATIENCE = 200
"""Spins before a waiting thread offers its core to others; a stage takes a few microseconds."""

give_way = types.ExternalFunction("sched_yield", types.int32())


@njit
def claim(plan, stage, rank, tiles):
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
def complete(plan, stage, done, tiles):
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
