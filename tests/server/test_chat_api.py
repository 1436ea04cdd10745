"""POST /v1/chat/completions: every field, whole and streamed, against the engine's own plain decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tiny_server import client_of, load_tiny, tiny_service

from foredraft.engine.llm import LLM
from foredraft.types import SamplingParams

MESSAGES = [{"role": "user", "content": "Say something."}]
PROMPT = "[user] Say something.\n[assistant] "


def ask(client: TestClient, **fields: Any) -> Any:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    """All chunks; the last event must be [DONE]."""
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "stream": True, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.removesuffix("\n\n").split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def expected(plain: LLM, **params: Any) -> Any:
    [result] = plain.generate(
        plain.tokenizer.encode(PROMPT, add_special_tokens=False),
        SamplingParams(**{"max_tokens": 24, "temperature": 0, **params}),
    )
    return result


def test_answer_has_openais_shape(client: TestClient, plain: LLM) -> None:
    answer = ask(client)
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected(plain).outputs[0].text, "refusal": None}
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "tiny"
    prompt = len(PROMPT.encode())
    assert answer["usage"]["prompt_tokens"] == prompt
    assert answer["usage"]["completion_tokens"] == 24
    assert answer["usage"]["total_tokens"] == prompt + 24


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.9, "seed": 7},
        {"temperature": 1.0, "seed": 8, "top_p": 0.8, "top_k": 12},
        {"temperature": 1.0, "seed": 9, "min_p": 0.05},
        {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"temperature": 0, "repetition_penalty": 1.4, "min_tokens": 6},
    ],
)
def test_sampling_fields_mean_what_the_engine_means(client: TestClient, plain: LLM, params: dict[str, Any]) -> None:
    choice = ask(client, **params)["choices"][0]
    assert choice["message"]["content"] == expected(plain, **params).outputs[0].text


def test_logit_bias_takes_token_ids_as_strings(client: TestClient, plain: LLM) -> None:
    choice = ask(client, logit_bias={"100": 100})["choices"][0]
    assert choice["message"]["content"] == expected(plain, logit_bias={100: 100}).outputs[0].text
    assert set(choice["message"]["content"]) == {chr(97)}


def test_several_answers(client: TestClient, plain: LLM) -> None:
    answer = ask(client, n=3, temperature=1.0, seed=5)
    wanted = [output.text for output in expected(plain, n=3, temperature=1.0, seed=5).outputs]
    assert [choice["message"]["content"] for choice in answer["choices"]] == wanted
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len(set(wanted)) == 3
    assert answer["usage"]["completion_tokens"] == 72


def test_stop_string(client: TestClient, plain: LLM) -> None:
    full = expected(plain).outputs[0].text
    stop = full[5:8]
    choice = ask(client, stop=[stop])["choices"][0]
    assert choice["message"]["content"] == full[: full.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    streamed = stream(client, stop=stop)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in streamed) == full[: full.index(stop)]


def test_logprobs(client: TestClient, plain: LLM) -> None:
    content = ask(client, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
    output = expected(plain, logprobs=3).outputs[0]
    assert len(content) == 24
    for entry, token, wanted in zip(content, output.token_ids, output.logprobs, strict=True):
        assert entry["logprob"] == pytest.approx(wanted[token].logprob, abs=1e-6)
        assert entry["token"] == wanted[token].decoded_token
        assert bytes(entry["bytes"]).decode() == entry["token"]
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)


def test_stream_begins_with_the_role_and_ends_with_the_reason(client: TestClient, plain: LLM) -> None:
    chunks = stream(client)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == expected(plain).outputs[0].text


def test_stream_carries_several_tokens_a_chunk(client: TestClient) -> None:
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in stream(client, max_tokens=60)]
    assert max(map(len, texts)) > 1


def test_stream_of_several_answers(client: TestClient, plain: LLM) -> None:
    texts = ["", ""]
    for chunk in stream(client, n=2, temperature=1.0, seed=3, logprobs=True):
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == [output.text for output in expected(plain, n=2, temperature=1.0, seed=3).outputs]


def test_usage_chunk(client: TestClient) -> None:
    chunks = stream(client, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 24


def test_prediction_is_accounted_for(client: TestClient, plain: LLM) -> None:
    full = expected(plain, max_tokens=40).outputs[0].text
    prediction = {"type": "content", "content": full[:30] + "~#"}
    answer = ask(client, max_tokens=40, prediction=prediction)
    assert answer["choices"][0]["message"]["content"] == full
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == 32
    assert 15 <= details["accepted_prediction_tokens"] <= 30
    parts = {"type": "content", "content": [{"type": "text", "text": full}]}
    assert ask(client, max_tokens=40, prediction=parts)["choices"][0]["message"]["content"] == full


def test_speculation_is_reported_and_can_be_switched_off(client: TestClient) -> None:
    drafted = ask(client, max_tokens=60)["metrics"]["speculative_decoding"]
    assert drafted["num_accepted_draft_tokens"] > 0
    assert drafted["mean_acceptance_length"] > 1
    off = ask(client, max_tokens=60, speculative=False)["metrics"]["speculative_decoding"]
    assert (off["num_draft_tokens"], off["num_spec_steps"]) == (0, 60)
    limited = ask(client, max_tokens=60, num_speculative_tokens=1)["metrics"]["speculative_decoding"]
    assert limited["num_spec_tokens"] == 1
    assert 0 < limited["num_draft_tokens"] <= limited["num_spec_steps"]


def test_cached_tokens_are_reported(client: TestClient) -> None:
    long = [{"role": "user", "content": "A prompt that is asked twice. " * 3}]
    first = ask(client, messages=long, max_tokens=4)["usage"]
    second = ask(client, messages=long, max_tokens=4)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] < 20
    assert second["prompt_tokens_details"]["cached_tokens"] == second["prompt_tokens"] - 1


def test_prompts_are_shared_only_among_requests_of_one_salt(client: TestClient) -> None:
    long = [{"role": "user", "content": "A prompt of one tenant. " * 3}]

    def cached(**salt: str) -> int:
        usage = ask(client, messages=long, max_tokens=4, **salt)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    cached(cache_salt="a")
    assert cached(cache_salt="b") == 0
    assert cached() < 20
    assert cached(cache_salt="a") > 20
    refused = client.post("/v1/chat/completions", json={"model": "tiny", "messages": long, "cache_salt": ""})
    assert refused.status_code == 400
    assert "cache_salt is empty" in refused.json()["error"]["message"]


def test_token_ids_and_request_id(client: TestClient, plain: LLM) -> None:
    answer = ask(client, return_token_ids=True, request_id="mine")
    assert answer["choices"][0]["token_ids"] == expected(plain).outputs[0].token_ids
    assert answer["prompt_token_ids"] == plain.tokenizer.encode(PROMPT, add_special_tokens=False)
    assert answer["id"] == "chatcmpl-mine"


def test_the_final_message_can_be_continued(client: TestClient, plain: LLM) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "Well"}]
    answer = ask(client, messages=messages, continue_final_message=True, return_token_ids=True)
    assert plain.tokenizer.decode(answer["prompt_token_ids"]).endswith("[assistant] Well")


def test_parts_of_a_message_are_joined(client: TestClient) -> None:
    parts = [{"type": "text", "text": "Say"}, {"type": "text", "text": "something."}]
    answer = ask(client, messages=[{"role": "user", "content": parts}])
    whole = ask(client, messages=[{"role": "user", "content": "Say\nsomething."}])
    assert answer["choices"][0]["message"] == whole["choices"][0]["message"]


def test_unknown_fields_are_accepted(client: TestClient) -> None:
    fields: dict[str, Any] = {"metadata": {"a": "b"}, "user": "me", "something_new": [1]}
    assert ask(client, **fields)["choices"] == ask(client)["choices"]


def test_known_fields_may_ask_for_what_happens_anyway(client: TestClient) -> None:
    neutral = {"modalities": ["text"], "store": False, "service_tier": "auto", "reasoning_effort": None, "best_of": 1}
    more = {"length_penalty": 1.0, "spaces_between_special_tokens": True, "vllm_xargs": {}, "prompt": None}
    usage = {"stream_options": {"include_usage": True, "continuous_usage_stats": False}}
    assert ask(client, **neutral, **more)["choices"] == ask(client)["choices"]
    assert stream(client, **usage)[-1]["usage"]["completion_tokens"] == 24


def test_a_refusal_is_text(client: TestClient) -> None:
    def asked(**message: Any) -> Any:
        messages = [*MESSAGES, {"role": "assistant", **message}, *MESSAGES]
        return ask(client, messages=messages, return_token_ids=True)["prompt_token_ids"]

    wanted = asked(content="No.")
    assert asked(content=[{"type": "refusal", "refusal": "No."}]) == wanted
    assert asked(content=None, refusal="No.") == wanted


def test_a_role_that_the_template_names_is_known(tiny_checkpoint: Path) -> None:
    template = "{% for message in messages %}{{ 'I' if message.role == 'ipython' else 'O' }}{% endfor %}"
    with client_of(tiny_service(lambda: load_tiny(tiny_checkpoint), chat_template=template)) as client:
        messages = [*MESSAGES, {"role": "ipython", "content": "5"}]
        answer = client.post("/tokenize", json={"messages": messages, "return_token_strs": True})
        assert answer.json()["token_strs"] == ["O", "I"]
        assert client.post("/tokenize", json={"messages": [{"role": "alien", "content": "5"}]}).status_code == 400
