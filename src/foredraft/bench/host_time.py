"""Times what a speculative step costs outside the target's pass and the drafter.

The drafter here knows the answer, so every step has exactly the rows that are asked for and all of its drafts are
accepted.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass, replace
from statistics import median, quantiles

from foredraft.bench.decode import clear_cache
from foredraft.bench.micro_cells import HostCell
from foredraft.drafters.base import BaseDrafter
from foredraft.engine.engine import Engine
from foredraft.target.target import Target
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, Sequence

__all__ = ["measure_host"]

PROMPT_LENGTH = 32
ANSWER_LENGTH = 128
STEPS = 20
MAX_RUNS = 12


@dataclass
class Knowing(BaseDrafter):
    """Proposes what comes next in a text it knows, `length` tokens of it."""

    text: list[int]
    length: int

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return TokenTree.chain(
            [
                self.text[len(sequence.tokens) : len(sequence.tokens) + min(self.length, room)]
                for sequence, room in zip(batch, budget, strict=True)
            ]
        )


def measure_host(
    target: Target, row_counts: Collection[int], temperatures: Collection[float] = (0.0, 1.0)
) -> list[HostCell]:
    """Median host time of a step for each temperature and row count, one sequence at a time."""
    prompt = [(7919 * index + 13) % target.vocab_size for index in range(PROMPT_LENGTH)]
    length = min(ANSWER_LENGTH, target.max_model_len - PROMPT_LENGTH)
    cells = []
    for temperature in temperatures:
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=length, ignore_eos=True)
        answer, _ = _decode(Engine(target), prompt, params, 1)
        for rows in row_counts:
            times: list[float] = []
            for _ in range(MAX_RUNS):
                engine = Engine(target, Knowing(prompt + answer, rows - 1), num_speculative_tokens=rows - 1)
                times += _decode(engine, prompt, replace(params), rows)[1]
                if len(times) >= STEPS:
                    break
            if times:
                ninth = quantiles(times, n=10, method="inclusive")[8] if len(times) > 1 else times[0]
                cells.append(HostCell(temperature, rows, len(times), 1e3 * median(times), 1e3 * ninth))
    return cells


def _decode(engine: Engine, prompt: list[int], params: SamplingParams, rows: int) -> tuple[list[int], list[float]]:
    """The answer, and the host seconds of the steps with `rows` rows, all accepted; the first such step is left out."""
    clear_cache(engine)
    request = engine.add(prompt, params)
    times = []
    while not engine.idle:
        engine.step()
        report = engine.report
        if report.rows == rows and not report.prompt_rows and report.accepted == [rows - 1]:
            times.append(report.host_seconds)
    return request.result().outputs[0].token_ids, times[1:] if len(times) > 1 else times
