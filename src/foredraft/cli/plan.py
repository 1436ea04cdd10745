"""`foredraft plan`: what speculation can gain, from three numbers, a data sheet or a measurement.

The three figures are the textbook's: a verifying pass costs as much as a plain one. With --batch they are worked out
once more for each load, with pass times from a roofline (--machine, --shape), a file (--profile) or this machine
(--measure).
"""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from foredraft import economics
from foredraft.errors import ConfigError
from foredraft.page import page_directory, page_hash

__all__ = ["BatchPlan", "Passes", "Plan", "plan", "plan_batches", "plan_chain", "read_passes"]

NUMBERS, LOAD, OUTPUT = "The three numbers", "Under load", "Output"


class Plan(NamedTuple):
    """The textbook answer; costs in plain passes. `break_even_acceptance` is None where not even 1 is enough."""

    acceptance: float
    draft_length: int
    draft_cost: float
    tokens_per_cycle: float
    cost_per_cycle: float
    speedup: float
    verdict: str
    best_length: int
    best_speedup: float
    break_even_acceptance: float | None
    break_even_cost: float | None


class BatchPlan(NamedTuple):
    """The answer at one load. `verify_cost` is the verifying pass alone, in plain passes of the same batch."""

    batch: int
    context: int
    verify_cost: float
    cost_per_cycle: float
    speedup: float
    verdict: str
    best_length: int
    best_speedup: float


class Passes(NamedTuple):
    """Pass times and where they come from; the rest is that of a measurement: cells of passes and of drafters."""

    pass_time: economics.PassTime
    origin: str
    meta: Mapping[str, object] = {}
    cells: tuple[Mapping[str, object], ...] = ()
    drafts: tuple[Mapping[str, object], ...] = ()


def plan(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The model to --measure.", show_default=False)
    ] = None,
    acceptance: Annotated[
        float, typer.Option(metavar="A", help="Chance that a draft token is accepted, 0 to 1.", rich_help_panel=NUMBERS)
    ] = 0.75,
    draft_length: Annotated[
        int, typer.Option(metavar="G", help="Draft tokens in a cycle.", rich_help_panel=NUMBERS)
    ] = 4,
    draft_cost: Annotated[
        float,
        typer.Option(metavar="C", help="Time of one draft token, in target passes.", rich_help_panel=NUMBERS),
    ] = 0.15,
    batch: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Requests at once, such as 1,4,16.", rich_help_panel=LOAD),
    ] = None,
    context: Annotated[
        int, typer.Option(metavar="N", help="Tokens of context of each request.", rich_help_panel=LOAD)
    ] = 1024,
    machine: Annotated[
        str, typer.Option(metavar="NAME", help=f"Data sheet: {', '.join(economics.MACHINES)}.", rich_help_panel=LOAD)
    ] = "h200",
    shape: Annotated[
        str, typer.Option(metavar="NAME", help=f"Model: {', '.join(economics.MODELS)}.", rich_help_panel=LOAD)
    ] = "llama-3.1-8b",
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Pass times from --measure or bench micro, as JSON.", rich_help_panel=LOAD),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Time MODEL's passes and drafters on this machine, now.", rich_help_panel=LOAD),
    ] = False,
    spec_model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="With --measure: time this draft model or head, too.", rich_help_panel=LOAD),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; with --measure, the measurement.", rich_help_panel=OUTPUT)
    ] = False,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page to play with these numbers.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Work out what speculation can gain: tokens per cycle, cost per cycle, speedup, and whether it pays."""
    chain = plan_chain(acceptance, draft_length, draft_cost)
    batches = _numbers(batch)
    passes = _passes(model, machine, shape, profile, measure, spec_model)
    loads = plan_batches(chain, passes.pass_time, batches, context)
    if as_json:
        typer.echo(json.dumps(_measurement(passes) if measure else _answer(chain, loads), allow_nan=False))
    else:
        from foredraft.cli.plan_report import print_plan

        print_plan(chain, loads, passes)
    if open_page:
        _open(chain)


def plan_chain(acceptance: float, draft_length: int, draft_cost: float) -> Plan:
    """The three figures, the verdict and the break-evens. Raises ConfigError for numbers that make no sense."""
    speedup = economics.speedup(acceptance, draft_length, draft_cost)
    best = economics.best_length(acceptance, draft_cost, max(economics.LONGEST, draft_length))
    return Plan(
        acceptance=acceptance,
        draft_length=draft_length,
        draft_cost=draft_cost,
        tokens_per_cycle=economics.tokens_per_cycle(acceptance, draft_length),
        cost_per_cycle=economics.cost_per_cycle(draft_length, draft_cost),
        speedup=speedup,
        verdict=economics.verdict(speedup),
        best_length=best,
        best_speedup=economics.speedup(acceptance, best, draft_cost),
        break_even_acceptance=economics.break_even_acceptance(draft_length, draft_cost),
        break_even_cost=economics.break_even_cost(acceptance, draft_length) if draft_length else None,
    )


def plan_batches(chain: Plan, pass_time: economics.PassTime, batches: list[int], context: int) -> list[BatchPlan]:
    """The same under each load. Raises ConfigError for a batch below 1 or a context below 0."""
    longest = max(economics.LONGEST, chain.draft_length)
    survival = economics.survival_curve(chain.acceptance, longest)
    plans = []
    for batch in batches:
        load = {"context": context, "batch": batch}
        draft_time = economics.relative_draft_time(chain.draft_cost, pass_time, **load)
        point = economics.cycle(survival, chain.draft_length, pass_time, draft_time, **load)
        best = economics.best_cycle(survival, pass_time, draft_time, **load, longest=longest)
        cached = batch * context
        verify = pass_time(batch * (chain.draft_length + 1), cached, batch) / pass_time(batch, cached, batch)
        verdict = economics.verdict(point.speedup)
        plans.append(BatchPlan(batch, context, verify, point.cost, point.speedup, verdict, best.length, best.speedup))
    return plans


def read_passes(path: Path) -> Passes:
    """The measured passes of a bench or profile JSON. Raises ConfigError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't valid JSON"
        raise ConfigError(f"profile {path} can't be read: {reason}; give a file written by plan --measure") from error
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise ConfigError(f'profile {path} has no list of "cells"; give a file written by plan --measure')
    meta = content.get("meta")
    facts = meta if isinstance(meta, dict) else {}
    measured = [str(facts[key]) for key in ("model", "machine") if isinstance(facts.get(key), str)]
    origin = f"measured passes of {path}" + (f" ({', '.join(measured)})" if measured else "")
    return Passes(economics.MeasuredPasses.from_cells(cells), origin)


