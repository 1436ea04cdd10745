"""The options that several subcommands share, each defined once. Names and meaning are vLLM's where vLLM has the thing.

An option that isn't given is None and leaves the decision to the model's generation_config.json, or to the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foredraft.cli.parse import byte_count

MODEL, SPECULATION, SAMPLING, OUTPUT = "Model", "Speculation", "Sampling", "Output"

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Hub id, folder, .gguf file, or the alias smollm2-135m.", show_default=False),
]

# --- the model and its engine

Dtype = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="auto, float32, bfloat16, float16 or float64; auto is the checkpoint's own.",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]
Quantization = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="int8; without it, the checkpoint's own format.", rich_help_panel=MODEL),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="cpu, cuda, cuda:1 ...; auto is the first GPU, if any.",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]
MaxModelLen = Annotated[
    int | None, typer.Option(metavar="N", help="Longest prompt and answer together, in tokens.", rich_help_panel=MODEL)
]
MaxNumSeqs = Annotated[
    int | None, typer.Option(metavar="N", help="Most sequences decoded at the same time.", rich_help_panel=MODEL)
]
KvCacheMemoryBytes = Annotated[
    int | None,
    typer.Option(
        parser=byte_count,
        metavar="SIZE",
        help="Room for keys and values: bytes, or 4g (powers of 1000), or 4G (of 1024).",
        rich_help_panel=MODEL,
    ),
]
Revision = Annotated[
    str | None, typer.Option(metavar="NAME", help="Branch, tag or commit of a hub id.", rich_help_panel=MODEL)
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.", rich_help_panel=MODEL)
]
EnforceEager = Annotated[
    bool, typer.Option("--enforce-eager", help="Run the stock transformers model, always.", rich_help_panel=MODEL)
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Use only what is on this machine already.", rich_help_panel=MODEL)
]

# --- speculation

SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        "--speculative-config",
        "-sc",
        metavar="JSON",
        help='How to draft, such as \'{"method": "ngram", "num_speculative_tokens": 8}\'.',
        rich_help_panel=SPECULATION,
    ),
]
SpecMethod = Annotated[
    str | None, typer.Option(metavar="NAME", help='The "method" of that JSON.', rich_help_panel=SPECULATION)
]
SpecModel = Annotated[
    str | None, typer.Option(metavar="MODEL", help='The "model" of that JSON.', rich_help_panel=SPECULATION)
]
SpecTokens = Annotated[
    int | None,
    typer.Option(metavar="N", help='The "num_speculative_tokens" of that JSON.', rich_help_panel=SPECULATION),
]
Plain = Annotated[bool, typer.Option("--plain", help="Decode without speculation.", rich_help_panel=SPECULATION)]
Prediction = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A text the answer will resemble, to draft from.", rich_help_panel=SPECULATION),
]

# --- sampling

Temperature = Annotated[
    float | None, typer.Option(metavar="X", help="0 always takes the likeliest token.", rich_help_panel=SAMPLING)
]
TopP = Annotated[
    float | None,
    typer.Option(metavar="X", help="Keep the likeliest tokens that make up this share.", rich_help_panel=SAMPLING),
]
TopK = Annotated[int | None, typer.Option(metavar="N", help="Keep the N likeliest tokens.", rich_help_panel=SAMPLING)]
MinP = Annotated[
    float | None,
    typer.Option(
        metavar="X", help="Keep tokens at least X times as likely as the likeliest.", rich_help_panel=SAMPLING
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(
        metavar="X", help="Above 1: discourage tokens of the prompt and the answer.", rich_help_panel=SAMPLING
    ),
]
PresencePenalty = Annotated[
    float | None,
    typer.Option(metavar="X", help="Above 0: discourage tokens of the answer.", rich_help_panel=SAMPLING),
]
FrequencyPenalty = Annotated[
    float | None,
    typer.Option(metavar="X", help="Above 0: the same, once for each time they occurred.", rich_help_panel=SAMPLING),
]
LogitBias = Annotated[
    str | None,
    typer.Option(
        "--logit-bias",
        metavar="JSON",
        help="Added to logits, by token id, such as '{\"42\": -100}'.",
        rich_help_panel=SAMPLING,
    ),
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="The same seed gives the same answer.", rich_help_panel=SAMPLING)
]
MaxTokens = Annotated[
    int | None,
    typer.Option(metavar="N", help="Longest answer, in tokens. [default: 512, or what fits]", rich_help_panel=SAMPLING),
]
MinTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Shortest answer, in tokens.", rich_help_panel=SAMPLING)
]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="End the answer before this text; may be repeated.", rich_help_panel=SAMPLING),
]
StopTokenIds = Annotated[
    list[int] | None,
    typer.Option(metavar="ID", help="End the answer at this token; may be repeated.", rich_help_panel=SAMPLING),
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end of text.", rich_help_panel=SAMPLING)]

# --- prompt and output

System = Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")]
Show = Annotated[bool, typer.Option("--show", help="Mark the text that came from drafts.", rich_help_panel=OUTPUT)]
