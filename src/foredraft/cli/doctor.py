"""`foredraft doctor`: what this machine makes of a model, and what would make it better.

The report goes to stdout. Everything in it was measured, in some ten seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from foredraft.cli import options
from foredraft.cli.starting import starting

if TYPE_CHECKING:
    from foredraft.bench.checkup import Checkup, RowInvariance

__all__ = ["doctor"]

LABEL_WIDTH = 12


def doctor(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hub id, folder, .gguf file, or an alias.")
    ] = "smollm2-135m",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    device: options.Device = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    enforce_eager: options.EnforceEager = False,
    offline: options.Offline = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Check this machine: speed of a pass, memory bandwidth, and how exact speculation is."""
    with starting(model, offline=offline):
        from foredraft.bench.checkup import examine
        from foredraft.engine.open_target import EngineArgs, open_target

        args = EngineArgs(
            model=model,
            dtype=dtype,
            quantization=quantization,
            device=device,
            max_num_seqs=1,
            enforce_eager=enforce_eager,
            revision=revision,
            trust_remote_code=trust_remote_code,
            offline=offline,
        )
        found = examine(model, open_target(args).target)
    typer.echo(json.dumps(asdict(found), indent=2) if as_json else as_text(found))


def as_text(found: Checkup) -> str:
    """The report for people: what was measured, line by line, and the advice."""
    sections = {
        "model": [found.model],
        "decoder": [found.decoder],
        "threads": [f"{found.threads} on {found.cores} cores"],
        "vectors": [", ".join(found.instruction_sets) or "none that products could use"],
        "guarantee": [f"speculation reproduces plain decoding {found.guarantee}"],
        "rows": _row_lines(found.row_invariant),
        "pass": _pass_lines(found.pass_ms, found.cached_tokens),
        "bandwidth": [_bandwidth_line(found.bandwidth)],
        "advice": found.advice or ["nothing to improve was found"],
    }
    return "\n".join(
        f"{'' if index else label:<{LABEL_WIDTH}}{line}"
        for label, lines in sections.items()
        for index, line in enumerate(lines)
    )


def _row_lines(rows: RowInvariance) -> list[str]:
    everywhere = f"a row has the same bits {_where(rows.from_rows)}"
    lines = [f"{everywhere}, trees {'included' if rows.trees else 'excluded'}"]
    if rows.largest_difference:
        lines.append(f"else its logits differed by up to {rows.largest_difference:.1g}")
    return lines + [f"the library's {name} products: {_where(count)}" for name, count in rows.products.items()]


def _where(from_rows: int | None) -> str:
    if from_rows is None:
        return "only in passes of the same size"
    return "in passes of any size" if from_rows == 1 else f"in passes of {from_rows} rows or more"


def _pass_lines(pass_ms: Mapping[int, float], cached_tokens: int) -> list[str]:
    """Times below their row counts."""
    columns = [("rows", "ms", "of one row")]
    columns += [(str(rows), f"{value:.2f}", f"{value / pass_ms[1]:.2f}x") for rows, value in pass_ms.items()]
    first, *others = [max(map(len, column)) for column in columns]
    table = [
        "  ".join([name.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, others, strict=True))])
        for name, *cells in zip(*columns, strict=True)
    ]
    return [*table, f"with {cached_tokens} tokens in the cache, the head for every row"]


def _bandwidth_line(bandwidth: Mapping[str, float]) -> str:
    copied = f"a copy moves {bandwidth['copy']:g} GB/s"
    if "pass" not in bandwidth:
        return copied
    share = bandwidth["pass"] / bandwidth["copy"]
    return f"{copied}; a pass of one row reads its weights at {bandwidth['pass']:g} GB/s ({share:.0%})"
