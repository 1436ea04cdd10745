"""The JSON objects that the commands print; keys are vLLM's wherever vLLM has the thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foredraft.cli.compare import Comparison
    from foredraft.cli.decode import Decoded
    from foredraft.engine.llm import LLM
    from foredraft.engine.outputs import CompletionOutput, Logprob
    from foredraft.types import SamplingParams

__all__ = ["answer_object", "bench_object", "comparison_object"]


def answer_object(llm: LLM, prompt: str, decoded: Decoded) -> dict[str, object]:
    """One prompt with its answers, the figures of speculation (null when decoded plainly) and times in seconds."""
    result = decoded.result
    speculative = decoded.statistics.limit > 0
    return {
        "model": llm.target.name,
        "prompt": prompt,
        "prompt_token_ids": result.prompt_token_ids,
        "num_cached_tokens": result.num_cached_tokens,
        "outputs": [_output_object(output) for output in result.outputs],
        "metrics": {"speculative_decoding": decoded.statistics.as_dict() if speculative else None},
        "seconds": decoded.seconds,
        "time_to_first_token": decoded.first_token_seconds,
        "output_throughput": decoded.throughput,
        "draft_s": decoded.draft_seconds,
        "verify_s": decoded.verify_seconds,
        "host_s": decoded.host_seconds,
    }


def comparison_object(llm: LLM, prompt: str, comparison: Comparison) -> dict[str, object]:
    """The speculative run as above, and with it the plain one and the verdict."""
    difference = comparison.difference
    return {
        **answer_object(llm, prompt, comparison.speculative),
        "plain": answer_object(llm, prompt, comparison.plain),
        "speedup": comparison.speedup,
        "identical": comparison.identical,
        "difference": None if difference is None else difference._asdict(),
    }


def bench_object(
    llm: LLM, method: str, params: SamplingParams, workloads: Mapping[str, Comparison]
) -> dict[str, object]:
    """In the form of `foredraft bench offline --json`, with a cell for each workload's one prompt."""
    from foredraft.bench.machine import describe_run

    meta = {**describe_run(), "model": llm.target.name, "max_tokens": params.max_tokens, "seed": params.seed}
    return {
        "meta": meta,
        "cells": [_cell(method, workload, params, comparison) for workload, comparison in workloads.items()],
    }


def _cell(method: str, workload: str, params: SamplingParams, comparison: Comparison) -> dict[str, object]:
    run, difference = comparison.speculative, comparison.difference
    return {
        "method": method,
        "workload": workload,
        "concurrency": 1,
        "temperature": params.temperature,
        "num_prompts": 1,
        "total_input_tokens": len(run.result.prompt_token_ids),
        "total_output_tokens": run.tokens,
        "output_throughput": run.throughput,
        "plain_throughput": comparison.plain.throughput,
        "speedup": comparison.speedup,
        "acceptance_length": run.statistics.acceptance_length,
        "acceptance_rate": run.statistics.acceptance_rate,
        "identical": comparison.identical,
        "difference": None if difference is None else difference._asdict(),
        "steps": run.statistics.steps,
        "draft_s": run.draft_seconds,
        "verify_s": run.verify_seconds,
        "host_s": run.host_seconds,
    }


def _output_object(output: CompletionOutput) -> dict[str, object]:
    logprobs = output.logprobs
    return {
        "index": output.index,
        "text": output.text,
        "token_ids": output.token_ids,
        "drafted": output.drafted,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "seed": output.seed,
        "logprobs": None if logprobs is None else [_logprobs_object(entry) for entry in logprobs],
    }


def _logprobs_object(entry: dict[int, Logprob]) -> dict[str, object]:
    """By token id, as vLLM has it."""
    return {str(token): value._asdict() for token, value in entry.items()}
