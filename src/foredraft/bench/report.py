"""Results as one JSON object, or as tables for a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

from rich.table import Table

from foredraft.bench.cells import OfflineCell
from foredraft.bench.machine import describe_run
from foredraft.bench.micro_cells import MicroCell
from foredraft.bench.offline import OFF
from foredraft.bench.sweep import LoadPoint
from foredraft.target.target import Target

__all__ = ["as_json", "describe_target", "difference_lines", "micro_tables", "offline_table", "sweep_table"]

MAX_DIFFERENCES = 10
LESS_ESSENTIAL = ("quartiles", "draft", "host ms", "peak MB")


def as_json(
    meta: Mapping[str, object], cells: Iterable[OfflineCell | MicroCell], summary: Sequence[LoadPoint] = ()
) -> str:
    """{"meta": {...}, "cells": [...]}, on one line, with a sweep's "summary"; the machine is added to `meta`."""
    report: dict[str, object] = {"meta": {**describe_run(), **meta}, "cells": [asdict(cell) for cell in cells]}
    if summary:
        report["summary"] = [asdict(point) for point in summary]
    return json.dumps(report, allow_nan=False)


def describe_target(target: Target) -> dict[str, object]:
    """The part of "meta" that tells which model ran, and how."""
    return {
        "model": target.name,
        "weight_format": target.decoder.weight_format,
        "kv_dtype": str(target.cache.dtype).removeprefix("torch."),
        "decoder": type(target.decoder).__name__,
        "device": str(target.decoder.device),
        "vocab_size": target.vocab_size,
        "max_model_len": target.max_model_len,
    }


def offline_table(cells: Sequence[OfflineCell], *, compact: bool = False) -> Table:
    """One row a cell; a setting that is the same everywhere has no column. `compact` keeps to the essential ones."""
    columns: dict[str, Callable[[OfflineCell], str]] = {
        "plain tok/s": lambda cell: f"{cell.plain_throughput:.1f}",
        "tok/s": lambda cell: f"{cell.output_throughput:.1f}",
        "speedup": lambda cell: f"{cell.speedup:.2f}x",
        "quartiles": lambda cell: f"{cell.speedup_p25:.2f}-{cell.speedup_p75:.2f}",
        "length": lambda cell: f"{cell.acceptance_length:.2f}",
        "rate": lambda cell: f"{cell.acceptance_rate:.0%}",
        "draft": lambda cell: f"{cell.draft_share:.1%}",
        "host ms": lambda cell: "" if cell.host_ms is None else f"{cell.host_ms:.2f}",
        "peak MB": lambda cell: f"{cell.peak_memory_mb:.0f}",
    }
    shown = {name: show for name, show in columns.items() if not (compact and name in LESS_ESSENTIAL)}
    settings = _settings(cells)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("workload")
    table.add_column("method")
    for name in (*settings, *shown):
        table.add_column(name, justify="right")
    table.add_column("identical")
    for cell in cells:
        table.add_row(
            cell.workload,
            cell.method,
            *(show(cell) for show in (*settings.values(), *shown.values())),
            {True: "yes", False: f"{len(cell.differences)} differ", None: "-"}[cell.identical],
            style=_style(cell.workload),
        )
    return table


def sweep_table(cells: Sequence[OfflineCell], summary: Sequence[LoadPoint]) -> Table:
    """One row a workload and load: plain throughput, the ratio of each method to it (a fixed length by its number), and
    the controller against the best fixed length.
    """
    names = [name for name in dict.fromkeys(cell.method for cell in cells) if name != OFF.name]
    settings = _settings(cells)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("workload")
    for name in (*settings, "plain tok/s", *(name.removeprefix("fixed:") for name in names), "auto / best"):
        table.add_column(name, justify="right")
    table.add_column("identical")
    for point in summary:
        setting = (point.workload, point.concurrency, point.temperature)
        group = [cell for cell in cells if (cell.workload, cell.concurrency, cell.temperature) == setting]
        speedups = {cell.method: cell.speedup for cell in group}
        differing = sum(len(cell.differences) for cell in group)
        table.add_row(
            point.workload,
            *(show(group[0]) for show in settings.values()),
            f"{point.off:.1f}",
            *(f"{speedups[name]:.2f}" for name in names),
            "" if point.auto_over_best_fixed is None else f"{point.auto_over_best_fixed:.2f}",
            f"{differing} differ" if differing else "yes",
            style=_style(point.workload),
        )
    return table


def difference_lines(cells: Iterable[OfflineCell]) -> list[str]:
    """A sentence for each answer that differed, the first few of them."""
    lines = [
        f"{cell.method}, {difference.source}: token {difference.position} is {difference.other}, plainly "
        f"{difference.plain}; the two best scores are {difference.gap:.4g} apart"
        for cell in cells
        if cell.workload != "overall"
        for difference in cell.differences
    ]
    more = len(lines) - MAX_DIFFERENCES
    return [*lines[:MAX_DIFFERENCES], *([f"and {more} more, see --json"] if more > 0 else [])]


def micro_tables(cells: Sequence[MicroCell]) -> list[Table]:
    """A table for each kind of cell, with the columns that the kind has."""
    tables = []
    for kind in dict.fromkeys(cell.kind for cell in cells):
        rows = [
            {name: value for name, value in asdict(cell).items() if value is not None and name != "kind"}
            for cell in cells
            if cell.kind == kind
        ]
        table = Table(title=kind, title_justify="left", title_style="bold", box=None, pad_edge=False)
        names = list(dict.fromkeys(name for row in rows for name in row))
        for name in names:
            table.add_column(name.replace("_", " "), justify="right")
        for row in rows:
            table.add_row(*(_shown(row.get(name)) for name in names))
        tables.append(table)
    return tables


def _settings(cells: Sequence[OfflineCell]) -> dict[str, Callable[[OfflineCell], str]]:
    """Columns for the settings in which the cells differ."""
    settings: dict[str, Callable[[OfflineCell], str]] = {
        "at a time": lambda cell: str(cell.concurrency),
        "T": lambda cell: f"{cell.temperature:g}",
    }
    return {name: show for name, show in settings.items() if len({show(cell) for cell in cells}) > 1}


def _style(workload: str) -> str | None:
    return "bold" if workload == "overall" else None


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
    return "" if value is None else str(value)
