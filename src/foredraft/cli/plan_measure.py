"""`foredraft plan MODEL --measure`: times a model's passes and drafters here, in the form that the page reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foredraft.cli.plan import Passes
from foredraft.cli.starting import starting
from foredraft.cli.terminal import transient
from foredraft.economics import MeasuredPasses
from foredraft.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from foredraft.target.target import Target

__all__ = ["measured_passes"]

CONTEXT = 256  # about that of the texts which drafts are measured on
TEXTS, ANSWER = 8, 64


def measured_passes(model: str, spec_model: str | None = None) -> Passes:
    """Load the model and time it, then its drafters; some ten seconds. Raises LoadError, ConfigError or
    CapacityError.
    """
    with starting(model, offline=False):
        from foredraft.engine.draft_costs import drafting_configs, measure_drafting
        from foredraft.engine.open_target import EngineArgs, open_target
        from foredraft.engine.profiler import machine_name, measure_passes

        target = open_target(EngineArgs(model=model)).target
    with transient("Timing passes …") as show:
        points = measure_passes(target.decoder, max_length=target.max_model_len)
        table = MeasuredPasses(tuple(points))
        prompts = _prompts(target)
        drafts = []
        for config in drafting_configs(target, spec_model):
            show(f"Timing drafts of {config.get('method') or spec_model} …")
            drafts.append(measure_drafting(target, config, pass_ms=table(1, CONTEXT, 1), prompts=prompts))
    cells = tuple(
        {"kind": "pass", "rows": rows, "cached": cached, "batch": batch, "pass_ms": milliseconds}
        for rows, cached, batch, milliseconds in points
    )
    machine = machine_name(target.decoder.device)
    meta = {"model": target.name, "weight_format": target.decoder.weight_format, "machine": machine}
    draft_cells = tuple({"kind": "draft", **cost._asdict()} for cost in drafts)
    return Passes(table, f"{target.name} on {machine}", meta, cells, draft_cells)


def _prompts(target: Target) -> list[tuple[int, ...]] | None:
    """Texts to edit, which answers repeat for the most part; None for a model that can't be asked or has no room."""
    from foredraft.bench.workloads import encode, own_prompts

    try:
        return [prompt.tokens for prompt in encode(own_prompts(["edit"])[:TEXTS], target, max_tokens=ANSWER)]
    except (ConfigError, RequestError):
        return None
