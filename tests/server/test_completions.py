"""POST /v1/completions, /tokenize and /detokenize."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from foredraft.engine.llm import LLM
from foredraft.types import SamplingParams


def ask(client: TestClient, **fields: Any) -> Any:
    answer = client.post("/v1/completions", json={"prompt": "Once upon", "max_tokens": 12, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/completions", json={"prompt": "Once upon", "max_tokens": 12, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    events = answer.text.removesuffix("\n\n").split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def text_of(plain: LLM, prompt: str | list[int], **params: Any) -> str:
    [result] = plain.generate(prompt, SamplingParams(**{"max_tokens": 12, "temperature": 0, **params}))
    return result.outputs[0].text


def forward_logprobs(plain: LLM, tokens: list[int]) -> list[float]:
    """Log-probabilities of tokens[1:] by a prediction of every one of them on its own."""
    values = []
    for end in range(1, len(tokens)):
        [result] = plain.generate(tokens[:end], SamplingParams(temperature=0, max_tokens=1, logprobs=1024))
        values.append(result.outputs[0].logprobs[0][tokens[end]].logprob)
    return values


def test_shape(client: TestClient, plain: LLM) -> None:
    answer = ask(client)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "text": text_of(plain, "Once upon"),
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]


def test_default_length_is_openais(client: TestClient) -> None:
    assert ask(client, max_tokens=None)["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("streamed", [False, True])
def test_several_prompts(client: TestClient, plain: LLM, streamed: bool) -> None:
    prompts = ["One", "Two or three", "Four"]
    texts = [""] * 6
    fields = {"prompt": prompts, "n": 2, "temperature": 1.0, "seed": 4}
    for chunk in stream(client, **fields) if streamed else [ask(client, **fields)]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    results = plain.generate(prompts, SamplingParams(n=2, temperature=1.0, seed=4, max_tokens=12))
    assert texts == [output.text for result in results for output in result.outputs]


def test_token_ids_as_prompt(client: TestClient, plain: LLM) -> None:
    tokens = plain.tokenizer.encode("Once upon")
    assert ask(client, prompt=tokens)["choices"][0]["text"] == text_of(plain, "Once upon")
    several = ask(client, prompt=[tokens, tokens[:4]])["choices"]
    assert [choice["text"] for choice in several] == [text_of(plain, tokens), text_of(plain, tokens[:4])]


def test_echo_with_logprobs_of_the_prompt(client: TestClient, plain: LLM) -> None:
    [choice] = ask(client, echo=True, logprobs=2)["choices"]
    assert choice["text"] == "Once upon" + text_of(plain, "Once upon")
    logprobs = choice["logprobs"]
    tokens = plain.tokenizer.encode("Once upon")
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1 : len(tokens)] == pytest.approx(forward_logprobs(plain, tokens), abs=1e-6)
    assert len(logprobs["tokens"]) == len(tokens) + 12
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"] == list(range(len(tokens) + 12))
    assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"][1:])


def test_scoring_alone(client: TestClient, plain: LLM) -> None:
    """What evaluation harnesses ask for: no answer, the prompt's log-probabilities only."""
    answer = ask(client, echo=True, logprobs=1, max_tokens=0)
    [choice] = answer["choices"]
    assert choice["text"] == "Once upon"
    tokens = plain.tokenizer.encode("Once upon")
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(forward_logprobs(plain, tokens), abs=1e-6)
    assert answer["usage"]["completion_tokens"] == 0


def test_scoring_in_chunks_equals_scoring_at_once(tiny_checkpoint: Any, plain: LLM) -> None:
    from foredraft.engine.scoring import PromptScoring

    tokens = plain.tokenizer.encode("A text that is longer than a chunk.")
    runs = []
    for chunk in (5, 512):
        scoring = PromptScoring(plain.target, tokens, 2, chunk=chunk)
        passes = 0
        while not scoring.done:
            scoring.advance()
            passes += 1
        assert passes == math.ceil((len(tokens) - 1) / chunk)
        runs.append([None if entry is None else list(entry) for entry in scoring.logprobs])
    assert runs[0] == runs[1]
    assert len(runs[0]) == len(tokens)
    assert torch.get_num_threads() == 1


def test_echo_in_a_stream(client: TestClient, plain: LLM) -> None:
    chunks = stream(client, echo=True, logprobs=0)
    assert chunks[0]["choices"][0]["text"].startswith("Once upon")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Once upon" + text_of(plain, "Once upon")
    offsets = [offset for chunk in chunks for offset in chunk["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == list(range(len("Once upon") + 12))


def test_scoring_alone_in_a_stream(client: TestClient) -> None:
    [chunk] = stream(client, echo=True, logprobs=1, max_tokens=0)
    assert chunk["choices"][0]["text"] == "Once upon"
    assert chunk["choices"][0]["finish_reason"] == "length"


def test_echo_alone(client: TestClient) -> None:
    assert ask(client, echo=True, max_tokens=0)["choices"][0]["text"] == "Once upon"


def test_prompt_logprobs_in_vllms_shape(client: TestClient, plain: LLM) -> None:
    [choice] = ask(client, prompt_logprobs=1)["choices"]
    tokens = plain.tokenizer.encode("Once upon")
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    values = [entry[str(token)]["logprob"] for entry, token in zip(rest, tokens[1:], strict=True)]
    assert values == pytest.approx(forward_logprobs(plain, tokens), abs=1e-6)


def test_prompt_logprobs_without_an_answer(client: TestClient) -> None:
    fields = {"prompt": ["Once upon", "Two"], "n": 2, "temperature": 1.0, "echo": True, "prompt_logprobs": 1}
    asked = ask(client, **fields, max_tokens=1)["choices"]
    scored = ask(client, **fields, max_tokens=0)["choices"]
    assert [choice["text"] for choice in scored] == ["Once upon", "Once upon", "Two", "Two"]
    assert [choice["prompt_logprobs"] for choice in scored] == [choice["prompt_logprobs"] for choice in asked]
    assert "prompt_logprobs" not in ask(client, echo=True, max_tokens=0)["choices"][0]
    assert "prompt_logprobs" not in ask(client, echo=True, max_tokens=0, logprobs=1)["choices"][0]


def test_tokenize_and_back(client: TestClient, plain: LLM) -> None:
    answer = client.post("/tokenize", json={"prompt": "Grüße", "return_token_strs": True}).json()
    assert answer["tokens"] == plain.tokenizer.encode("Grüße")
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 256
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "Grüße"}


def test_tokenize_a_conversation(client: TestClient, plain: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    tokens = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert plain.tokenizer.decode(tokens) == "[user] Hi\n[assistant] "


def test_models(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["tiny", "also-tiny"]
    assert client.get("/v1/models/also-tiny").json()["max_model_len"] == 256
    assert ask(client, model="also-tiny")["model"] == "tiny"