def _passes(
    model: str | None, machine: str, shape: str, profile: Path | None, measure: bool, spec_model: str | None
) -> Passes:
    if spec_model is not None and not measure:
        raise ConfigError(f"spec_model is {spec_model!r}, but nothing is to be measured; add --measure or leave it out")
    if measure and model is None:
        raise ConfigError("--measure has no model to measure; name one, such as foredraft plan smollm2-135m --measure")
    if model is not None and not measure:
        raise ConfigError(f"MODEL is {model!r}, but nothing is to be measured; add --measure or leave the model out")
    if measure and model is not None:
        from foredraft.cli.plan_measure import measured_passes

        return measured_passes(model, spec_model)
    if profile is not None:
        return read_passes(profile)
    for name, value, known in (("machine", machine, economics.MACHINES), ("shape", shape, economics.MODELS)):
        if value not in known:
            raise ConfigError(f"{name} {value!r} is unknown; use one of {', '.join(known)}")
    time = economics.roofline(economics.MACHINES[machine], economics.MODELS[shape])
    return Passes(time, f"data sheet of {machine}, {shape} in 16 bits")


def _numbers(text: str | None) -> list[int]:
    parts = [] if text is None else text.split(",")
    for part in parts:
        if not (part.strip().isdecimal() and 1 <= int(part) <= 1 << 20):
            raise ConfigError(f"batch {text!r} has {part.strip()!r} in it; give whole numbers from 1, such as 1,4,16")
    return [int(part) for part in parts]


def _answer(chain: Plan, loads: list[BatchPlan]) -> dict[str, object]:
    return {**chain._asdict(), "batches": [load._asdict() for load in loads]}


def _measurement(passes: Passes) -> dict[str, object]:
    return {"meta": passes.meta, "cells": [*passes.cells, *passes.drafts]}


def _open(chain: Plan) -> None:
    address = (page_directory() / "index.html").as_uri()
    address += page_hash(chain.acceptance, chain.draft_length, chain.draft_cost)
    opened = webbrowser.open(address)
    typer.echo(f"{'Opened' if opened else 'No browser found here; open'} {address}", err=True)
