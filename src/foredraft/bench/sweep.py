"""Where speculation pays: every method at every load, and what the controller makes of it.

Methods are "off", "fixed:K" (always K draft tokens, no controller) and "auto" (the controller decides). All take turns
in one run, so that their ratios don't depend on when they ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foredraft.bench.cells import OfflineCell
from foredraft.bench.offline import OFF, Method
from foredraft.bench.workloads import EncodedPrompt
from foredraft.engine.speculation import parse_speculation
from foredraft.errors import ConfigError

__all__ = ["AUTO", "LoadPoint", "join_workloads", "summarise", "sweep_methods"]

AUTO = "auto"
FIXED = "fixed"
JOINED = {"quote": "quote+json", "json": "quote+json"}


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One workload at one load. Throughputs in tokens/s; None where that method wasn't measured."""

    workload: str
    concurrency: int
    temperature: float
    off: float
    auto: float | None
    best_fixed: float | None
    best_fixed_method: str | None
    worst_fixed: float | None
    worst_fixed_method: str | None
    auto_over_off: float | None
    auto_over_best_fixed: float | None
    worst_fixed_over_off: float | None


def sweep_methods(names: Sequence[str], *, drafter: str = AUTO) -> list[Method]:
    """Methods from "off", "fixed:K" and "auto"; "off" is added where it lacks, and comes first.

    drafter  the method that drafts for the others
    Raises ConfigError for any other name, or a drafter that doesn't exist.
    """
    methods = [OFF]
    for name in names:
        kind, _, length = name.partition(":")
        if name == AUTO:
            methods.append(Method(name, {"method": drafter, "controller": "auto"}))
        elif kind == FIXED and length.isdecimal() and int(length) > 0:
            config = {"method": drafter, "controller": "off", "num_speculative_tokens": int(length)}
            methods.append(Method(name, config))
        elif name != OFF.name:
            raise ConfigError(f"sweep method {name!r} is unknown; use off, auto, or fixed:K with K from 1 on.")
    for method in methods:
        parse_speculation(method.config)
    return methods


def join_workloads(prompts: Sequence[EncodedPrompt]) -> list[EncodedPrompt]:
    """The own workloads quote and json as one, so that each has enough prompts for a high load."""
    return [replace(prompt, workload=JOINED.get(prompt.workload, prompt.workload)) for prompt in prompts]


def summarise(cells: Sequence[OfflineCell]) -> list[LoadPoint]:
    """For each workload and load: "auto" against plain decoding and the best fixed length, chosen afterwards."""
    groups: dict[tuple[str, int, float], list[OfflineCell]] = {}
    for cell in cells:
        groups.setdefault((cell.workload, cell.concurrency, cell.temperature), []).append(cell)
    points = []
    for (workload, concurrency, temperature), group in groups.items():
        off = next(cell.output_throughput for cell in group if cell.method == OFF.name)
        auto = next((cell.output_throughput for cell in group if cell.method == AUTO), None)
        fixed = sorted(
            (cell for cell in group if cell.method.startswith(FIXED)), key=lambda cell: cell.output_throughput
        )
        worst, best = (fixed[0], fixed[-1]) if fixed else (None, None)
        points.append(
            LoadPoint(
                workload=workload,
                concurrency=concurrency,
                temperature=temperature,
                off=off,
                auto=auto,
                best_fixed=best.output_throughput if best else None,
                best_fixed_method=best.method if best else None,
                worst_fixed=worst.output_throughput if worst else None,
                worst_fixed_method=worst.method if worst else None,
                auto_over_off=auto / off if auto else None,
                auto_over_best_fixed=auto / best.output_throughput if auto and best else None,
                worst_fixed_over_off=worst.output_throughput / off if worst else None,
            )
        )
    return points
