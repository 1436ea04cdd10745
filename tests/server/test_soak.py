"""Many mixed requests, many of them aborted or malformed: no leak, no wrong answer, no answer from the 500s."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tiny_server import listening, load_tiny, tiny_service

from foredraft.engine.llm import LLM
from foredraft.types import SamplingParams

REQUESTS = 2000
AT_ONCE = 24
MALFORMED: list[dict[str, Any]] = [
    {"temperature": -1},
    {"max_tokens": 10**6},
    {"prompt": []},
    {"model": "other"},
    {"logit_bias": {"x": 1}},
    {"n": "many"},
]


def wish(number: int) -> dict[str, Any]:
    source = random.Random(number)
    body: dict[str, Any] = {
        "prompt": f"Request {number % 50}" + "." * source.randint(0, 20),
        "max_tokens": source.randint(1, 60),
        "temperature": source.choice([0, 0, 0.7, 1.0]),
        "seed": number,
        "n": source.choice([1, 1, 1, 2]),
    }
    extras: list[dict[str, Any]] = [
        {},
        {},
        {"top_p": 0.8, "top_k": 20},
        {"presence_penalty": 1.0},
        {"repetition_penalty": 1.2},
        {"stop": ["e", "qu"]},
        {"logprobs": 2},
        {"min_tokens": 1},
        {"logit_bias": {"70": 5}},
        {"speculative": False},
        {"num_speculative_tokens": 2},
    ]
    return body | source.choice(extras)


def solo(plain: LLM, body: dict[str, Any]) -> list[str]:
    params = {name: value for name, value in body.items() if name not in ("prompt", "speculative")}
    params.pop("num_speculative_tokens", None)
    if "logit_bias" in params:
        params["logit_bias"] = {int(token): bias for token, bias in params["logit_bias"].items()}
    [result] = plain.generate(body["prompt"], SamplingParams(**params))
    return [output.text for output in result.outputs]


async def ask(client: httpx2.AsyncClient, number: int) -> tuple[str, list[str]]:
    """What became of it, and the texts if it was answered to its end."""
    source = random.Random(-number)
    fate, body = source.random(), wish(number)
    if fate < 0.05:
        answer = await client.post("/v1/completions", json=body | source.choice(MALFORMED))
        return ("refused" if answer.status_code in (400, 404) else f"status {answer.status_code}"), []
    leaves = fate < 0.35
    if source.random() < 0.5 and not leaves:
        answer = await client.post("/v1/completions", json=body)
        if answer.status_code != 200:
            return f"status {answer.status_code}", []
        return "answered", [choice["text"] for choice in answer.json()["choices"]]
    texts = [""] * body["n"]
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        if response.status_code != 200:
            return f"status {response.status_code}", []
        events = 0
        async for line in response.aiter_lines():
            if leaves and (events := events + 1) > source.randint(0, 6):
                return "left", []
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    texts[choice["index"]] += choice["text"]
    return "answered", texts


async def ask_all(address: str, numbers: range) -> list[tuple[str, list[str]]]:
    room = asyncio.Semaphore(AT_ONCE)
    async with httpx2.AsyncClient(base_url=address, timeout=60) as client:

        async def one(number: int) -> tuple[str, list[str]]:
            async with room:
                return await ask(client, number)

        return list(await asyncio.gather(*map(one, numbers)))


def memory() -> int:
    """Resident kilobytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_soak(tiny_checkpoint: Path, plain: LLM) -> None:
    service = tiny_service(lambda: load_tiny(tiny_checkpoint), max_queue=200)
    with listening(service) as address:
        asyncio.run(ask_all(address, range(-200, 0)))  # whatever grows once has grown
        before, threads = memory(), threading.active_count()
        outcomes = asyncio.run(ask_all(address, range(REQUESTS)))
        for _ in range(500):
            if not service.worker.open_sequences:
                break
            threading.Event().wait(0.01)
        engine = service.llm.engine
        assert engine.idle
        assert engine.target.cache.free_slots == 4
        assert service.worker.open_sequences == 0
        engine.check_integrity()
        assert engine.drafting is not None
        assert engine.drafting.failures == 0
        assert threading.active_count() <= threads
        assert memory() < 1.05 * before
    counts = Counter(fate for fate, _ in outcomes)
    assert set(counts) <= {"answered", "left", "refused"}, counts
    assert counts["left"] > 0.2 * REQUESTS
    assert counts["refused"] > 0.03 * REQUESTS
    for number, (fate, texts) in enumerate(outcomes):
        if fate == "answered":
            assert texts == solo(plain, wish(number)), number
