"""`foredraft bench`: what speculation gains here, measured beside plain decoding in the same run.

Tables and JSON go to stdout, progress to stderr and only where that is a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foredraft.cli import bench_options, options
from foredraft.cli.bench_serve import serve
from foredraft.cli.sections import SectionedCommand
from foredraft.cli.starting import starting
from foredraft.errors import ConfigError
from foredraft.target.default_model import DEFAULT_MODEL_ALIAS

if TYPE_CHECKING:
    from rich.table import Table

    from foredraft.bench.datasets import BenchPrompt
    from foredraft.bench.micro_cells import MicroCell
    from foredraft.bench.offline import Plan, Progress

__all__ = ["app", "chosen_prompts", "progress_bar"]

UNLIMITED = 10_000  # columns, more than any table has

app = typer.Typer(help="Measure speed, acceptance, time split and memory.", rich_markup_mode=None, no_args_is_help=True)


@app.command(cls=SectionedCommand)
def offline(
    model: bench_options.Model = DEFAULT_MODEL_ALIAS,
    workload: bench_options.Workload = None,
    dataset: bench_options.Dataset = None,
    category: bench_options.Category = None,
    num_prompts: bench_options.NumPrompts = None,
    max_tokens: bench_options.MaxTokens = 128,
    method: bench_options.Method = None,
    speculative_config: bench_options.Config = None,
    spec_tokens: bench_options.SpecTokens = None,
    predict: bench_options.Predict = False,
    temperature: bench_options.Temperature = None,
    concurrency: bench_options.Concurrency = None,
    repeat: bench_options.Repeat = 1,
    reference: bench_options.Reference = None,
    dtype: options.Dtype = "auto",
    quantization: bench_options.Quantization = None,
    device: bench_options.Device = "auto",
    max_model_len: options.MaxModelLen = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    enforce_eager: options.EnforceEager = False,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    offline: options.Offline = False,
    json: bench_options.Json = False,
) -> None:
    """Decode prompts plainly and by speculation in turns, and compare speed, acceptance, time split and memory."""
    from foredraft.bench.methods import EngineOpener, methods_from
    from foredraft.bench.offline import Plan, measure_offline
    from foredraft.bench.report import as_json, describe_target, difference_lines, offline_table
    from foredraft.bench.transformers_reference import TransformersReference
    from foredraft.bench.workloads import encode
    from foredraft.engine.open_target import EngineArgs, open_target

    prompts = chosen_prompts(workload, dataset, category, num_prompts)
    names = method or ([] if speculative_config else ["auto"])
    methods = methods_from(names, speculative_config or [], num_speculative_tokens=spec_tokens, predict=predict)
    plan = Plan(methods, temperature or [0.0], _numbers("concurrency", concurrency or ["1"]), max_tokens, repeat)
    if reference and (set(plan.temperatures) != {0.0} or set(plan.concurrencies) != {1}):
        raise ConfigError(
            f"--reference {reference} decodes greedily, one prompt at a time; leave out the other settings."
        )
    args = EngineArgs(
        model=model,
        dtype=dtype,
        quantization=quantization,
        device=device,
        max_model_len=max_model_len,
        max_num_seqs=max(plan.concurrencies),
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        enforce_eager=enforce_eager,
        revision=revision,
        trust_remote_code=trust_remote_code,
        offline=offline,
    )
    with starting(model, offline=offline):
        opener = EngineOpener(open_target(args), args)
    target = opener.opened.target
    encoded = encode(prompts, target, max_tokens=max_tokens)
    references = {f"transformers {reference}": TransformersReference(args, reference)} if reference else {}
    with progress_bar() as progress:
        cells = measure_offline(target, opener, encoded, plan, references=references, progress=progress)
    if json:
        settings = _settings(dataset, len(prompts), plan)
        typer.echo(as_json({**describe_target(target), **settings}, cells))
        return
    _print_tables([offline_table(cells)], compact=offline_table(cells, compact=True))
    for line in difference_lines(cells):
        typer.echo(line)


@app.command(cls=SectionedCommand)
def sweep(
    model: bench_options.Model = DEFAULT_MODEL_ALIAS,
    workload: bench_options.Workload = None,
    dataset: bench_options.Dataset = None,
    category: bench_options.Category = None,
    num_prompts: bench_options.NumPrompts = None,
    max_tokens: bench_options.MaxTokens = 64,
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAME,...", help="off, auto, and fixed:K for K draft tokens.", rich_help_panel=bench_options.HOW
        ),
    ] = "off,fixed:1,fixed:2,fixed:3,fixed:4,fixed:5,fixed:6,fixed:7,fixed:8,auto",
    spec_method: Annotated[
        str, typer.Option(metavar="NAME", help="What drafts for auto and fixed:K.", rich_help_panel=bench_options.HOW)
    ] = "auto",
    concurrency: Annotated[
        str, typer.Option(metavar="N,...", help="Requests at the same time.", rich_help_panel=bench_options.HOW)
    ] = "1,2,4,8,16,32",
    temperature: bench_options.Temperature = None,
    repeat: bench_options.Repeat = 3,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Draw the results there, as SVG and PNG.", rich_help_panel=bench_options.HOW
        ),
    ] = None,
    dtype: options.Dtype = "auto",
    quantization: bench_options.Quantization = None,
    device: bench_options.Device = "auto",
    max_model_len: options.MaxModelLen = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    enforce_eager: options.EnforceEager = False,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    offline: options.Offline = False,
    json: bench_options.Json = False,
) -> None:
    """Find out at which load speculation pays: every method at every concurrency, in turns, beside plain decoding."""
    from foredraft.bench.methods import EngineOpener
    from foredraft.bench.offline import Plan, measure_offline
    from foredraft.bench.plot import check_plots, draw_sweep
    from foredraft.bench.report import as_json, describe_target, difference_lines, sweep_table
    from foredraft.bench.sweep import join_workloads, summarise, sweep_methods
    from foredraft.bench.workloads import encode
    from foredraft.engine.open_target import EngineArgs, open_target

    prompts = chosen_prompts(workload, dataset, category, num_prompts)
    chosen = sweep_methods([name.strip() for name in methods.split(",")], drafter=spec_method)
    plan = Plan(chosen, temperature or [0.0], _numbers("concurrency", [concurrency]), max_tokens, repeat)
    args = EngineArgs(
        model=model,
        dtype=dtype,
        quantization=quantization,
        device=device,
        max_model_len=max_model_len,
        max_num_seqs=max(plan.concurrencies),
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        enforce_eager=enforce_eager,
        revision=revision,
        trust_remote_code=trust_remote_code,
        offline=offline,
    )
    if plot is not None:
        check_plots(plot)
    with starting(model, offline=offline):
        opener = EngineOpener(open_target(args), args)
    target = opener.opened.target
    encoded = join_workloads(encode(prompts, target, max_tokens=max_tokens))
    with progress_bar() as progress:
        cells = measure_offline(target, opener, encoded, plan, progress=progress)
    summary = summarise(cells)
    if json:
        settings = _settings(dataset, len(prompts), plan)
        typer.echo(as_json({**describe_target(target), **settings}, cells, summary))
    else:
        _print_tables([sweep_table(cells, summary)])
        for line in difference_lines(cells):
            typer.echo(line)
    if plot is not None:
        draw_sweep(cells, plot)


@app.command(cls=SectionedCommand)
def micro(
    model: bench_options.Model = DEFAULT_MODEL_ALIAS,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="pass, prefill, sampling, host, load or memory; may be repeated. [default: all]"
        ),
    ] = None,
    rows: Annotated[str, typer.Option(metavar="N,...", help="Rows of a pass.")] = "1,4,8,16,32,64",
    cached: Annotated[str, typer.Option(metavar="N,...", help="Cached tokens of each sequence.")] = "256",
    batch: Annotated[int, typer.Option(metavar="N", help="Sequences that share the rows.")] = 1,
    prefill: Annotated[int, typer.Option(metavar="N", help="Length of the prompt that is read.")] = 485,
    repeat: Annotated[int, typer.Option(metavar="N", help="Passes that the median is taken of.")] = 15,
    dtype: options.Dtype = "auto",
    quantization: bench_options.Quantization = None,
    device: bench_options.Device = "auto",
    max_model_len: options.MaxModelLen = None,
    enforce_eager: options.EnforceEager = False,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    offline: options.Offline = False,
    json: bench_options.Json = False,
) -> None:
    """Time the parts of a step (passes, their matrix products, picking, host work), a start, and its memory."""
    from foredraft.bench.micro import KINDS, MicroPlan, measure_micro, measure_startup
    from foredraft.bench.report import as_json, describe_target, micro_tables
    from foredraft.engine.open_target import EngineArgs, open_target

    plan = MicroPlan(kind or KINDS, _numbers("rows", [rows]), _numbers("cached", [cached]), batch, prefill, repeat)
    args = EngineArgs(
        model=model,
        dtype=dtype,
        quantization=quantization,
        device=device,
        max_model_len=max_model_len,
        max_num_seqs=1,
        enforce_eager=enforce_eager,
        revision=revision,
        trust_remote_code=trust_remote_code,
        offline=offline,
    )
    with starting(model, offline=offline):
        target = open_target(args).target
    cells: list[MicroCell] = []
    with progress_bar() as progress:
        cells += measure_micro(target, plan, progress=lambda what: progress(0, 0, what))
        cells += measure_startup(args, plan, progress=lambda what: progress(0, 0, what))
    if json:
        typer.echo(as_json(describe_target(target), cells))
    else:
        _print_tables(micro_tables(cells))


app.command(cls=SectionedCommand)(serve)


def chosen_prompts(
    workloads: list[str] | None, dataset: Path | None, categories: list[str] | None, num_prompts: int | None
) -> list[BenchPrompt]:
    """Those of the package or of a file, as the flags say."""
    from foredraft.bench.datasets import read_dataset
    from foredraft.bench.workloads import WORKLOADS, choose, own_prompts

    if dataset is not None and workloads:
        raise ConfigError(f"--workload {workloads[0]} names own prompts and --dataset {dataset} others; leave one out.")
    prompts = read_dataset(dataset) if dataset else own_prompts(workloads or WORKLOADS)
    return choose(prompts, categories=categories or (), num_prompts=num_prompts)


def _settings(dataset: Path | None, num_prompts: int, plan: Plan) -> dict[str, object]:
    """The part of "meta" that tells what was decoded, and how."""
    return {
        "dataset": str(dataset) if dataset else "own prompts",
        "num_prompts": num_prompts,
        "max_tokens": plan.max_tokens,
        "repeat": plan.repeat,
        "methods": {method.name: method.config for method in plan.methods},
    }


def _numbers(name: str, lists: list[str]) -> list[int]:
    """Whole numbers from comma-separated lists."""
    values = [part.strip() for text in lists for part in text.split(",")]
    wrong = next((value for value in values if not value.isdecimal()), None)
    if wrong is not None:
        raise ConfigError(f"--{name} has {wrong!r}; give whole numbers separated by commas, such as 1,4,16.")
    return [int(value) for value in values]


def _print_tables(tables: list[Table], compact: Table | None = None) -> None:
    """Never cut short: on a narrow terminal `compact` instead, if there is one, and else lines that wrap."""
    from rich.console import Console

    terminal, unlimited = Console(), Console(width=UNLIMITED)
    for table in tables:
        narrow = terminal.is_terminal and unlimited.measure(table).maximum > terminal.width
        chosen = compact if narrow and compact else table
        Console(width=unlimited.measure(chosen).maximum, highlight=False).print(chosen)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on stderr, nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total or None, description=what)
