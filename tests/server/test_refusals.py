"""Whatever is wrong with a request is said in OpenAI's shape, and never hurts the next one."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
TEXT = {"model": "tiny", "prompt": "Hi", "max_tokens": 4}
DEEP = '{"messages": ' + "[" * 5000 + "]" * 5000 + "}"


def refused(answer: Any, status: int = 400) -> dict[str, Any]:
    """The error, whose shape is checked."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    assert error["type"]
    return dict(error)


BAD_FIELDS: list[tuple[str, dict[str, Any], str | None]] = [
    ("temperature", {"temperature": -1}, "temperature"),
    ("temperature", {"temperature": "hot"}, "temperature"),
    ("top_p", {"top_p": 0}, "top_p"),
    ("top_p", {"top_p": 1.5}, "top_p"),
    ("n", {"n": 0}, "n"),
    ("n", {"n": 1000}, "n"),
    ("max_tokens", {"max_tokens": 0}, "max_tokens"),
    ("max_tokens", {"max_tokens": 100000}, "max_tokens"),
    ("min_tokens", {"min_tokens": 9}, "min_tokens"),
    ("stop", {"stop": ""}, "stop"),
    ("stop", {"stop": 5}, "stop"),
    ("logit_bias", {"logit_bias": {"x": 1}}, "logit_bias"),
    ("logit_bias", {"logit_bias": {"1": 101}}, "logit_bias"),
    ("logit_bias", {"logit_bias": {"99999": 1}}, "logit_bias"),
    ("seed", {"seed": 2**70}, "seed"),
    ("priority", {"priority": 1}, "priority"),
    ("stream_options", {"stream_options": {"include_usage": True}}, "stream_options"),
    ("use_beam_search", {"use_beam_search": True}, "use_beam_search"),
    ("response_format", {"response_format": {"type": "xml"}}, "response_format.type"),
    ("json_schema", {"response_format": {"type": "json_schema"}}, "response_format"),
    ("regex", {"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ("stop_token_ids", {"stop_token_ids": [-1]}, "stop_token_ids.0"),
    ("stop_token_ids", {"stop_token_ids": [99999]}, "stop_token_ids"),
    ("prompt_logprobs", {"prompt_logprobs": 99}, "prompt_logprobs"),
]


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
@pytest.mark.parametrize(("named", "fields", "param"), BAD_FIELDS)
def test_bad_values(
    client: TestClient, path: str, body: dict[str, Any], named: str, fields: dict[str, Any], param: str | None
) -> None:
    error = refused(client.post(path, json={**body, **fields}))
    assert named in error["message"] or named in str(error["param"])
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    assert client.post(path, json=body).status_code == 200


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"content": "no role"}]}, "role"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "text only"),
        ({"top_logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "exclude"),
        ({"chat_template": "{{ 7 * 7 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"tokenize": True}}, "tokenize"),
        ({"functions": [{"name": "f"}]}, "tools"),
        ({"tool_choice": "required"}, "tools"),
        ({"tools": [{"type": "function"}]}, "name"),
        ({"echo": True}, "/v1/completions"),
    ],
)
def test_bad_conversations(client: TestClient, fields: dict[str, Any], said: str) -> None:
    assert said in refused(client.post("/v1/chat/completions", json={**CHAT, **fields}))["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": []},
        {"prompt": ""},
        {"prompt": [[]]},
        {"prompt": [-1]},
        {"prompt": [10**9]},
        {"prompt": [1.5]},
        {"prompt": ["a", 1]},
        {"prompt": None},
        {"logprobs": 21},
        {"best_of": 2},
        {"suffix": "end"},
        {"prompt": "long " * 200},
    ],
)
def test_bad_prompts(client: TestClient, fields: dict[str, Any]) -> None:
    refused(client.post("/v1/completions", json={**TEXT, **fields}))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"prompt": NaN}', DEEP.encode()]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_bodies_that_are_no_request(client: TestClient, path: str, content: bytes) -> None:
    refused(client.post(path, content=content, headers={"content-type": "application/json"}))


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"content-type": "text/plain"}, "content type is 'text/plain'"),
        ({}, "no content type"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, "content encoding is 'gzip'"),
    ],
)
def test_other_content_types(client: TestClient, headers: dict[str, str], said: str) -> None:
    answer = client.post("/v1/completions", content=b'{"prompt": "Hi"}', headers=headers)
    assert said in refused(answer, 415)["message"]


def test_lone_surrogates_hurt_nobody(client: TestClient) -> None:
    content = b'{"prompt": "\\ud800", "max_tokens": 2}'
    answer = client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400)


def test_too_long_a_prompt_has_its_own_code(client: TestClient) -> None:
    error = refused(client.post("/v1/completions", json={**TEXT, "prompt": "x" * 300}))
    assert error["code"] == "context_length_exceeded"


def test_unknown_model_path_and_method(client: TestClient) -> None:
    error = refused(client.post("/v1/completions", json={**TEXT, "model": "gpt-9"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    refused(client.get("/v1/models/gpt-9"), 404)
    refused(client.get("/v2/anything"), 404)
    answer = client.get("/v1/completions")
    refused(answer, 405)
    assert answer.headers["allow"] == "POST"


def test_detokenize_refuses_unknown_ids(client: TestClient) -> None:
    refused(client.post("/detokenize", json={"tokens": [99999]}))
    refused(client.post("/detokenize", json={"tokens": [-1]}))
    refused(client.post("/tokenize", json={}))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x" * 1_000_000}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 1_000_000}]}, "messages"),
    ],
)
def test_a_text_that_cannot_fit_is_not_even_tokenised(
    client: TestClient, path: str, body: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foredraft.server.prompts.PromptReader.encode", None)
    error = client.post(path, json=body)
    assert error.status_code == 400
    assert error.json()["error"]["param"] == param
    assert error.json()["error"]["code"] == "context_length_exceeded"


def test_min_tokens_that_do_not_fit(client: TestClient) -> None:
    error = client.post("/v1/completions", json={"prompt": "Once", "max_tokens": None, "min_tokens": 100_000})
    assert error.status_code == 400
    chat = {"messages": [{"role": "user", "content": "Hi"}], "min_tokens": 100_000}
    error = client.post("/v1/chat/completions", json=chat)
    assert error.status_code == 400
    assert "100000" in error.json()["error"]["message"]


def test_too_many_prompts_are_not_even_tokenised(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.server.prompts.PromptReader.encode", None)
    error = client.post("/v1/completions", json={"prompt": ["x"] * 2000})
    assert error.status_code == 400
    assert "2000 sequences" in error.json()["error"]["message"]
