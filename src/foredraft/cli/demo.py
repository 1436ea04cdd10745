"""`foredraft demo`: three prompts decoded plainly, then by speculation with drafted text marked, and a table of both.

With --json, the object that `foredraft bench` prints, and nothing else on stdout.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from foredraft.cli import options
from foredraft.cli.demo_prompts import DEMO_PROMPTS, DemoPrompt
from foredraft.cli.parse import speculative_config
from foredraft.cli.starting import encode_prompt, starting
from foredraft.cli.terminal import TextWriter, bold, both_speeds, describe_difference, dim, has_colour, transient
from foredraft.types import SamplingParams

if TYPE_CHECKING:
    from foredraft.cli.compare import Comparison
    from foredraft.engine.llm import LLM

__all__ = ["demo"]

GAP = 2
HEADINGS = (
    ("", "plain", "speculative", "", "acceptance", "", ""),
    ("", "tokens/s", "tokens/s", "speedup", "length", "rate", "identical"),
)


def demo(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Hub id, folder, .gguf file or alias.", rich_help_panel=options.MODEL)
    ] = "smollm2-135m",
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="Longest answer, in tokens.", rich_help_panel=options.SAMPLING)
    ] = 128,
    speculative_config_json: options.SpeculativeConfig = None,
    spec_method: options.SpecMethod = None,
    spec_model: options.SpecModel = None,
    spec_tokens: options.SpecTokens = None,
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    device: options.Device = "auto",
    enforce_eager: options.EnforceEager = False,
    offline: options.Offline = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead.", rich_help_panel=options.OUTPUT)
    ] = False,
) -> None:
    """Decode three prompts plainly and by speculation, and compare.

    The default model (93 MB) is fetched on first use.
    """
    config = speculative_config(speculative_config_json, spec_method, spec_model, spec_tokens) or {}
    params = SamplingParams(temperature=temperature or 0.0, seed=seed, max_tokens=max_tokens)
    with starting(model, offline=offline):
        from foredraft.engine.llm import LLM

        llm = LLM(
            model,
            speculative_config=config,
            dtype=dtype,
            quantization=quantization,
            device=device,
            max_num_seqs=1,
            enforce_eager=enforce_eager,
            offline=offline,
        )
    method = method_name(llm, config)
    if json_:
        from foredraft.cli.report import bench_object

        compared = {example.workload: decode_twice(llm, example, params) for example in DEMO_PROMPTS}
        print(json.dumps(bench_object(llm, method, params, compared)))
        return
    print_opening(llm, method, params)
    shown = {example.title: show_example(llm, example, params) for example in DEMO_PROMPTS}
    print_table(shown)


def decode_twice(llm: LLM, example: DemoPrompt, params: SamplingParams, writer: TextWriter | None = None) -> Comparison:
    """Decode an example plainly, with a count on the terminal, then by speculation into `writer`."""
    from foredraft.cli.compare import against, decode_plainly

    tokens = encode_prompt(llm, example.text, raw=False, system=None)
    counts = itertools.count(1)
    with transient("Decoding plainly …") as status:
        plain = decode_plainly(llm, tokens, params, lambda _: status(f"Decoding plainly … {next(counts)} tokens"))
    if writer is None:
        with transient("Decoding by speculation …"):
            return against(llm, plain, tokens, params, lambda _: None)
    with writer:
        return against(llm, plain, tokens, params, lambda delta: writer.write(delta.pieces))


def show_example(llm: LLM, example: DemoPrompt, params: SamplingParams) -> Comparison:
    """Stream one example under its title, its figures below."""
    request = textwrap.fill(example.request, shutil.get_terminal_size().columns)
    print(f"{bold(example.title)}\n{dim(request, sys.stdout)}\n")
    comparison = decode_twice(llm, example, params, TextWriter(show_drafts=True))
    print(dim(f"\n{both_speeds(comparison)}\n\n", sys.stdout))
    return comparison


def print_opening(llm: LLM, method: str, params: SamplingParams) -> None:
    sampling = "greedy" if params.greedy else f"temperature {params.temperature:g}"
    mark = "Green text" if has_colour(sys.stdout) else "Text in ‹ ›"
    print(
        f"{llm.target.name} · {method}, at most {llm.engine.num_speculative_tokens} draft tokens a step · {sampling}\n"
        f"{mark} was drafted, and found to be what the model writes anyway.\n\n"
    )


def print_table(comparisons: Mapping[str, Comparison]) -> None:
    """All examples side by side, and below it where the two texts part, should they."""
    rows = [
        (
            title,
            f"{comparison.plain.throughput:.1f}",
            f"{comparison.speculative.throughput:.1f}",
            f"{comparison.speedup:.2f}x",
            f"{comparison.speculative.statistics.acceptance_length:.2f}",
            f"{comparison.speculative.statistics.acceptance_rate:.0%}",
            "yes" if comparison.identical else "no",
        )
        for title, comparison in comparisons.items()
    ]
    widths = [max(map(len, column)) for column in zip(*HEADINGS, *rows, strict=True)]
    for cells in HEADINGS:
        print(dim(_line(cells, widths), sys.stdout))
    print(dim("─" * (sum(widths) + GAP * (len(widths) - 1)), sys.stdout))
    for cells in rows:
        print(_line(cells, widths))
    for title, comparison in comparisons.items():
        if comparison.difference is not None:
            print(f"\n{title}: {describe_difference(comparison)}")


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    numbers = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return (" " * GAP).join([cells[0].ljust(widths[0]), *numbers]).rstrip()


def method_name(llm: LLM, config: Mapping[str, object]) -> str:
    """What the drafter is called in results."""
    return str(config.get("method") or "draft_model")
