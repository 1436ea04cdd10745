"""Loads a server as its users would, and reports what they would notice. Keys of the result are vLLM's.

Requests arrive at random (a Poisson process, or burstier), at most so many at a time, each as a streamed chat
completion. Per request: TTFT until the first text, ITL between chunks with text, TPOT per token after the first, E2EL
until the end. With speculation a chunk carries several tokens, so ITL is longer than TPOT; look at both. Acceptance is
read from the server's metrics before and after.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median, pstdev
from typing import Any

import aiohttp

from foredraft.bench.datasets import BenchPrompt
from foredraft.errors import ConfigError

__all__ = ["LoadPlan", "Sample", "load_server", "summarise"]

SLOS = ("ttft", "tpot", "itl", "e2el")
COUNTER = re.compile(r"^(?:vllm:|foredraft_)spec_decode_num_(\w+)_total\{([^}]*)\} (\S+)$", re.MULTILINE)
PLACE = re.compile(r'position="(\d+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What to send. Raises ConfigError.

    request_rate     requests per second on average; infinite: all at once
    burstiness       shape of the gamma distribution of gaps: 1 is Poisson, below is burstier, above more even
    max_concurrency  most requests in flight (None: no limit)
    goodput          milliseconds per SLO name; a request is good if it keeps all of them
    """

    base_url: str
    model: str | None = None
    api_key: str | None = None
    request_rate: float = float("inf")
    burstiness: float = 1.0
    max_concurrency: int | None = None
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    predict: bool = False
    goodput: Mapping[str, float] = field(default_factory=dict)
    timeout: float = 600.0

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness", "max_tokens"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a number above 0.")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"max_concurrency is {self.max_concurrency}; give at least 1, or none for no limit.")
        unknown = sorted(self.goodput.keys() - set(SLOS))
        if unknown:
            raise ConfigError(f"goodput names {unknown[0]!r}; it knows {', '.join(SLOS)}, in milliseconds.")


@dataclass(slots=True)
class Sample:
    """One request; times are seconds. `error` tells why it failed."""

    ttft: float = 0.0
    latency: float = 0.0
    gaps: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def tpot(self) -> float | None:
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


async def load_server(
    prompts: Sequence[BenchPrompt], plan: LoadPlan, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Send every prompt once and summarise. Raises ConfigError if no server answers or it refuses the first request."""
    headers = {"authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=plan.timeout, sock_read=plan.timeout)
    async with aiohttp.ClientSession(
        base_url=plan.base_url.rstrip("/") + "/",
        headers=headers,
        timeout=timeout,
        connector=aiohttp.TCPConnector(limit=0),
    ) as client:
        model = plan.model or await _first_model(client, plan.base_url)
        warm_up = await _ask(client, prompts[0], plan, model, 0, max_tokens=1)
        if warm_up.error is not None:
            raise ConfigError(f"The server at {plan.base_url} refuses the first request ({warm_up.error}); correct it.")
        before = await _counters(client)
        room = asyncio.Semaphore(plan.max_concurrency or len(prompts))
        source = random.Random(plan.seed)
        done = 0

        async def one(number: int, prompt: BenchPrompt) -> Sample:
            nonlocal done
            async with room:
                sample = await _ask(client, prompt, plan, model, number, max_tokens=plan.max_tokens)
            done += 1
            progress(done, len(prompts))
            return sample

        began = time.perf_counter()
        tasks = []
        for number, prompt in enumerate(prompts):
            if number and plan.request_rate != float("inf"):
                await asyncio.sleep(source.gammavariate(plan.burstiness, 1 / (plan.request_rate * plan.burstiness)))
            tasks.append(asyncio.create_task(one(number, prompt)))
        samples = await asyncio.gather(*tasks)
        duration = time.perf_counter() - began
        after = await _counters(client)
    drafts = {key: value - before.get(key, 0.0) for key, value in after.items()}
    return {"model_id": model, **summarise(samples, duration, plan.goodput), **_speculation(drafts)}


def summarise(samples: Sequence[Sample], duration: float, goodput: Mapping[str, float]) -> dict[str, Any]:
    """vLLM's result keys; milliseconds, requests and tokens per second."""
    good = [sample for sample in samples if sample.error is None]
    outputs = sum(sample.output_tokens for sample in good)
    inputs = sum(sample.input_tokens for sample in good)
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(samples) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / duration,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
    }
    if goodput:
        result["request_goodput"] = sum(_keeps(sample, goodput) for sample in good) / duration
    values = {
        "ttft": [sample.ttft for sample in good],
        "tpot": [sample.tpot for sample in good if sample.tpot is not None],
        "itl": [gap for sample in good for gap in sample.gaps],
        "e2el": [sample.latency for sample in good],
    }
    for name, seconds in values.items():
        milliseconds = sorted(1e3 * value for value in seconds)
        figures = {"mean": mean, "median": median, "std": pstdev} if milliseconds else {}
        result |= {f"{what}_{name}_ms": figure(milliseconds) for what, figure in figures.items()}
        for percent in (90, 95, 99) if milliseconds else ():
            result[f"p{percent}_{name}_ms"] = _percentile(milliseconds, percent)
    result["errors"] = sorted({sample.error for sample in samples if sample.error is not None})
    return result


