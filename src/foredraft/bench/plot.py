"""Draws a sweep: speedup over plain decoding against load, one picture a workload, as SVG and PNG. Needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foredraft.bench.cells import OfflineCell
from foredraft.bench.offline import OFF
from foredraft.bench.sweep import AUTO
from foredraft.errors import ConfigError

__all__ = ["check_plots", "draw_sweep"]

SIZE = (6.4, 4.0)  # inches
FORMATS = ("svg", "png")


def check_plots(folder: Path) -> None:
    """Make the folder. Raises ConfigError without matplotlib, or where the folder can't be written."""
    if find_spec("matplotlib") is None:
        raise ConfigError("Plots need matplotlib; install it with pip install 'foredraft[plot]'.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"The folder {folder} can't be written ({error.strerror}); give another one.") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"The folder {folder} can't be written; give another one.")


def draw_sweep(cells: Sequence[OfflineCell], folder: Path) -> list[Path]:
    """Write the pictures into `folder` and return their paths; see `check_plots`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    paths = []
    for workload, temperature in dict.fromkeys((cell.workload, cell.temperature) for cell in cells):
        members = [cell for cell in cells if (cell.workload, cell.temperature) == (workload, temperature)]
        figure = Figure(figsize=SIZE, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        names = [name for name in dict.fromkeys(cell.method for cell in members) if name != OFF.name]
        fixed = [name for name in names if name != AUTO]
        for name in names:
            points = sorted((cell.concurrency, cell.speedup) for cell in members if cell.method == name)
            style = _style(name, fixed)
            axes.plot([load for load, _ in points], [speedup for _, speedup in points], label=name, marker="o", **style)
        axes.axhline(1, color="0.35", linewidth=1, linestyle=(0, (4, 3)), label="plain")
        loads = sorted({cell.concurrency for cell in members})
        axes.set_xscale("log", base=2)
        axes.set_xticks(loads, labels=[str(load) for load in loads])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("requests at the same time")
        axes.set_ylabel("throughput over plain decoding")
        axes.set_title(workload if temperature == 0 else f"{workload}, temperature {temperature:g}", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.9")
        axes.set_axisbelow(True)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        stem = workload.replace("/", "-") + (f"-t{temperature:g}" if temperature else "")
        for kind in FORMATS:
            path = folder / f"{stem}.{kind}"
            figure.savefig(path, dpi=160)
            paths.append(path)
    return paths


def _style(name: str, fixed: Sequence[str]) -> dict[str, Any]:
    """auto stands out; fixed lengths go from light to dark."""
    if name == AUTO:
        return {"color": "#c2410c", "linewidth": 2.6, "markersize": 6, "zorder": 3}
    shade = 0.8 - 0.55 * (fixed.index(name) / max(len(fixed) - 1, 1))
    return {"color": (shade * 0.75, shade * 0.9, min(1.0, shade + 0.15)), "linewidth": 1.3, "markersize": 3.5}
