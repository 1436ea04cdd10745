"""How models write tool calls, and making them write one.

Three formats cover the common models: Hermes and Qwen, Llama 3, Mistral. Which one a model was trained on shows in its
chat template. A template that doesn't know tools at all gets them as text, in Hermes' format. `tool_choice` "required"
and a named function become a grammar over the same format, so that one parser (tool_calls.py) reads everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from foredraft.server.api_errors import bad_request
from foredraft.server.asked_form import AskedForm
from foredraft.types import StructuredOutput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "HERMES",
    "LLAMA3",
    "MISTRAL",
    "ToolFormat",
    "ToolWish",
    "find_format",
    "knows_calls",
    "knows_tools",
    "marker_token",
    "tool_structure",
    "tools_as_text",
]

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls.

    marker     begins a call, or a list of calls
    end        ends it, "" where the JSON's own end does
    arguments  the key under which the arguments stand
    bare       an answer may also begin with a call without the marker
    listed     calls stand in a JSON list after the marker, or as NAME{...} or NAME[ARGS]{...}
    id_length  length of a call's id; 0 for OpenAI's form
    """

    name: str
    marker: str
    end: str = ""
    arguments: str = "arguments"
    bare: bool = False
    listed: bool = False
    id_length: int = 0


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>")
LLAMA3 = ToolFormat("llama3", "<|python_tag|>", arguments="parameters", bare=True)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", listed=True, id_length=9)  # its template refuses ids of other lengths


class ToolWish(Protocol):
    """protocol.ToolUse, as far as it matters here."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def choice(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def parallel(self) -> bool: ...


def find_format(template: str) -> ToolFormat:
    """The format that a chat template shows its model. Where it knows no tools, that of `tools_as_text`."""
    if not knows_tools(template):
        return HERMES
    if MISTRAL.marker in template:
        return MISTRAL
    if HERMES.marker not in template and (LLAMA3.marker in template or "<|start_header_id|>" in template):
        return LLAMA3
    return HERMES


def knows_tools(template: str) -> bool:
    """Whether a chat template does anything with `tools`."""
    return re.search(r"\btools\b", template) is not None


def knows_calls(template: str) -> bool:
    """Whether a chat template does anything with the calls that a conversation has, or with their results."""
    return re.search(r"\b(tools|tool_calls)\b", template) is not None


def marker_token(tokenizer: PreTrainedTokenizerBase, form: ToolFormat) -> int | None:
    """The marker's token if it is a special one, which text can't spell; None if it is ordinary text.

    Special tokens are left out of texts, so with one of them `skip_special_tokens` has to be off.
    """
    for token, added in tokenizer.added_tokens_decoder.items():
        if added.content == form.marker and added.special:
            return int(token)
    return None


def tools_as_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[Message]:
    """A conversation for a template that knows neither tools nor calls: both become text, in Hermes' format."""
    plain = [_as_text(message) for message in messages]
    if not tools:
        return plain
    system = "\n".join(
        [
            "You may call functions. These are available, each described by a line of JSON:",
            *(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools),
            "To call one, answer with its name and arguments, like this, and wait for the result:",
            _hermes_call("NAME", {"ARGUMENT": "VALUE"}),
        ]
    )
    if plain and plain[0].get("role") == "system":
        return [{**plain[0], "content": f"{plain[0].get('content') or ''}\n\n{system}"}, *plain[1:]]
    return [{"role": "system", "content": system}, *plain]


def tool_structure(
    use: ToolWish, form: ToolFormat, marker: int | None = None, structured: StructuredOutput | None = None
) -> StructuredOutput | None:
    """The form of an answer that must, or may, call tools; None if it is free.

    marker      from `marker_token`
    structured  the form that the request asks for. It concerns answers in words: with `tool_choice` "auto" the answer
                is one or the other, with "required" or a function there are no words.

    Raises ApiError (400) for a form that can't be an alternative to calls.
    """
    if use.choice == "none" or (use.choice == "auto" and structured is None):
        return structured
    tools = [tool.get("function", tool) for tool in use.tools]
    if use.choice == "function":
        tools = [tool for tool in tools if tool["name"] == use.name]
    rules = [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}"]
    rules += [f"call_{index}: %json {json.dumps(_call_schema(tool, form))}" for index, tool in enumerate(tools)]
    several = use.parallel and use.choice != "function"
    rules.append(f"calls: {_calls(form, marker, several=several)}")
    if use.choice != "auto" or structured is None:
        return AskedForm("grammar", "\n".join(["start: calls", *rules]), "tools")
    if structured.kind not in ("json_object", "json_schema"):
        raise bad_request(
            f"{structured.kind} and tools exclude each other; set tool_choice to none, or leave one out.", "tools"
        )
    rules.append(f"words: %json {_styled(structured)}")
    return AskedForm("grammar", "\n".join(["start: calls | words", *rules]), "tools")


def _calls(form: ToolFormat, marker: int | None, *, several: bool) -> str:
    """A Lark expression for one call, or for one and more of them."""
    mark = json.dumps(form.marker) if marker is None else f"<[{marker}]>"
    one, between = "call", '"; "'
    if form.listed:
        between = '", "'
    elif not form.bare:
        one = f'{mark} "\\n" call "\\n{form.end}"'
        between = '"\\n"'
    calls = f"{one} ({between} {one})*" if several else one
    return f'{mark} "[" {calls} "]"' if form.listed else calls


def _call_schema(tool: Mapping[str, Any], form: ToolFormat) -> dict[str, Any]:
    """A call of one tool as a JSON schema. Definitions move up, since references to them begin at the top."""
    given = tool.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
    parameters = {key: value for key, value in given.items() if key not in ("$defs", "definitions")}
    return {
        "type": "object",
        "properties": {"name": {"const": tool["name"]}, form.arguments: parameters},
        "required": ["name", form.arguments],
        "additionalProperties": False,
        **{key: given[key] for key in ("$defs", "definitions") if key in given},
        "x-guidance": _STYLE,
    }


_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As in engine/structured.py, and as chat templates write calls."""


def _styled(form: StructuredOutput) -> str:
    """The schema of an answer in words, in the style of calls."""
    try:
        value = json.loads(form.text) if form.kind == "json_schema" else {"type": "object"}
    except (ValueError, RecursionError) as error:
        param = form.param if isinstance(form, AskedForm) else None
        raise bad_request(f"The json_schema can't be used ({error}); correct it.", param) from error
    return json.dumps({"x-guidance": _STYLE, **value} if isinstance(value, dict) else value)


def _hermes_call(name: str, arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{HERMES.marker}\n{call}\n{HERMES.end}"


def _as_text(message: Message) -> Message:
    """One message without fields that a simple template would leave out."""
    content = message.get("content") or ""
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = message.get("tool_calls") or []
    if not calls:
        return message
    functions = [call.get("function", call) for call in calls]
    texts = [_hermes_call(function.get("name", ""), _arguments(function)) for function in functions]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join([*([content] if content else []), *texts])}


def _arguments(function: Mapping[str, Any]) -> Any:
    """OpenAI passes them as a text."""
    given = function.get("arguments", {})
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given or "{}")
    except (ValueError, RecursionError):
        return given
