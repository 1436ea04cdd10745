"""Requests made up by schemathesis from the API's own document: whatever is in them, the answer is one that the
document describes, and nothing is ever the server's fault.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from tiny_server import listening, load_tiny, tiny_service

VOCABULARY = 267
GETS = {"/health", "/ping", "/load", "/metrics", "/version", "/v1/models", "/v1/models/{name}"}
POSTS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
REQUESTS = {"ContentPart", "Message", "Prediction", "ResponseFormat", "StreamOptions", "StructuredOutputs"}
KNOWN = {200, 400, 404}  # of a server without keys that isn't busy
FAST, MANY = 6, 150
SECONDS = 120
FORM = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def number(low: float, high: float) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high}


def whole(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def several(items: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


TEXT = {"type": "string", "minLength": 1, "maxLength": 20}
TOKENS = several(whole(0, VOCABULARY - 1), 1, 20)
NOTHING = {"type": "null"}
SENSIBLE: dict[str, dict[str, Any]] = {
    "model": {"enum": ["tiny", "also-tiny", None]},
    "messages": several({"$ref": "#/components/schemas/Message"}, 1, 3),
    "prompt": {"anyOf": [TEXT, TOKENS, several(TEXT, 1, 3), several(TOKENS, 1, 3)]},
    "max_tokens": whole(1, 12),
    "max_completion_tokens": whole(1, 12),
    "temperature": number(0, 2),
    "top_p": number(0.1, 1),
    "top_k": whole(-1, 300),
    "min_p": number(0, 1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "repetition_penalty": number(0.1, 2),
    "n": whole(1, 3),
    "stop": {"anyOf": [TEXT, several(TEXT, 0, 4)]},
    "seed": whole(-(2**63), 2**63),
    "stream_options": NOTHING,
    "logit_bias": {
        "type": "object",
        "patternProperties": {"^[1-9][0-9]$": number(-100, 100)},
        "additionalProperties": False,
    },
    "response_format": {"enum": [None, {"type": "text"}, {"type": "json_object"}]},
    "structured_outputs": {"enum": [None, {}, {"json": FORM}, {"choice": ["yes", "no"]}]},
    "prediction": {"enum": [None, {"type": "content", "content": "abc abc"}]},
    "min_tokens": whole(0, 1),
    "stop_token_ids": several(whole(0, VOCABULARY - 1), 0, 3),
    "prompt_logprobs": whole(0, 5),
    "priority": {"enum": [0, None]},
    "request_id": {"type": "string", "pattern": "^[a-z0-9]{1,20}$"},
    "cache_salt": {"anyOf": [TEXT, NOTHING]},
    "guided_json": NOTHING,
    "guided_regex": {"enum": [None, "[ab]{1,5}"]},
    "guided_choice": NOTHING,
    "guided_grammar": NOTHING,
    "num_speculative_tokens": whole(0, 8),
    "tools": NOTHING,
    "tool_choice": {"enum": ["none", "auto", None]},
    "continue_final_message": {"enum": [False, None]},
    "chat_template_kwargs": {"enum": [None, {"mood": "good"}]},
    "best_of": NOTHING,
    "suffix": {"enum": ["", None]},
    "tokens": TOKENS,
    "role": {"enum": ["user", "assistant", "system", "tool"]},
    "top_logprobs": NOTHING,
}
"""The fields' ranges that this server can serve; most requests within them are answered."""