async def _ask(
    client: aiohttp.ClientSession, prompt: BenchPrompt, plan: LoadPlan, model: str, number: int, *, max_tokens: int
) -> Sample:
    body: dict[str, Any] = {
        "model": model,
        "messages": list(prompt.messages),
        "max_tokens": max_tokens,
        "temperature": plan.temperature,
        "seed": plan.seed + number,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.predict and prompt.prediction:
        body["prediction"] = {"type": "content", "content": prompt.prediction}
    sample = Sample()
    began = last = time.perf_counter()
    try:
        async with client.post("v1/chat/completions", json=body) as response:
            if response.status != 200:
                sample.error = f"status {response.status}: {(await response.text(errors='replace'))[:200]}"
                return sample
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                chunk, now = json.loads(line.removeprefix(b"data: ")), time.perf_counter()
                if "error" in chunk:
                    sample.error = str(chunk["error"].get("message"))
                    return sample
                if chunk.get("usage"):
                    sample.input_tokens = chunk["usage"]["prompt_tokens"]
                    sample.output_tokens = chunk["usage"]["completion_tokens"]
                if not any(choice["delta"].get("content") for choice in chunk["choices"]):
                    continue
                if sample.ttft:
                    sample.gaps.append(now - last)
                else:
                    sample.ttft = now - began
                last = now
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        sample.error = f"{type(error).__name__}: {error}"
        return sample
    sample.latency = last - began if sample.ttft else time.perf_counter() - began
    sample.ttft = sample.ttft or sample.latency  # an answer without any text
    return sample


async def _first_model(client: aiohttp.ClientSession, base_url: str) -> str:
    try:
        async with client.get("v1/models", raise_for_status=True) as answer:
            return str((await answer.json())["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"No server answers at {base_url} ({error}); start one, or pass --base-url.") from error


async def _counters(client: aiohttp.ClientSession) -> dict[str, float]:
    """Speculation counters by name, per-position ones by number; empty for a server without them."""
    try:
        async with client.get("metrics") as answer:
            text = await answer.text()
    except (aiohttp.ClientError, TimeoutError):
        return {}
    found: dict[str, float] = {}
    for name, labels, value in COUNTER.findall(text):
        place = PLACE.search(labels)
        key = f"at {place[1]}" if place else name
        found[key] = found.get(key, 0.0) + float(value)
    return found


def _speculation(counts: Mapping[str, float]) -> dict[str, Any]:
    drafts = counts.get("drafts", 0.0)
    if not drafts:
        return {}
    places = sorted(int(key.removeprefix("at ")) for key in counts if key.startswith("at "))
    return {
        "spec_decode_acceptance_rate": 100 * counts["accepted_tokens"] / counts["draft_tokens"],
        "spec_decode_acceptance_length": 1 + counts["accepted_tokens"] / drafts,
        "spec_decode_num_drafts": int(drafts),
        "spec_decode_draft_tokens": int(counts["draft_tokens"]),
        "spec_decode_accepted_tokens": int(counts["accepted_tokens"]),
        "spec_decode_per_position_acceptance_rates": [counts[f"at {place}"] / drafts for place in places],
    }


def _keeps(sample: Sample, goodput: Mapping[str, float]) -> bool:
    longest = {
        "ttft": sample.ttft,
        "tpot": sample.tpot or 0.0,
        "itl": max(sample.gaps, default=0.0),
        "e2el": sample.latency,
    }
    return all(1e3 * longest[name] <= limit for name, limit in goodput.items())


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation, as numpy's default."""
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
