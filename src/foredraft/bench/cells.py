"""From the runs of one cell to the numbers that are published.

A cell is one workload (or category) under one method, temperature and concurrency. Names are vLLM's where it has the
thing. Of repeated runs of a block the median time counts; docs/reference/bench.md defines every number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, quantiles

from foredraft.bench.decode import Answer, BlockRun
from foredraft.bench.differences import Difference
from foredraft.engine.outputs import SpeculationStats

__all__ = ["BlockPair", "OfflineCell", "offline_cell", "overall_cell"]


@dataclass(slots=True)
class BlockPair:
    """The same block decoded plainly and by a method, once per repeat. `compared`: whether tokens must be equal."""

    compared: bool = True
    plain: list[BlockRun] = field(default_factory=list)
    method: list[BlockRun] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OfflineCell:
    """See docs/reference/bench.md; throughputs in tokens/s."""

    method: str
    workload: str
    concurrency: int
    temperature: float
    num_prompts: int
    total_input_tokens: int
    total_output_tokens: int
    output_throughput: float
    plain_throughput: float
    speedup: float
    speedup_median: float
    speedup_p25: float
    speedup_p75: float
    speedup_geometric_mean: float | None
    decode_speedup: float | None
    acceptance_length: float
    acceptance_rate: float
    spec_decode_acceptance_length: float
    spec_decode_acceptance_rate: float
    spec_decode_per_position_acceptance_rates: list[float]
    identical: bool | None
    differences: list[Difference]
    mean_ttft_ms: float
    median_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float | None
    median_tpot_ms: float | None
    p99_tpot_ms: float | None
    mean_itl_ms: float | None
    median_itl_ms: float | None
    p99_itl_ms: float | None
    plain_mean_ttft_ms: float
    plain_mean_tpot_ms: float | None
    steps: int
    draft_s: float
    verify_s: float
    host_s: float
    draft_share: float
    host_ms: float | None
    peak_memory_mb: float
    peak_device_memory_mb: float | None


def offline_cell(
    pairs: Sequence[BlockPair],
    *,
    method: str,
    workload: str,
    concurrency: int,
    temperature: float,
    input_tokens: int,
    geometric_mean: float | None = None,
) -> OfflineCell:
    """Sum up a cell. Every pair has at least one run of both kinds."""
    runs = [run for pair in pairs for run in pair.method]
    plain = [run for pair in pairs for run in pair.plain]
    repeats = len(pairs[0].method)
    tokens = sum(pair.method[0].output_tokens for pair in pairs)
    plain_tokens = sum(pair.plain[0].output_tokens for pair in pairs)
    throughput = tokens / sum(median(run.seconds for run in pair.method) for pair in pairs)
    plain_throughput = plain_tokens / sum(median(run.seconds for run in pair.plain) for pair in pairs)
    ratios = [ratio for pair in pairs for ratio in _ratios(pair)]
    low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    stats = SpeculationStats()
    for run in runs:
        for answer in run.answers:
            stats.add(answer.stats)
    ttft, tpot, itl = _latencies(runs)
    plain_ttft, plain_tpot, _ = _latencies(plain)
    host_steps = [seconds for run in runs for seconds in run.host_steps]
    decode_all = sum(run.decode_all for run in runs)
    return OfflineCell(
        method=method,
        workload=workload,
        concurrency=concurrency,
        temperature=temperature,
        num_prompts=sum(len(pair.method[0].answers) for pair in pairs),
        total_input_tokens=input_tokens,
        total_output_tokens=tokens,
        output_throughput=throughput,
        plain_throughput=plain_throughput,
        speedup=throughput / plain_throughput,
        speedup_median=middle,
        speedup_p25=low,
        speedup_p75=high,
        speedup_geometric_mean=geometric_mean,
        decode_speedup=fmean(plain_tpot) / fmean(tpot) if tpot and plain_tpot else None,
        acceptance_length=stats.acceptance_length,
        acceptance_rate=stats.acceptance_rate,
        spec_decode_acceptance_length=1 + stats.accepted / stats.drafts if stats.drafts else 1.0,
        spec_decode_acceptance_rate=100 * stats.acceptance_rate,
        spec_decode_per_position_acceptance_rates=[count / stats.drafts for count in stats.accepted_per_position],
        identical=not any(pair.differences for pair in pairs) if pairs[0].compared else None,
        differences=[difference for pair in pairs for difference in pair.differences],
        mean_ttft_ms=1e3 * fmean(ttft),
        median_ttft_ms=1e3 * median(ttft),
        p99_ttft_ms=1e3 * _percentile(ttft, 99),
        mean_tpot_ms=1e3 * fmean(tpot) if tpot else None,
        median_tpot_ms=1e3 * median(tpot) if tpot else None,
        p99_tpot_ms=1e3 * _percentile(tpot, 99) if tpot else None,
        mean_itl_ms=1e3 * fmean(itl) if itl else None,
        median_itl_ms=1e3 * median(itl) if itl else None,
        p99_itl_ms=1e3 * _percentile(itl, 99) if itl else None,
        plain_mean_ttft_ms=1e3 * fmean(plain_ttft),
        plain_mean_tpot_ms=1e3 * fmean(plain_tpot) if plain_tpot else None,
        steps=sum(run.steps for run in runs) // repeats,
        draft_s=sum(run.draft for run in runs) / repeats,
        verify_s=sum(run.verify for run in runs) / repeats,
        host_s=sum(run.host for run in runs) / repeats,
        draft_share=sum(run.decode_draft for run in runs) / decode_all if decode_all else 0.0,
        host_ms=1e3 * median(host_steps) if host_steps else None,
        peak_memory_mb=max(run.peak_memory_mb for run in runs),
        peak_device_memory_mb=max(
            (run.peak_device_memory_mb for run in runs if run.peak_device_memory_mb), default=None
        ),
    )


def overall_cell(cells: Sequence[OfflineCell], pairs: Sequence[BlockPair]) -> OfflineCell:
    """All workloads of one method together: total tokens over total time, and the geometric mean of the cells'
    speedups.
    """
    one = cells[0]
    return offline_cell(
        pairs,
        method=one.method,
        workload="overall",
        concurrency=one.concurrency,
        temperature=one.temperature,
        input_tokens=sum(cell.total_input_tokens for cell in cells),
        geometric_mean=math.exp(fmean(math.log(cell.speedup) for cell in cells)),
    )


def _ratios(pair: BlockPair) -> list[float]:
    """Throughput of the method over that of plain decoding, for each repeat of a block."""
    return [
        (fast.output_tokens / fast.seconds) / (slow.output_tokens / slow.seconds)
        for fast, slow in zip(pair.method, pair.plain, strict=True)
    ]


def _latencies(runs: Iterable[BlockRun]) -> tuple[list[float], list[float], list[float]]:
    """Seconds: to the first token and per output token, each answer's; and between tokens, each step's."""
    answers: list[Answer] = [answer for run in runs for answer in run.answers]
    per_token = [seconds for answer in answers if (seconds := answer.time_per_output_token) is not None]
    between = [seconds for answer in answers for seconds in answer.inter_token_latencies]
    return [answer.time_to_first_token for answer in answers], per_token, between


def _percentile(values: Sequence[float], percent: int) -> float:
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]
