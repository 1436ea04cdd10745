"""The options of `foredraft bench`'s subcommands, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foredraft.cli import options

WHAT, HOW = "What is decoded", "How"

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
