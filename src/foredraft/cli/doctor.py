"""`foredraft doctor`: what this machine makes of a model: time of a pass, memory bandwidth reached, and how exact
speculation is.

Everything is measured while you wait, in some ten seconds. The report goes to stdout.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from foredraft.cli import options
from foredraft.cli.starting import starting

if TYPE_CHECKING:
    import torch

    from foredraft.target.decoder import Decoder

__all__ = ["Report", "doctor", "examine"]

ROWS = (1, 4, 8, 16, 32)
CACHED_TOKENS = 256
REPEATS = 9
COPIED_BYTES = 1 << 28
INSTRUCTION_SETS = (
    "avx2",
    "avx512f",
    "avx512vnni",
    "avx512bf16",
    "avx512fp16",
    "avxvnni",
    "amx-int8",
    "neon",
    "dotprod",
)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    guarantee      "bit for bit", or "up to near ties below" a difference of logits
    row_invariant  whether a row's logits have the same bits in any pass, from how many rows on, and the same for the
                   libraries' own products
    pass_ms        milliseconds of a pass with its head, by rows, 256 tokens cached
    bandwidth      gigabytes per second: a copy in memory (read and written), and the weights a pass of one row reads
    """

    model: str
    decoder: str
    threads: int
    instruction_sets: list[str]
    guarantee: str
    row_invariant: dict[str, object]
    pass_ms: dict[int, float]
    bandwidth: dict[str, float]
    advice: list[str]


def doctor(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hub id, folder, .gguf file, or an alias.")
    ] = "smollm2-135m",
    dtype: options.Dtype = "auto",
    enforce_eager: options.EnforceEager = False,
    offline: options.Offline = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Check this machine: speed of a pass, memory bandwidth, and how exact speculation is."""
    with starting(model, offline=offline):
        from foredraft.engine.open_target import EngineArgs, open_target

        arguments = EngineArgs(model=model, dtype=dtype, max_num_seqs=1, enforce_eager=enforce_eager, offline=offline)
        report = examine(model, open_target(arguments).target.decoder)
    typer.echo(json.dumps(asdict(report), indent=2) if as_json else as_text(report))


def examine(model: str, decoder: Decoder) -> Report:
    """Measure everything that the report has."""
    import torch

    from foredraft.target.fast_decoder import FastDecoder
    from foredraft.target.proof import check_rows

    rows = check_rows(decoder)
    pass_ms = {count: _pass_ms(decoder, count) for count in ROWS}
    copied = _copy_rate()
    lean = isinstance(decoder, FastDecoder)
    if isinstance(decoder, FastDecoder):
        name, weight_bytes = f"lean, {decoder.weight_format}, {decoder.way.name}", decoder.way.weight_bytes
    else:
        name, weight_bytes = f"stock transformers, {str(decoder.cache_dtype).removeprefix('torch.')}", 0
    guarantee = "bit for bit" if rows.exact else f"up to near ties below {2 * rows.gap:.1g}"
    bandwidth = {"copy": round(copied, 1)}
    if weight_bytes:
        bandwidth["pass"] = round(weight_bytes / pass_ms[1] / 1e6, 1)
    return Report(
        model=model,
        decoder=name,
        threads=torch.get_num_threads(),
        instruction_sets=_instruction_sets(),
        guarantee=guarantee,
        row_invariant={
            "passes": rows.exact,
            "from_rows": rows.invariant_from,
            "trees": rows.trees_exact,
            "largest_difference": rows.gap,
            "products": _product_invariance(decoder.hidden_size),
        },
        pass_ms=pass_ms,
        bandwidth=bandwidth,
        advice=_advice(lean, rows.exact, pass_ms),
    )


def as_text(report: Report) -> str:
    """The report for people."""
    rows, products = report.row_invariant, report.row_invariant["products"]
    assert isinstance(products, dict)
    lines = [
        f"model          {report.model}",
        f"decoder        {report.decoder}",
        f"threads        {report.threads}; {', '.join(report.instruction_sets) or 'no vector extensions found'}",
        f"guarantee      speculation reproduces plain decoding {report.guarantee}",
        f"rows           {_from(rows['from_rows'])}; trees {'exact' if rows['trees'] else 'up to rounding'}",
        *(f"               {name} alone: {_from(count)}" for name, count in products.items()),
        "pass           " + ", ".join(f"{count} rows {value:.1f} ms" for count, value in report.pass_ms.items()),
        "bandwidth      " + ", ".join(f"{name} {value:g} GB/s" for name, value in report.bandwidth.items()),
        *(f"advice         {line}" for line in report.advice),
    ]
    return "\n".join(lines)


def _from(count: object) -> str:
    if count is None:
        return "a row's bits depend on how many rows there are"
    return (
        "a row has the same bits in any pass" if count == 1 else f"a row has the same bits in passes of {count} or more"
    )


def _pass_ms(decoder: Decoder, rows: int) -> float:
    import torch

    from foredraft.target.flat_pass import FlatPass, Segment
    from foredraft.target.kv_cache import KVCache

    cache = KVCache(decoder.cache_shape, 1, decoder.cache_dtype, decoder.device)
    cache.reserve(CACHED_TOKENS + rows)
    for plane in cache.planes:
        plane.zero_()
    tokens = torch.arange(rows, device=decoder.device) % decoder.vocab_size
    positions = torch.arange(CACHED_TOKENS, CACHED_TOKENS + rows, device=decoder.device)
    flat = FlatPass(tokens, positions, (Segment(0, CACHED_TOKENS, 0, rows),))

    def run() -> torch.Tensor:
        return decoder.head(decoder.forward(flat, cache).last).cpu()

    run()
    return round(1e3 * median(_seconds(run) for _ in range(REPEATS)), 2)


def _copy_rate() -> float:
    import torch

    source, target = torch.ones(2, COPIED_BYTES, dtype=torch.uint8).unbind()
    return 2 * COPIED_BYTES / min(_seconds(lambda: target.copy_(source)) for _ in range(5)) / 1e9


def _product_invariance(size: int) -> dict[str, int | None]:
    """From how many rows on the libraries' products give a row the same bits."""
    import torch
    from torch.nn.functional import linear

    found: dict[str, int | None] = {}
    for name in ("float32", "bfloat16"):
        kind = getattr(torch, name)
        x = torch.randn(64, size, generator=torch.Generator().manual_seed(0)).to(kind)
        weight = torch.randn(2 * size, size, generator=torch.Generator().manual_seed(1)).to(kind)
        whole = linear(x, weight)
        differing = [rows for rows in range(1, 64) if not torch.equal(linear(x[:rows], weight), whole[:rows])]
        first = max(differing, default=0) + 1
        found[f"{name} products"] = first if first < 64 else None
    return found


def _instruction_sets() -> list[str]:
    import llvmlite.binding

    features = dict(llvmlite.binding.get_host_cpu_features())
    return [name for name in INSTRUCTION_SETS if features.get(name)]


def _advice(lean: bool, exact: bool, pass_ms: dict[int, float]) -> list[str]:
    advice = []
    if not lean:
        advice.append("the stock model runs; a Llama-shaped model without --enforce-eager gets the lean decoder")
    if not exact:
        advice.append("answers can differ where two tokens are all but tied; --dtype float32 makes such ties rarest")
    if pass_ms[8] > 2 * pass_ms[1]:
        advice.append(f"8 rows take {pass_ms[8] / pass_ms[1]:.1f} times as long as one, so only sure drafts pay here")
    return advice


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
