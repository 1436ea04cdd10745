"""The `openai` client against a real server: sync, async, streaming, errors, and a client that leaves."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from tiny_server import listening, load_tiny, tiny_service

from foredraft.engine.llm import LLM
from foredraft.server.service import Service
from foredraft.types import SamplingParams

MESSAGES = [{"role": "user", "content": "Tell me a story."}]
PROMPT = "[user] Tell me a story.\n[assistant] "


@pytest.fixture(scope="module")
def served(tiny_checkpoint: Path) -> Iterator[tuple[Service, str]]:
    service = tiny_service(lambda: load_tiny(tiny_checkpoint), max_queue=64)
    with listening(service) as address:
        yield service, address


@pytest.fixture
def client(served: tuple[Service, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served[1]}/v1", api_key="none", max_retries=0) as client:
        yield client


def expected(plain: LLM, prompt: str = PROMPT, **params: object) -> str:
    tokens = plain.tokenizer.encode(prompt, add_special_tokens=False)
    [result] = plain.generate(tokens, SamplingParams(**{"temperature": 0, **params}))  # type: ignore[arg-type]
    return result.outputs[0].text


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def idle(service: Service) -> bool:
    """Nothing runs, waits or holds a slot."""
    engine = service.llm.engine
    return service.worker.open_sequences == 0 and engine.idle and engine.target.cache.free_slots == 4


def test_chat(client: openai.OpenAI, plain: LLM) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=20)
    assert answer.choices[0].message.content == expected(plain, max_tokens=20)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20


def test_chat_stream(client: openai.OpenAI, plain: LLM) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected(plain, max_tokens=20)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20


def test_completion(client: openai.OpenAI, plain: LLM) -> None:
    answer = client.completions.create(model="tiny", prompt="Once", max_tokens=9, logprobs=1, extra_body={"top_k": 5})
    assert answer.choices[0].text == expected(plain, "Once", max_tokens=9)
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or []) == 9


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "also-tiny"]


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)


def test_many_at_once_with_leavers(served: tuple[Service, str], plain: LLM) -> None:
    """Every answer that is read to its end equals the same request decoded alone and plainly."""
    service, address = served
    source = random.Random(3)
    wishes = [
        {
            "messages": [{"role": "user", "content": f"Question {number % 7}" + "!" * source.randint(0, 30)}],
            "max_tokens": source.randint(1, 40),
            "temperature": source.choice([0.0, 0.8]),
            "seed": number,
        }
        for number in range(40)
    ]

    async def ask(client: openai.AsyncOpenAI, number: int) -> str | None:
        wish = wishes[number]
        if number % 2:
            answer = await client.chat.completions.create(model="tiny", **wish)
            return answer.choices[0].message.content
        stream = await client.chat.completions.create(model="tiny", stream=True, **wish)
        leaves = number % 3 == 0
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if leaves and text:
                await stream.close()
                return None
        return text

    async def ask_all() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(len(wishes))))

    answers = asyncio.run(ask_all())
    assert answers.count(None) == 7
    for wish, answer in zip(wishes, answers, strict=True):
        if answer is not None:
            prompt = f"[user] {wish['messages'][0]['content']}\n[assistant] "
            rest = {name: wish[name] for name in ("max_tokens", "temperature", "seed")}
            assert answer == expected(plain, prompt, **rest)
    wait_until(lambda: idle(service))
    service.llm.engine.check_integrity()


def test_leaving_without_a_stream_frees_the_slot(served: tuple[Service, str]) -> None:
    service, address = served
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=0.15) as hasty:
        done = service.activity.finished
        slow = service.llm.engine.step

        def step() -> object:
            time.sleep(0.02)
            return slow()

        service.llm.engine.step = step  # type: ignore[method-assign, assignment]
        try:
            with pytest.raises(openai.APITimeoutError):
                hasty.chat.completions.create(
                    model="tiny", messages=MESSAGES, max_tokens=200, extra_body={"speculative": False}
                )
            wait_until(lambda: idle(service))
        finally:
            del service.llm.engine.step
        assert service.activity.finished == done
        assert service.activity.aborted > 0


def test_shutdown_drains(tiny_checkpoint: Path, plain: LLM) -> None:
    """What is running when the server is told to stop is answered to its end."""
    service = tiny_service(lambda: load_tiny(tiny_checkpoint))
    answers: list[str] = []
    with listening(service) as address:
        begun = threading.Event()

        def ask() -> None:
            with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
                stream = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=150, stream=True)
                text = ""
                for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
                    begun.set()
                answers.append(text)

        reader = threading.Thread(target=ask)
        reader.start()
        assert begun.wait(10)
    reader.join(10)
    assert answers == [expected(plain, max_tokens=150)]
    assert str(service.worker.state) == "stopped"
