"""Tools: what models write becomes calls, wherever it is cut; what isn't a call stays text, to the last character."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from byte_tokenizer import EOS, VOCAB, byte_tokenizer, encode
from hypothesis import given, settings
from hypothesis import strategies as st
from models import scripted_target

from foredraft.engine.engine import Engine
from foredraft.server.api_errors import ApiError
from foredraft.server.tool_calls import ToolCallStream, parse_calls
from foredraft.server.tool_seam import MessagePart
from foredraft.server.tools import (
    HERMES,
    LLAMA3,
    MISTRAL,
    ToolFormat,
    find_format,
    knows_tools,
    marker_token,
    tool_structure,
    tools_as_text,
)
from foredraft.types import FinishReason, SamplingParams, StructuredOutput

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"city": {"enum": ["Oslo", "Lima"]}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
NAMES = frozenset({"get_weather", "clock"})
FORMATS = {form.name: form for form in (HERMES, LLAMA3, MISTRAL)}


@dataclass(frozen=True)
class Use:
    tools: Sequence[dict[str, Any]] = (WEATHER, CLOCK)
    choice: str = "auto"
    name: str | None = None
    parallel: bool = True


def short(parsed: MessagePart) -> tuple[str, list[tuple[str, Any]]]:
    functions = [call["function"] for call in parsed.tool_calls]
    return parsed.content, [(function["name"], json.loads(function["arguments"])) for function in functions]


OSLO = ("get_weather", {"city": "Oslo"})
NOW = ("clock", {})
SAMPLES: list[tuple[ToolFormat, str, str, list[tuple[str, Any]]]] = [
    (HERMES, "Just text.", "Just text.", []),
    (HERMES, "", "", []),
    (HERMES, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>', "", [OSLO]),
    (
        HERMES,
        'Let me see.\n<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>\n',
        "Let me see.",
        [OSLO, NOW],
    ),
    (HERMES, '<tool_call>{"name": "clock", "arguments": {}}', "", [NOW]),  # ended without the end mark
    (HERMES, '<tool_call>{"name": "clock", "arguments": {}}\n</tool', "", [NOW]),  # or in the midst of it
    (HERMES, 'a <tool_call>{"name": "clock"}</tool_call> b', "a b", [NOW]),
    (HERMES, "5 < 6 <tool <tool_cal <tool_call", "5 < 6 <tool <tool_cal <tool_call", []),
    (HERMES, "say <tool_call> to call", "say <tool_call> to call", []),
    (HERMES, '<tool_call>{"name": "clock", "argu', '<tool_call>{"name": "clock", "argu', []),
    (HERMES, '<tool_call>{"nam": 3}</tool_call> x', '<tool_call>{"nam": 3}</tool_call> x', []),
    (
        HERMES,
        '<tool_call>{"name": "say", "arguments": {"text": "</tool_call> } \\" é\n{"}}</tool_call>',
        "",
        [("say", {"text": '</tool_call> } " é\n{'})],
    ),
    (LLAMA3, '{"name": "get_weather", "parameters": {"city": "Oslo"}}', "", [OSLO]),
    (LLAMA3, '\n{"type": "function", "name": "clock", "parameters": {}}', "", [NOW]),
    (
        LLAMA3,
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": "clock", "parameters": {}}',
        "",
        [OSLO, NOW],
    ),
    (LLAMA3, '{"answer": 42} or so', '{"answer": 42} or so', []),
    (LLAMA3, '{"name": "Alice", "parameters": {}}', '{"name": "Alice", "parameters": {}}', []),
    (LLAMA3, 'Write {"name": "clock", "parameters": {}}', 'Write {"name": "clock", "parameters": {}}', []),
    (LLAMA3, '<|python_tag|>brave_search.call(query="x")', '<|python_tag|>brave_search.call(query="x")', []),
    (
        MISTRAL,
        'Sure. [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
        '{"name": "clock", "arguments": {}}]',
        "Sure.",
        [OSLO, NOW],
    ),
    (
        MISTRAL,
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]clock{}',
        "",
        [OSLO, NOW],
    ),
    (MISTRAL, "[TOOL_CALLS] nothing [at] all", "[TOOL_CALLS] nothing [at] all", []),
    (MISTRAL, "[TOOL", "[TOOL", []),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), SAMPLES)
def test_calls_are_found(form: ToolFormat, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    assert short(parse_calls(text, form, names=NAMES)) == (content, calls)


@pytest.mark.parametrize(("form", "text", "content", "calls"), SAMPLES)
def test_the_same_calls_come_letter_by_letter(
    form: ToolFormat, text: str, content: str, calls: list[tuple[str, Any]]
) -> None:
    assert short(stream(form, list(text))) == (content, calls)


def stream(form: ToolFormat, pieces: Sequence[str]) -> MessagePart:
    """The sum of what a stream reports."""
    parser = ToolCallStream(form, names=NAMES)
    parts = [*(parser.push(piece) for piece in pieces), parser.finish()]
    calls = [call for part in parts for call in part.tool_calls]
    assert [call["index"] for call in calls] == list(range(len(calls)))
    return MessagePart("".join(part.content for part in parts), tuple(calls))


FRAGMENTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<tool",
        "[TOOL_CALLS]",
        "[TOOL",
        "<|python_tag|>",
        "<|",
        "clock",
        "[ARGS]",
        "; ",
        ", ",
    ),
    *('{"name": "clock", "arguments": {}}', '{"name": "clock", "parameters": {"a": "}"}}', '[{"name": "clock"}]', "{}"),
    *("\n", " ", "{", "}", "[", "]", '"', "\\", "text", "é", '{"a": 1}', '{"name"'),
]


@settings(max_examples=400, deadline=None)
@given(
    form=st.sampled_from(list(FORMATS.values())),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=9),
    cuts=st.lists(st.integers(0, 120), max_size=8),
)
def test_where_the_text_is_cut_changes_nothing(form: ToolFormat, fragments: list[str], cuts: list[int]) -> None:
    text = "".join(fragments)
    places = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    whole = parse_calls(text, form, names=NAMES)
    assert short(stream(form, pieces)) == short(whole)
    assert short(stream(form, list(text))) == short(whole)
    if not whole.tool_calls:
        assert whole.content == text, "what is no call is given back to the last character"


def test_text_is_not_held_longer_than_needed() -> None:
    parser = ToolCallStream(HERMES)
    assert parser.push("Well, x <") == MessagePart("Well, x")
    assert parser.push(" y") == MessagePart(" < y")
    parser = ToolCallStream(LLAMA3, names=NAMES)
    assert parser.push('{"answer":').content == '{"answer":', "an answer in JSON needn't wait for its end"


def test_only_the_first_call_counts_without_parallel_calls() -> None:
    text = "".join('<tool_call>{"name": "clock", "arguments": {}}</tool_call>' for _ in range(3))
    assert short(parse_calls(text, HERMES, parallel=False)) == ("", [NOW])
    listed = '[TOOL_CALLS] [{"name": "clock", "arguments": {}}, {"name": "clock", "arguments": {}}]'
    assert short(parse_calls(listed, MISTRAL, parallel=False)) == ("", [NOW])


def test_ids_and_deltas_have_openais_form() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "São Paulo"}}</tool_call>'
    [call] = parse_calls(text, HERMES).tool_calls
    assert call["id"].startswith("call_")
    assert call == {
        "index": 0,
        "id": call["id"],
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "São Paulo"}'},
    }
    [call] = parse_calls("[TOOL_CALLS]clock{}", MISTRAL).tool_calls
    assert len(call["id"]) == 9
    assert call["id"].isalnum()


def test_formats_are_told_by_the_template() -> None:
    assert find_format('{% if tools %} "<tool_call>" ... <|start_header_id|>') is HERMES
    assert find_format("{% if tools %} <|start_header_id|>ipython") is LLAMA3
    assert find_format('{% if tools %} {{ "[TOOL_CALLS] [" }}') is MISTRAL
    assert find_format("<|start_header_id|>{{ message['content'] }}") is HERMES, "it gets tools as text"
    assert knows_tools("{%- if tools is not none %}")
    assert not knows_tools("{{ message['content'] }} toolshed")


def test_templates_without_tools_get_them_as_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    system, user, assistant, tool = tools_as_text(messages, [WEATHER, CLOCK])
    assert system["content"].startswith("Be brief.\n\n")
    assert "get_weather" in system["content"]
    assert user == messages[1]
    assert short(parse_calls(assistant["content"], HERMES)) == ("", [NOW])
    assert (tool["role"], "noon" in tool["content"]) == ("user", True)
    assert [message["role"] for message in tools_as_text(messages[1:2], [CLOCK])] == ["system", "user"]
    assert tools_as_text(messages) == [messages[0], user, assistant, tool], "calls are text, with or without tools"


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("speculative", [False, True])
def test_a_required_call_is_written_by_any_model(form: ToolFormat, speculative: bool) -> None:
    """Even by one that only ever wants to end, or to write something else."""
    pytest.importorskip("llguidance")
    from drafters import Empty

    prompt = encode("What time?")
    for use, names in [
        (Use(choice="function", name="get_weather"), {"get_weather"}),
        (Use(choice="function", name="clock"), {"clock"}),
        (Use(choice="required", parallel=False), NAMES),
        (Use(choice="required"), NAMES),
    ]:
        for wish in (EOS, 7):
            target = scripted_target(prompt, [wish] * 200, vocab_size=VOCAB, tokenizer=byte_tokenizer())
            structured = tool_structure(use, form)
            params = SamplingParams(temperature=0, max_tokens=200, structured=structured)
            engine = Engine(target, Empty() if speculative else None, num_speculative_tokens=16)
            request = engine.add(prompt, params)
            steps = 0
            while not engine.idle:
                engine.step()
                steps += 1
            [output] = request.result().outputs
            content, calls = short(parse_calls(output.text, form, names=NAMES))
            if use.choice == "function" or not use.parallel:
                assert (output.finish_reason, content, len(calls)) == (FinishReason.STOP, "", 1)
            for name, arguments in calls:  # where several are allowed, this model goes on until it is stopped
                assert name in names
                assert arguments == {} if name == "clock" else arguments["city"] in ("Oslo", "Lima")
            assert calls or form.listed
            assert not speculative or steps < len(output.token_ids) / 3


def test_a_special_marker_is_written_as_its_token() -> None:
    pytest.importorskip("llguidance")
    tokenizer = byte_tokenizer()
    form = ToolFormat("special", "<bos>", listed=True)
    marker = marker_token(tokenizer, form)
    assert marker == 1
    assert marker_token(tokenizer, HERMES) is None
    prompt = encode("?")
    target = scripted_target(prompt, [EOS] * 200, vocab_size=VOCAB, tokenizer=tokenizer)
    structured = tool_structure(Use(choice="function", name="clock"), form, marker)
    engine = Engine(target)
    request = engine.add(
        prompt, SamplingParams(temperature=0, max_tokens=99, structured=structured, skip_special_tokens=False)
    )
    while not engine.idle:
        engine.step()
    [output] = request.result().outputs
    assert output.token_ids[0] == marker
    assert short(parse_calls(output.text, form)) == ("", [NOW])


def test_a_form_for_words_is_an_alternative_to_calls() -> None:
    pytest.importorskip("llguidance")
    schema = StructuredOutput("json_schema", '{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}')
    assert tool_structure(Use(), HERMES) is None
    assert tool_structure(Use(choice="none"), HERMES, structured=schema) is schema
    either = tool_structure(Use(), HERMES, structured=schema)
    assert either is not None
    prompt = encode("?")
    for first, beginning in ((encode("{")[0], '{"a": 1'), (encode("<")[0], '<tool_call>\n{"name": "')):
        target = scripted_target(prompt, [first, *[EOS] * 200], vocab_size=VOCAB, tokenizer=byte_tokenizer())
        engine = Engine(target)
        request = engine.add(prompt, SamplingParams(temperature=0, max_tokens=99, structured=either))
        while not engine.idle:
            engine.step()
        assert request.result().outputs[0].text.startswith(beginning)
    with pytest.raises(ApiError, match="regex and tools exclude each other"):
        tool_structure(Use(), HERMES, structured=StructuredOutput("regex", "a"))
    with pytest.raises(ApiError, match="json_schema can't be used"):
        tool_structure(Use(), HERMES, structured=StructuredOutput("json_schema", "{"))
