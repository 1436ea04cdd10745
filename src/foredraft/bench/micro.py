"""`bench micro`: what the parts of a step cost on this machine, for one model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from foredraft.bench.host_time import measure_host
from foredraft.bench.micro_cells import LoadCell, MemoryCell, MicroCell, PassCell
from foredraft.bench.passes import measure_passes, measure_prefill, measure_sampling
from foredraft.engine.open_target import EngineArgs
from foredraft.errors import ConfigError, LoadError
from foredraft.target.default_model import DEFAULT_MODEL_ALIAS, fetch_default_model
from foredraft.target.target import Target

__all__ = ["KINDS", "MicroPlan", "measure_micro", "measure_startup"]

KINDS = ("pass", "prefill", "sampling", "host", "load", "memory")
SUBPROCESS_SECONDS = 600


@dataclass(frozen=True, slots=True)
class MicroPlan:
    """What to measure. `cached` are tokens per sequence; `prefill` is a prompt's length."""

    kinds: Sequence[str] = KINDS
    rows: Sequence[int] = (1, 4, 8, 16, 32, 64)
    cached: Sequence[int] = (256,)
    batch: int = 1
    prefill: int = 485
    repeat: int = 15

    def __post_init__(self) -> None:
        unknown = next((kind for kind in self.kinds if kind not in KINDS), None)
        if unknown is not None:
            raise ConfigError(f"kind {unknown!r} is unknown; use one of {', '.join(KINDS)}.")
        counts = [("rows", self.rows), ("batch", [self.batch]), ("prefill", [self.prefill]), ("repeat", [self.repeat])]
        for name, values in [*counts, ("cached", self.cached)]:
            wrong = next((value for value in values if value < 1), None)
            if wrong is not None or not values:
                raise ConfigError(f"{name} is {'empty' if wrong is None else wrong}; give numbers of at least 1.")


def measure_micro(
    target: Target, plan: MicroPlan, *, progress: Callable[[str], None] = lambda what: None
) -> list[MicroCell]:
    """All kinds of cells that need only a loaded target."""
    cells: list[MicroCell] = []
    passes: list[PassCell] = []
    if "pass" in plan.kinds:
        progress("passes")
        passes = measure_passes(target, plan.rows, plan.cached, batch=plan.batch, repeat=plan.repeat)
        cells += passes
    if "prefill" in plan.kinds:
        progress("prefill")
        cells.append(measure_prefill(target, plan.prefill))
    if "sampling" in plan.kinds:
        progress("sampling")
        cells += measure_sampling(target, plan.rows, passes, repeat=plan.repeat)
    if "host" in plan.kinds:
        progress("host")
        cells += measure_host(target, plan.rows)
    return cells


def measure_startup(
    args: EngineArgs, plan: MicroPlan, *, progress: Callable[[str], None] = lambda what: None
) -> list[MicroCell]:
    """The cells that need a process of their own: its start with an empty and with a filled cache, and its memory.

    args  names a model that is on this machine: downloading is not timed
    """
    if not {"load", "memory"} & set(plan.kinds):
        return []
    loads: list[LoadCell] = []
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="foredraft-bench-") as folder:
        for state in ("empty", "filled"):
            progress(f"start with {state} cache")
            seconds, memory = _start(replace(args, offline=True), folder)
            loads.append(
                LoadCell(state, memory["import_s"], memory["load_s"], memory["first_token_s"], total_s=seconds)
            )
    cells: list[MicroCell] = []
    if "load" in plan.kinds:
        cells += loads
    if "memory" in plan.kinds:
        cells.append(_memory_cell(memory))
    return cells


def _memory_cell(found: dict[str, float]) -> MemoryCell:
    names = ("torch_mb", "loaded_mb", "load_peak_mb", "decode_peak_mb", "weights_mb", "kv_mb")
    peak = found["decode_peak_mb"]
    return MemoryCell(
        tokens=int(found["tokens"]),
        beyond_torch_mb=peak - found["torch_mb"],
        beyond_weights_mb=peak - found["weights_mb"] - found["kv_mb"],
        **{name: found[name] for name in names},
    )


def _start(args: EngineArgs, cache: str) -> tuple[float, dict[str, float]]:
    """Seconds of the whole process, and what it reports. Compiled code is cached in `cache`, too."""
    environment = os.environ | {"FOREDRAFT_CACHE": cache, "NUMBA_CACHE_DIR": os.path.join(cache, "numba")}
    if args.model == DEFAULT_MODEL_ALIAS:
        environment["FOREDRAFT_DEFAULT_MODEL"] = str(fetch_default_model(offline=True))
    command = [sys.executable, "-m", "foredraft.bench.startup", json.dumps(asdict(args))]
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SUBPROCESS_SECONDS)
    seconds = time.perf_counter() - began
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LoadError(
            f"{args.model} can't be started in a process of its own ({reason}); load it with generate first."
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds, found
