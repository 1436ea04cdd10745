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

from foredraft.cli import options
from foredraft.cli.sections import SectionedCommand
from foredraft.errors import ConfigError
from foredraft.target.default_model import DEFAULT_MODEL_ALIAS

if TYPE_CHECKING:
    from rich.table import Table

    from foredraft.bench.datasets import BenchPrompt
    from foredraft.bench.micro_cells import MicroCell
    from foredraft.bench.offline import Plan, Progress

__all__ = ["app"]

WHAT, HOW = "What is decoded", "How"

app = typer.Typer(help="Measure speed, acceptance, time split and memory.", rich_markup_mode=None, no_args_is_help=True)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, folder, .gguf file or alias.", show_default=True)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Quantization = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="int8, or nothing for the model's own.", rich_help_panel=options.MODEL),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1 ...", rich_help_panel=options.MODEL)]
Workload = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="NAME",
        help="chat, edit, quote, json or creative; may be repeated. [default: all]",
        rich_help_panel=WHAT,
    ),
]
Dataset = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help='JSON Lines as in Spec-Bench, EditEval, HumanEval, GSM8K, or {"prompt": ...}.',
        rich_help_panel=WHAT,
    ),
]
Category = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Only this category of the dataset; may be repeated.", rich_help_panel=WHAT),
]
NumPrompts = Annotated[
    int | None,
    typer.Option(metavar="N", help="At most so many prompts, taken in turn from each category.", rich_help_panel=WHAT),
]
MaxTokens = Annotated[int, typer.Option(metavar="N", help="Longest answer, in tokens.", rich_help_panel=WHAT)]
Method = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        metavar="NAME",
        help="A drafting method; may be repeated. [default: auto]",
        rich_help_panel=HOW,
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--speculative-config",
        "-sc",
        metavar="JSON",
        help='A method with settings, like \'{"method": "ngram", "num_speculative_tokens": 8}\'; may be repeated.',
        rich_help_panel=HOW,
    ),
]
SpecTokens = Annotated[
    int | None,
    typer.Option(metavar="N", help="num_speculative_tokens of the methods given by name.", rich_help_panel=HOW),
]
Predict = Annotated[
    bool,
    typer.Option(
        "--predict", help="Let every method see the predictions, not just the method prediction.", rich_help_panel=HOW
    ),
]
Temperature = Annotated[
    list[float] | None, typer.Option(metavar="X", help="May be repeated. [default: 0]", rich_help_panel=HOW)
]
Concurrency = Annotated[
    list[str] | None,
    typer.Option(metavar="N,...", help="Requests at the same time; may be a list. [default: 1]", rich_help_panel=HOW),
]
Reference = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        help="Let transformers' own generate take its turn, too, in this dtype. Greedy only.",
        rich_help_panel=HOW,
    ),
]
Repeat = Annotated[
    int, typer.Option(metavar="N", help="Decode everything so often; medians count.", rich_help_panel=HOW)
]


@app.command(cls=SectionedCommand)
def offline(
    model: Model = DEFAULT_MODEL_ALIAS,
    workload: Workload = None,
    dataset: Dataset = None,
    category: Category = None,
    num_prompts: NumPrompts = None,
    max_tokens: MaxTokens = 128,
    method: Method = None,
    speculative_config: Config = None,
    spec_tokens: SpecTokens = None,
    predict: Predict = False,
    temperature: Temperature = None,
    concurrency: Concurrency = None,
    repeat: Repeat = 1,
    reference: Reference = None,
    dtype: options.Dtype = "auto",
    quantization: Quantization = None,
    device: Device = "auto",
    max_model_len: options.MaxModelLen = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    enforce_eager: options.EnforceEager = False,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    offline: options.Offline = False,
    json: Json = False,
) -> None:
    """Decode prompts plainly and by speculation in turns, and compare speed, acceptance, time split and memory."""
    from foredraft.bench.methods import EngineOpener, methods_from
    from foredraft.bench.offline import Plan, measure_offline
    from foredraft.bench.report import as_json, describe_target, difference_lines, offline_table
    from foredraft.bench.transformers_reference import TransformersReference
    from foredraft.bench.workloads import encode
    from foredraft.engine.open_target import EngineArgs, open_target
    from foredraft.types import SamplingParams

    prompts = _prompts(workload, dataset, category, num_prompts)
    names = method or ([] if speculative_config else ["auto"])
    methods = methods_from(names, speculative_config or [], num_speculative_tokens=spec_tokens, predict=predict)
    temperatures = temperature or [0.0]
    for value in temperatures:
        SamplingParams(temperature=value, max_tokens=max_tokens)  # refused before the model is loaded
    plan = Plan(methods, temperatures, _numbers("concurrency", concurrency or ["1"]), max_tokens, repeat)
    if reference and (set(temperatures) != {0.0} or set(plan.concurrencies) != {1}):
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
    opener = EngineOpener(open_target(args), args)
    target = opener.opened.target
    encoded = encode(prompts, target, longest=target.max_model_len - max_tokens)
    references = {f"transformers {reference}": TransformersReference(args, reference)} if reference else {}
    with _progress() as progress:
        cells = measure_offline(target, opener, encoded, plan, references=references, progress=progress)
    if json:
        settings = _settings(dataset, len(prompts), plan)
        typer.echo(as_json({**describe_target(target), **settings}, cells))
        return
    _print_tables([offline_table(cells)])
    for line in difference_lines(cells):
        typer.echo(line)


