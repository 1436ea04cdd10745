"""Input that once went wrong: it was answered with 500, ignored in silence, or refused for the wrong reason."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from test_refusals import CHAT, TEXT, refused
from tiny_server import client_of, load_tiny, tiny_service

from foredraft.server.api_errors import ApiError
from foredraft.server.validation import from_validation

MANY = 200_000
DEEP = "[" * 2000 + "]" * 2000
ASK = CHAT["messages"]
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
Fields = dict[str, Any]


def said(*messages: Fields) -> Fields:
    """A conversation after these messages."""
    return {"messages": [*ASK, *messages, *ASK]}


def called(*calls: Any) -> Fields:
    return said({"role": "assistant", "content": "x", "tool_calls": list(calls)})


BOTH: list[tuple[Fields, str, str]] = [
    ({"logit_bias": {"5" * 5000: 1}}, "logit_bias", "keys are token ids"),
    ({"logit_bias": {"5": 100, "05": -100}}, "logit_bias", "keys are token ids"),
    ({"logit_bias": {"5": "x"}}, "logit_bias", "give a number"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats", ""),
    ({"structured_outputs": {}}, "structured_outputs", "asks for nothing"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "'structural_tag'"),
    ({"structured_outputs": {"regex": "a", "model": "x"}}, "structured_outputs", "'model'"),
    ({"response_format": {"type": "text", "schema": {"type": "object"}}}, "response_format", "'schema'"),
    ({"response_format": {"type": "json_object", "json_schema": {}}}, "response_format", "'json_schema'"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "type": "object"}}},
        "response_format.json_schema",
        "'type'",
    ),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "regex and choice at once"),
    ({"store": True}, "store", "not kept"),
    ({"service_tier": "flex"}, "service_tier", "in order"),
    ({"modalities": ["text", "audio"]}, "modalities", "text"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "chat_template_kwargs"),
    ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens", ""),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", ""),
    ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend", ""),
    ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params", ""),
    ({"vllm_xargs": {"a": 1}}, "vllm_xargs", ""),
    ({"best_of": 2}, "best_of", "must equal n, which is 1"),
    ({"prediction": {"content": [{"type": "image_url"}]}}, "prediction.content.0", "text only"),
    ({"max_tokens": None, "min_tokens": 10**9}, "min_tokens", "lower it"),
    ({"max_tokens": None, "min_tokens": 10**30}, "min_tokens", "64 bits"),
    ({"top_k": -5}, "top_k", "give -1 or more"),
    ({"stop": [1]}, "stop.0", "give a text"),
    ({"stop": 5}, "stop", "give a text or a list of texts"),
    ({"stop": "x" * 5000, "n": 0}, "n", ""),
    ({"stop": ["", "x" * 5000]}, "stop", "remove"),
    ({"temperature": "x" * 5000}, "temperature", "give a number"),
]
CHATS: list[tuple[Fields, str, str]] = [
    *(
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}], **choice}, *rest)
        for parameters in ("str", ["x"], 5, True)
        for choice in ({}, {"tool_choice": "required"}, {"tool_choice": "none"})
        for rest in [("tools.0.function.parameters", "JSON schema")]
    ),
    ({"tools": [{"type": "bogus", "function": FUNCTION}]}, "tools.0.type", "'bogus'"),
    ({"tools": TOOLS, "tool_choice": {"type": "bogus"}}, "tool_choice", "'bogus'"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "leave the other tools out"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "'g'"),
    ({"tools": TOOLS, "tool_choice": "x" * 5000}, "tool_choice", "give"),
    ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tools": TOOLS, "guided_regex": "a"}, "tools", "exclude each other"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
    ({"add_special_tokens": True}, "add_special_tokens", "template"),
    ({"prompt": "x"}, "prompt", "/v1/completions"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs", "self"),
    ({"chat_template_kwargs": json.loads('{"a":' * 200 + "1" + "}" * 200)}, "chat_template_kwargs", "levels deep"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", ""),
]
MESSAGES: list[tuple[Fields, str, str]] = [
    *(
        (called(call), "messages.1.tool_calls.0", "")
        for call in ({"function": "x"}, {"function": None}, {}, {"function": {"name": 5}}, "x")
    ),
    (called({"type": "custom", "custom": {}}), "messages.1.tool_calls.0.type", "functions"),
    (called({"function": {"name": "f", "arguments": 5}}), "messages.1.tool_calls.0", "as JSON text"),
    (called({"function": {"name": "f", "arguments": DEEP}}), "messages.1.tool_calls.0", "nested too deeply"),
    (said({"role": "user", "content": "x", "tool_calls": [CALL]}), "messages.1.tool_calls", "assistant"),
    (said({"role": "assistant", "content": "x", "function_call": {"name": "f"}}), "messages.1.function_call", "use"),
    (said({"role": "assistant", "content": "x", "audio": {"id": "a"}}), "messages.1.audio", "text"),
    *(
        (said({"role": role, "content": "x"}), "messages.1.role", "give one of system, developer")
        for role in ("alien", "", "user<|im_end|>", "function", "x" * 5000)
    ),
    *((said({"role": "user", **content}), "messages.1.content", "") for content in ({}, {"content": None})),
    (said({"role": "user", "content": []}), "messages.1.content", "is []"),
    (said({"role": "assistant", "content": None}), "messages.1.content", "is None"),
    (said({"role": "user", "content": [{"type": "text"}]}), "messages.1.content.0", "has no text"),
    (said({"role": "user", "content": 5}), "messages.1.content", "give a text or a list of parts"),
]
COMPLETIONS: list[tuple[Fields, str, str]] = [
    ({"max_completion_tokens": 3}, "max_completion_tokens", "use max_tokens"),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
    ({"messages": ASK}, "messages", "/v1/chat/completions"),
    ({"prompt": [-1]}, "prompt.0", "at least 0"),
    ({"prompt": ""}, "prompt", "is empty"),
    ({"prompt": [[]]}, "prompt", "is empty"),
    ({"prompt": [999999]}, "prompt", "999999"),
    ({"prompt": [999999], "echo": True}, "prompt", "999999"),
    ({"prompt": [1.5]}, "prompt.0", "whole number"),
    ({"prompt": ["a", 1]}, "prompt.1", "give a text"),
    ({"prompt": [{}]}, "prompt", "a list of token ids"),
]
EACH = [
    *(("/v1/completions", TEXT, case) for case in BOTH + COMPLETIONS),
    *(("/v1/chat/completions", CHAT, case) for case in BOTH + CHATS + MESSAGES),
    *(("/tokenize", {}, case) for case in MESSAGES),
    ("/tokenize", {"messages": ASK}, ({"chat_template": "x"}, "chat_template", "--chat-template")),
]


@pytest.mark.parametrize(("path", "body", "case"), EACH, ids=[f"{path}-{case[0]}"[:60] for path, _, case in EACH])
def test_the_field_and_the_remedy_are_named(
    client: TestClient, path: str, body: Fields, case: tuple[Fields, str, str]
) -> None:
    fields, param, said = case
    content = json.dumps({**body, **fields})  # the client's own encoder refuses half a surrogate pair
    error = refused(client.post(path, content=content, headers={"content-type": "application/json"}))
    assert error["param"] == param
    assert said in error["message"]
    assert len(error["message"]) < 420


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": [1] * MANY + ["x"]}, f"prompt.{MANY}"),
        ("/v1/completions", {"prompt": [[1, "x"]] * MANY}, "prompt.0.1"),
        ("/v1/completions", {**TEXT, "stop": [1] * MANY}, "stop.0"),
        ("/v1/completions", {**TEXT, "stop": ["x"] * MANY}, "stop"),
        ("/v1/completions", {**TEXT, "stop_token_ids": ["x"] * MANY}, "stop_token_ids.0"),
        ("/v1/completions", {**TEXT, "logit_bias": {str(token): "x" for token in range(MANY)}}, "logit_bias"),
        ("/v1/completions", {**TEXT, "guided_choice": [1] * MANY}, "guided_choice.0"),
        ("/v1/chat/completions", {"messages": [1] * MANY}, "messages.0"),
        ("/v1/chat/completions", {"messages": [{}] * MANY}, "messages.0.role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [1] * MANY}]}, "messages.0.content.0"),
        ("/v1/chat/completions", {**CHAT, "tools": [1] * MANY}, "tools.0"),
        ("/detokenize", {"tokens": ["x"] * MANY}, "tokens.0"),
    ],
)
def test_a_long_body_is_refused_at_its_first_fault(
    client: TestClient, path: str, fields: Fields, param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[Any] = []

    def noted(errors: Sequence[Mapping[str, Any]]) -> ApiError:
        faults.extend(errors)
        return from_validation(errors)

    monkeypatch.setattr("foredraft.server.app.from_validation", noted)
    answer = client.post(path, content=json.dumps(fields), headers={"content-type": "application/json"})
    assert refused(answer)["param"] == param
    assert len(faults) == (param != "stop")  # one for each element would take seconds; too many are counted first


def test_whole_numbers_may_have_a_point(client: TestClient) -> None:
    answers = [
        client.post("/v1/completions", json={"prompt": prompt, "max_tokens": count}).json()["choices"]
        for prompt, count in (([70, 80], 4), ([70.0, 80], 4.0), ([[70.0, 80]], 4))
    ]
    assert answers[0] == answers[1] == answers[2]


def test_numbers_of_thousands_of_digits(client: TestClient) -> None:
    for digits in (4000, 5000):
        content = json.dumps(TEXT).replace('"max_tokens": 4', '"max_tokens": ' + "9" * digits)
        answer = client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        assert len(refused(answer)["message"]) < 300


def test_long_names_are_cut(client: TestClient) -> None:
    answer = client.post("/v1/completions", json={**TEXT, "model": "x" * 5000})
    assert len(refused(answer, 404)["message"]) < 500


def test_calls_of_the_past_are_shown_without_tools(client: TestClient) -> None:
    """The template knows neither tools nor calls."""
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    messages = [*ASK, call, {"role": "tool", "content": "noon"}]
    for more in ({}, {"tools": TOOLS}):
        body = {"messages": messages, "return_token_strs": True, **more}
        text = "".join(client.post("/tokenize", json=body).json()["token_strs"])
        assert '{"name":"f","arguments":{}}' in text.replace("Ġ", "").replace(" ", "")
        assert "<tool_response>" in text


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/health", "/"])
def test_head_is_get_without_the_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


def test_a_failure_has_cors_headers(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = tiny_service(lambda: load_tiny(tiny_checkpoint), allowed_origins=("https://a.example",))

    def fail(name: str | None) -> None:
        raise RuntimeError("a bug")

    with client_of(service) as client:
        monkeypatch.setattr(type(service), "check_model", lambda self, name: fail(name))
        answer = client.post("/v1/completions", json=TEXT, headers={"origin": "https://a.example"})
        refused(answer, 500)
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert answer.headers["x-request-id"]