@pytest.fixture(scope="module")
def document(tiny_checkpoint: Path) -> Iterator[dict[str, Any]]:
    """Of a server on a socket. What answers have is all that they may have."""
    options = {"spec_decode_metrics": True, "request_metrics": True, "force_include_usage": True}
    with listening(tiny_service(lambda: load_tiny(tiny_checkpoint), **options)) as url:
        from httpx2 import get

        found: dict[str, Any] = get(f"{url}/openapi.json").json()
        for name, schema in found["components"]["schemas"].items():
            if not name.endswith("Request") and name not in REQUESTS:
                schema["additionalProperties"] = False
        yield {**found, "servers": [{"url": url}]}


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The same document with `SENSIBLE` ranges for what is sent."""
    document = copy.deepcopy(document)
    for name, schema in document["components"]["schemas"].items():
        if name.endswith("Request") or name in REQUESTS:
            schema["properties"] |= {field: SENSIBLE[field] for field in schema["properties"].keys() & SENSIBLE}
            schema["additionalProperties"] = False
    message = document["components"]["schemas"]["Message"]
    message["properties"] |= {"content": TEXT, "tool_calls": NOTHING, "name": NOTHING}
    message["required"] = [*message.get("required", []), "content"]  # only tool calls do without
    document["components"]["schemas"]["CompletionRequest"]["properties"]["logprobs"] = whole(0, 5)
    tokenize = document["components"]["schemas"]["TokenizeRequest"]
    tokenize |= {"properties": tokenize["properties"] | {"prompt": TEXT, "messages": NOTHING}, "required": ["prompt"]}
    return document


def operation(document: dict[str, Any], path: str, method: str = "POST") -> Any:
    api = schemathesis.openapi.from_dict(document)
    api.config.update(base_url=document["servers"][0]["url"])
    return api[path][method]


def ask(cases: Any, examples: int) -> Counter[int]:
    """Send so many requests and hold the answers against the document; how often each status came."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        negative_data_rejection,
        response_headers_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        negative_data_rejection,
    ]
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=examples,
        derandomize=examples == FAST,  # the fast suite asks the same every time
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=cases)
    def send(case: Any) -> None:
        answer = case.call(timeout=SECONDS)
        statuses[answer.status_code] += 1
        assert answer.status_code in KNOWN, answer.text
        case.validate_response(answer, checks=checks)
        if answer.headers["content-type"][0].startswith("text/event-stream"):
            check_stream(answer.text)

    send()
    return statuses


def check_stream(text: str) -> None:
    """Whole events of JSON, none of them an error. [DONE] may be missing, as schemathesis leaves long streams early."""
    for event in text.split("\n\n")[:-1]:
        assert event.startswith("data: ")
        if event != "data: [DONE]":
            assert "error" not in json.loads(event.removeprefix("data: "))


def counts(examples: int) -> Any:
    return pytest.param(examples, marks=[pytest.mark.slow, pytest.mark.timeout(1800)] if examples == MANY else [])


def test_the_document_has_everything_that_is_tested(document: dict[str, Any]) -> None:
    assert set(document["paths"]) == GETS | set(POSTS)


@pytest.mark.parametrize("path", sorted(GETS))
def test_what_is_read(document: dict[str, Any], path: str) -> None:
    if path == "/v1/models/{name}":
        document = copy.deepcopy(document)
        document["paths"][path]["get"]["parameters"][0]["schema"] = {"enum": ["tiny", "also-tiny"]}
    assert ask(operation(document, path, "GET").as_strategy(), 1) == {200: 1}


@pytest.mark.parametrize("examples", [counts(FAST), counts(MANY)])
@pytest.mark.parametrize("path", POSTS)
def test_anything_that_has_the_right_types(document: dict[str, Any], path: str, examples: int) -> None:
    cases = operation(document, path).as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    assert ask(cases, examples).total() >= examples


@pytest.mark.parametrize("examples", [counts(FAST), counts(MANY)])
@pytest.mark.parametrize("path", POSTS)
def test_wrong_types_are_refused(document: dict[str, Any], path: str, examples: int) -> None:
    cases = operation(document, path).as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)
    assert set(ask(cases, examples)) == {400}


@pytest.mark.parametrize("examples", [counts(FAST), counts(MANY)])
@pytest.mark.parametrize("path", POSTS)
def test_sensible_requests_are_answered(document: dict[str, Any], path: str, examples: int) -> None:
    cases = operation(narrowed(document), path).as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    statuses = ask(cases, examples)
    # A few wishes exclude each other, such as structured outputs that ask for two things.
    assert statuses[200] >= 0.8 * statuses.total()
