"""Calls the compiled code: every thread of a crew with the same tables, and memory for their counters."""

from __future__ import annotations

import numpy

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.crew import Crew
from foredraft.target.kernels.decode import GROW_STAGES, run
from foredraft.target.kernels.sharing import STEP_BYTES

__all__ = ["run_levels", "run_stages"]


def run_stages(crew: Crew, stages: int, plan: numpy.ndarray, constants: numpy.ndarray, layers: numpy.ndarray) -> None:
    """Do what the plan says, in so many stages. Helpers may still look at this call's tables when it returns, so they
    are its own.
    """
    steps = numpy.zeros(stages * (crew.threads + 1) * STEP_BYTES, numpy.uint8)
    plan = plan.copy()
    plan[at.STEPS] = steps.ctypes.data
    crew.run(_run_with, steps, plan, constants, layers)


def run_levels(
    crew: Crew,
    plan: numpy.ndarray,
    levels: numpy.ndarray,
    kept: object,
    constants: numpy.ndarray,
    layers: numpy.ndarray,
) -> None:
    """Grow drafts by `levels` [n, plan fields], a plan for each; `kept` owns what they point to and is the call's own,
    as the levels are."""
    size = GROW_STAGES * (crew.threads + 1) * STEP_BYTES
    steps = numpy.zeros(len(levels) * size, numpy.uint8)
    levels[:, at.STEPS] = steps.ctypes.data + size * numpy.arange(len(levels))
    plan = plan.copy()
    plan[at.WORK], plan[at.LEVELS], plan[at.LEVEL_COUNT] = at.GROW, levels.ctypes.data, len(levels)
    crew.run(_run_with, (steps, levels, kept), plan, constants, layers)


def _run_with(rank: int, kept: object, plan: numpy.ndarray, constants: numpy.ndarray, layers: numpy.ndarray) -> None:
    """Keeps alive during the call what the plan points to."""
    run(rank, plan, constants, layers)
