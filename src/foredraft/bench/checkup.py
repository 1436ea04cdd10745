"""What this machine makes of a model: time of a pass, memory bandwidth reached, and how exact speculation is.

`examine` measures for some ten seconds; `foredraft doctor` prints what it found.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foredraft.bench.advice import advice_on
from foredraft.bench.hardware import copy_rate, core_count, instruction_sets, product_invariance
from foredraft.bench.passes import measure_passes
from foredraft.bench.weights import bytes_of_a_pass
from foredraft.target.decoder import Decoder
from foredraft.target.fast_decoder import FastDecoder
from foredraft.target.proof import RowCheck, check_rows
from foredraft.target.target import Target

__all__ = ["Checkup", "RowInvariance", "examine"]

ROWS = (1, 4, 8, 16, 32)
CACHED_TOKENS = 256
REPEATS = 7


@dataclass(frozen=True, slots=True)
class RowInvariance:
    """Where a row's result has the same bits whatever else is in the pass.

    passes              in passes of any number of rows
    from_rows           the number of rows from which it holds (None: no such number)
    trees               in a branch of a tree as in a chain
    largest_difference  of a logit, where it doesn't hold
    products            the library's own matrix products by type: the number of rows from which it holds for them
    """

    passes: bool
    from_rows: int | None
    trees: bool
    largest_difference: float
    products: dict[str, int | None]


@dataclass(frozen=True, slots=True)
class Checkup:
    """What was found.

    guarantee      "bit for bit", or "up to near ties below" a difference of logits
    cached_tokens  of the sequence whose passes were timed
    pass_ms        milliseconds of a pass with its head, by rows
    bandwidth      GB/s: "copy" in memory (read and written), "pass" of the weights that a pass of one row reads
    advice         what would make it better, a clause each
    """

    model: str
    decoder: str
    threads: int
    cores: int
    instruction_sets: list[str]
    guarantee: str
    row_invariant: RowInvariance
    cached_tokens: int
    pass_ms: dict[int, float]
    bandwidth: dict[str, float]
    advice: list[str]


def examine(model: str, target: Target) -> Checkup:
    """Measure everything that the report has."""
    decoder = target.decoder
    rows = check_rows(decoder)
    cached_tokens, pass_ms = _pass_times(target)
    bandwidth = _bandwidth(decoder, pass_ms[1])
    return Checkup(
        model=model,
        decoder=_describe(decoder),
        threads=torch.get_num_threads(),
        cores=core_count(),
        instruction_sets=instruction_sets(),
        guarantee=_guarantee(rows),
        row_invariant=RowInvariance(
            passes=rows.exact,
            from_rows=rows.invariant_from,
            trees=rows.trees_exact,
            largest_difference=rows.gap,
            products=product_invariance(decoder.hidden_size, decoder.device),
        ),
        cached_tokens=cached_tokens,
        pass_ms=pass_ms,
        bandwidth=bandwidth,
        advice=advice_on(decoder, rows, pass_ms, bandwidth),
    )


def _describe(decoder: Decoder) -> str:
    if isinstance(decoder, FastDecoder):
        return f"lean, {decoder.weight_format}, {decoder.way.name}"
    return f"stock transformers, {decoder.weight_format}"


def _guarantee(rows: RowCheck) -> str:
    """Either of two logits may be off by the gap, so their difference by twice as much."""
    return "bit for bit" if rows.exact else f"up to near ties below {2 * rows.gap:.1g}"


def _pass_times(target: Target) -> tuple[int, dict[int, float]]:
    """Cached tokens and milliseconds by rows, with as much cached as the model's context allows."""
    counts = [count for count in ROWS if count <= target.max_model_len]
    cached = min(CACHED_TOKENS, target.max_model_len - max(counts))
    cells = measure_passes(target, counts, [cached], repeat=REPEATS, products=False)
    return cached, {cell.rows: round(cell.pass_ms, 3) for cell in cells}


def _bandwidth(decoder: Decoder, one_row_ms: float) -> dict[str, float]:
    found = {"copy": copy_rate(decoder.device)}
    read = bytes_of_a_pass(decoder)
    if read is not None:
        found["pass"] = read / one_row_ms / 1e6
    return {name: float(f"{rate:.3g}") for name, rate in found.items()}
