"""Decodes a block of prompts on one engine and notes what happened when.

A closed loop: `concurrency` requests are in flight, and when one ends the next begins, until the block is done. Time
counts from the first request's arrival to the last token. Every block starts with an empty KV cache, so nothing is
reused from an earlier one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from foredraft.bench.memory import peak_resident_mb, reset_peak
from foredraft.bench.workloads import EncodedPrompt
from foredraft.engine.engine import Engine
from foredraft.engine.outputs import SpeculationStats
from foredraft.engine.requests import Request
from foredraft.types import SamplingParams, StepReport

__all__ = ["Answer", "BlockRun", "clear_cache", "decode_block"]


@dataclass(slots=True)
class Answer:
    """One prompt's answer. `times` is when each step's tokens came, in seconds since the request was added."""

    tokens: list[int]
    stats: SpeculationStats
    times: list[float] = field(default_factory=list)

    @property
    def time_to_first_token(self) -> float:
        return self.times[0]

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds from the first token to the last over the tokens after the first; None for an answer of one step."""
        return (self.times[-1] - self.times[0]) / (len(self.tokens) - 1) if len(self.times) > 1 else None

    @property
    def inter_token_latencies(self) -> list[float]:
        """Seconds between one step's tokens and the next step's."""
        return [later - sooner for sooner, later in zip(self.times, self.times[1:], strict=False)]


@dataclass(slots=True)
class BlockRun:
    """One block on one engine, `answers` in the order of its prompts. Seconds; the three parts sum over all steps.

    `host_steps` are the host seconds of steps without prompt rows, `decode_draft` and `decode_all` sum such steps'
    drafting and whole time.
    """

    answers: list[Answer]
    seconds: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    host: float = 0.0
    steps: int = 0
    decode_draft: float = 0.0
    decode_all: float = 0.0
    host_steps: list[float] = field(default_factory=list)
    peak_memory_mb: float = 0.0
    peak_device_memory_mb: float | None = None

    @property
    def output_tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers)

    def observe(self, report: StepReport) -> None:
        """Add one step's times."""
        self.steps += 1
        self.draft += report.draft_seconds
        self.verify += report.verify_seconds
        self.host += report.host_seconds
        if not report.prompt_rows:
            self.decode_draft += report.draft_seconds
            self.decode_all += report.draft_seconds + report.verify_seconds + report.host_seconds
            self.host_steps.append(report.host_seconds)


@dataclass(slots=True)
class _InFlight:
    index: int
    request: Request
    arrived: float
    answer: Answer


def decode_block(
    engine: Engine,
    prompts: Sequence[EncodedPrompt],
    params: SamplingParams,
    concurrency: int = 1,
    *,
    predict: bool = False,
) -> BlockRun:
    """Decode `prompts`, each with its own seed. `predict` hands their predictions to the engine.

    Raises what kept a request from going on, if anything did.
    """
    clear_cache(engine)
    waiting = deque(enumerate(prompts))
    in_flight: dict[str, _InFlight] = {}
    answers: list[Answer | None] = [None] * len(prompts)
    run = BlockRun([])
    on_gpu = engine.target.decoder.device.type == "cuda"
    reset_peak()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    while waiting or in_flight:
        while waiting and len(in_flight) < concurrency:
            index, prompt = waiting.popleft()
            arrived = time.perf_counter()
            request = engine.add(
                prompt.tokens, replace(params, seed=prompt.seed), prediction=prompt.prediction if predict else ()
            )
            output = request.choices[0].output
            answer = Answer(output.token_ids, output.speculative_decoding)
            in_flight[request.id] = _InFlight(index, request, arrived, answer)
        deltas = engine.checked_step()
        now = time.perf_counter()
        run.observe(engine.report)
        for delta in deltas:
            one = in_flight[delta.request_id]
            one.answer.times.append(now - one.arrived)
            if delta.finish_reason is not None:
                answers[one.index] = one.answer
                del in_flight[delta.request_id]
    run.seconds = time.perf_counter() - began
    run.peak_memory_mb = peak_resident_mb()
    if on_gpu:
        run.peak_device_memory_mb = torch.cuda.max_memory_allocated() / 1e6
    run.answers = [answer for answer in answers if answer is not None]
    return run


def clear_cache(engine: Engine) -> None:
    """Forget all cached keys and values; the engine must be idle."""
    for slot in range(engine.target.cache.slots):
        engine.target.cache.forget(slot)
