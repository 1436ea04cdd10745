"""`foredraft plan MODEL --measure`: times the passes of a model on this machine, in the form that the page reads."""

from __future__ import annotations

from foredraft.cli.plan import Passes
from foredraft.economics import MeasuredPasses

__all__ = ["measured_passes"]


def measured_passes(model: str) -> Passes:
    """Load the model and time it for a few seconds. Raises LoadError, ConfigError or CapacityError."""
    from foredraft.cli.terminal import transient
    from foredraft.engine.open_target import EngineArgs, open_target
    from foredraft.engine.profiler import machine_name, measure_passes

    with transient(f"loading {model}") as show:
        target = open_target(EngineArgs(model=model)).target
        show("timing passes")
        points = measure_passes(target.decoder, max_length=target.max_model_len)
    cells = tuple(
        {"kind": "pass", "rows": rows, "cached": cached, "batch": batch, "pass_ms": milliseconds}
        for rows, cached, batch, milliseconds in points
    )
    meta = {"model": target.name, "machine": machine_name()}
    return Passes(MeasuredPasses(tuple(points)), f"{target.name} on {machine_name()}", meta, cells)