@app.command(cls=SectionedCommand)
def sweep(
    model: Model = DEFAULT_MODEL_ALIAS,
    workload: Workload = None,
    dataset: Dataset = None,
    category: Category = None,
    num_prompts: NumPrompts = None,
    max_tokens: MaxTokens = 64,
    methods: Annotated[
        str, typer.Option(metavar="NAME,...", help="off, auto, and fixed:K for K draft tokens.", rich_help_panel=HOW)
    ] = "off,fixed:1,fixed:2,fixed:3,fixed:4,fixed:5,fixed:6,fixed:7,fixed:8,auto",
    spec_method: Annotated[
        str, typer.Option(metavar="NAME", help="What drafts for auto and fixed:K.", rich_help_panel=HOW)
    ] = "auto",
    concurrency: Annotated[
        str, typer.Option(metavar="N,...", help="Requests at the same time.", rich_help_panel=HOW)
    ] = "1,2,4,8,16,32",
    temperature: Temperature = None,
    repeat: Repeat = 3,
    plot: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Draw the results there, as SVG and PNG.", rich_help_panel=HOW)
    ] = None,
    dtype: options.Dtype = "auto",
    quantization: Quantization = None,
    device: Device = "auto",
    max_model_len: options.MaxModelLen = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    enforce_eager: options.EnforceEager = False,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    offline: options.Offline = False,
    json: Json = False,
) -> None:
    """Find out at which load speculation pays: every method at every concurrency, in turns, beside plain decoding."""
    from foredraft.bench.methods import EngineOpener
    from foredraft.bench.offline import Plan, measure_offline
    from foredraft.bench.plot import draw_sweep
    from foredraft.bench.report import as_json, describe_target, difference_lines, sweep_table
    from foredraft.bench.sweep import join_workloads, summarise, sweep_methods
    from foredraft.bench.workloads import encode
    from foredraft.engine.open_target import EngineArgs, open_target

    prompts = _prompts(workload, dataset, category, num_prompts)
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
    opener = EngineOpener(open_target(args), args)
    target = opener.opened.target
    encoded = join_workloads(encode(prompts, target, longest=target.max_model_len - max_tokens))
    with _progress() as progress:
        cells = measure_offline(target, opener, encoded, plan, progress=progress)
    summary = summarise(cells)
    if plot is not None:
        draw_sweep(cells, plot)
    if json:
        settings = _settings(dataset, len(prompts), plan)
        typer.echo(as_json({**describe_target(target), **settings}, cells, summary))
        return
    _print_tables([sweep_table(cells, summary)])
    for line in difference_lines(cells):
        typer.echo(line)


@app.command(cls=SectionedCommand)
def micro(
    model: Model = DEFAULT_MODEL_ALIAS,
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
    quantization: Quantization = None,
    device: Device = "auto",
    max_model_len: options.MaxModelLen = None,
    enforce_eager: options.EnforceEager = False,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    offline: options.Offline = False,
    json: Json = False,
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
    cells: list[MicroCell] = []
    with _progress() as progress:
        target = open_target(args).target
        cells += measure_micro(target, plan, progress=lambda what: progress(0, 0, what))
        cells += measure_startup(args, plan, progress=lambda what: progress(0, 0, what))
    if json:
        typer.echo(as_json(describe_target(target), cells))
    else:
        _print_tables(micro_tables(cells))


def _prompts(
    workloads: list[str] | None, dataset: Path | None, categories: list[str] | None, num_prompts: int | None
) -> list[BenchPrompt]:
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


def _print_tables(tables: list[Table]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(highlight=False, width=200)
    for table in tables:
        wide.print(table)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr, nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total or None, description=what)
