"""Tools and structured output through the API, with the openai client's own types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tiny_server import listening, load_tiny, tiny_service

pytest.importorskip("llguidance")
MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
COLOUR: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "paint", "parameters": COLOUR}}]


@pytest.fixture(scope="module")
def api(tiny_checkpoint: Path) -> Iterator[openai.OpenAI]:
    service = tiny_service(lambda: load_tiny(tiny_checkpoint, max_model_len=256), spec_decode_metrics=True)
    with (
        listening(service) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_an_answer_fits_its_schema(api: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR, "strict": True}}
    answer = api.chat.completions.create(model="tiny", messages=MESSAGES, response_format=form, max_tokens=120)
    value = json.loads(answer.choices[0].message.content or "")
    assert value["colour"] in ("red", "blue")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.to_dict()["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0  # what is forced


@pytest.mark.parametrize(
    "form",
    [
        {"structured_outputs": {"regex": "[ab]{3}c"}},
        {"guided_regex": "[ab]{3}c"},
        {"structured_outputs": {"choice": ["abac", "bbbc"]}},
        {"guided_choice": ["abac"]},
        {"structured_outputs": {"grammar": 'start: ("a" | "b") ~ 3 "c"'}},
    ],
)
def test_vllms_forms(api: openai.OpenAI, form: dict[str, Any]) -> None:
    answer = api.completions.create(model="tiny", prompt="x", max_tokens=20, extra_body=form)
    text = answer.choices[0].text
    assert len(text) == 4
    assert set(text[:3]) <= {"a", "b"}
    assert text[3] == "c"


def test_a_form_that_makes_no_sense(api: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="regex"):
            api.chat.completions.create(
                model="tiny", messages=MESSAGES, stream=stream, extra_body={"structured_outputs": {"regex": "("}}
            )


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "paint"}}])
def test_a_call_that_must_come(tiny_checkpoint: Path, streamed: bool, choice: Any) -> None:
    """The template hides the tools, which would fill this model's context."""
    tools: Any = [{"type": "function", "function": {"name": "paint", "parameters": {"enum": [{"a": 1}]}}}]
    service = tiny_service(lambda: load_tiny(tiny_checkpoint), chat_template="{{ tools | length }}:")
    with listening(service) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as one:
        fields: Any = {"model": "tiny", "messages": MESSAGES, "tools": tools, "tool_choice": choice}
        fields["parallel_tool_calls"] = False
        if streamed:
            deltas = [chunk.choices[0] for chunk in one.chat.completions.create(**fields, stream=True)]
            calls = [call for delta in deltas for call in delta.delta.tool_calls or ()]
            assert "".join(delta.delta.content or "" for delta in deltas) == ""
            reason = deltas[-1].finish_reason
        else:
            [answer] = one.chat.completions.create(**fields).choices
            calls, reason = list(answer.message.tool_calls or ()), answer.finish_reason
            assert answer.message.content is None
    assert [call.function.name for call in calls] == ["paint"]
    assert json.loads(calls[0].function.arguments) == {"a": 1}
    assert reason == "tool_calls"


def test_no_tools_no_calls(api: openai.OpenAI) -> None:
    answer = api.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=5)
    assert answer.choices[0].message.tool_calls is None
