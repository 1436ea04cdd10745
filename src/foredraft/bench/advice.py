"""What would make decoding faster or more exact here, told from measurements. Each rule gives a clause, or None."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from foredraft.bench.hardware import core_count
from foredraft.bench.machine import load_average
from foredraft.bench.weights import bytes_of_a_pass
from foredraft.target.decoder import Decoder
from foredraft.target.fast_decoder import FastDecoder
from foredraft.target.proof import RowCheck
from foredraft.target.stock_decoder import StockDecoder

__all__ = ["advice_on"]

STEEP = 2.0
"""A pass of eight rows that takes this many times as long as one of a single row leaves little to gain."""
BEYOND_CACHES = 1 << 26
"""Weights of fewer bytes may come from the processor's caches, and then bandwidth says nothing."""
LOW_SHARE = 0.5
"""A pass of one row that reads its weights at less than this share of a copy's rate waits for something else."""


def advice_on(
    decoder: Decoder, rows: RowCheck, pass_ms: Mapping[int, float], bandwidth: Mapping[str, float]
) -> list[str]:
    """All clauses that apply, the most helpful first."""
    found = (
        _busy(),
        _idle_cores(),
        _lean(decoder),
        _compiled(decoder),
        _exact(rows),
        _narrow_weights(decoder),
        _steep(pass_ms),
        _bandwidth(decoder, bandwidth),
    )
    return [clause for clause in found if clause is not None]


def _busy() -> str | None:
    load, cores = load_average(), core_count()
    if load is None or load <= 0.75 * cores + 1:  # one for this measurement
        return None
    return f"{load:.1f} processes wanted the {cores} cores in the last minute: measure again without the others"


def _idle_cores() -> str | None:
    threads, cores = torch.get_num_threads(), core_count()
    if 2 * threads >= cores:  # two threads of a core share its vector units
        return None
    return f"{threads} of {cores} cores compute: OMP_NUM_THREADS={cores} uses them all"


def _lean(decoder: Decoder) -> str | None:
    if not isinstance(decoder, StockDecoder):
        return None
    because = f", since {decoder.chosen_because}" if decoder.chosen_because else ""
    return f"the stock model runs{because}: the lean decoder is faster where it serves the model and its dtype"


def _compiled(decoder: Decoder) -> str | None:
    if not isinstance(decoder, FastDecoder) or decoder.way.name == "compiled kernels" or decoder.device.type != "cpu":
        return None
    from foredraft.target.kernels.compiled import refusal

    why = refusal(decoder.way.shape)
    return None if why is None else f"plain torch runs, not the compiled kernels, since {why}"


def _exact(rows: RowCheck) -> str | None:
    if rows.exact:
        return None
    return "answers can differ where two tokens are all but tied: --dtype float32 makes such ties rarest"


def _narrow_weights(decoder: Decoder) -> str | None:
    if not isinstance(decoder, FastDecoder) or decoder.weight_format == "int8" or not decoder.own_threads:
        return None
    share = {"float32": "a quarter", "bfloat16": "half"}[decoder.weight_format]
    return f"--quantization int8 reads {share} of the bytes in a pass; its answers are those of the rounded weights"


def _steep(pass_ms: Mapping[int, float]) -> str | None:
    if 8 not in pass_ms or pass_ms[8] <= STEEP * pass_ms[1]:
        return None
    return f"8 rows take {pass_ms[8] / pass_ms[1]:.1f} times as long as one, so only sure drafts pay here"


def _bandwidth(decoder: Decoder, bandwidth: Mapping[str, float]) -> str | None:
    read = bytes_of_a_pass(decoder)
    if read is None or read < BEYOND_CACHES or bandwidth["pass"] >= LOW_SHARE * bandwidth["copy"]:
        return None
    share = bandwidth["pass"] / bandwidth["copy"]
    return f"a pass of one row reaches {share:.0%} of the memory's bandwidth, so it waits for something else"
