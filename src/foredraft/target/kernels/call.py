"""Calls the compiled code: every thread of a crew with the same tables, and memory for their counters."""

from __future__ import annotations

import numpy

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.crew import Crew
from foredraft.target.kernels.decode import run
from foredraft.target.kernels.sharing import STEP_BYTES

__all__ = ["run_stages"]


def run_stages(crew: Crew, stages: int, plan: numpy.ndarray, constants: numpy.ndarray, layers: numpy.ndarray) -> None:
    """Do what the plan says, in so many stages. Helpers may still look at this call's tables when it returns, so they
    are its own.
    """
    steps = numpy.zeros(stages * (crew.threads + 1) * STEP_BYTES, numpy.uint8)
    plan = plan.copy()
    plan[at.STEPS] = steps.ctypes.data
    crew.run(_run_with, steps, plan, constants, layers)


def _run_with(
    rank: int, steps: numpy.ndarray, plan: numpy.ndarray, constants: numpy.ndarray, layers: numpy.ndarray
) -> None:
    """Keeps `steps`, which the plan points to, alive during the call."""
    run(rank, plan, constants, layers)
