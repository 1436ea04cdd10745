"""From messages as they come over the wire to messages as chat templates know them: plain text, roles that the template
knows, and tool calls whose arguments are objects.

Nothing that a message says is left out: what a model of texts can't read is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from foredraft.server.api_errors import bad_request, shown
from foredraft.server.asked_tools import function_of
from foredraft.server.field_types import too_deep
from foredraft.server.protocol import ContentPart, Message

__all__ = ["as_conversation", "text_of"]

ROLES = ("system", "developer", "user", "assistant", "tool")
ROLE = re.compile(r"[a-z_]{1,32}")
REFUSED = {
    "audio": "answers are text",
    "function_call": "use tool_calls",
}
TEXTS = ("text", "input_text", "refusal")


def as_conversation(messages: Sequence[Message], template: str) -> list[dict[str, Any]]:
    """Raises ApiError (400) for a message that can't be written."""
    return [_as_known(message, f"messages.{index}", template) for index, message in enumerate(messages)]


def text_of(content: str | list[ContentPart], field: str, *, between: str = "") -> str:
    """Of the parts of a content. Raises ApiError (400) for a part that is no text."""
    if isinstance(content, str):
        return content
    return between.join(_text(part, f"{field}.{index}") for index, part in enumerate(content))


def _as_known(message: Message, field: str, template: str) -> dict[str, Any]:
    _check_role(message.role, field, template)
    for name, reason in REFUSED.items():
        if message.unknown_fields().get(name) is not None:
            raise bad_request(f"{field}.{name} is not supported: {reason}.", f"{field}.{name}")
    result: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    result["content"] = _content(message, f"{field}.content")
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            result[name] = value
    if message.tool_calls:
        place = f"{field}.tool_calls"
        if message.role != "assistant":
            raise bad_request(f"{place} stands in a message of the {message.role}; only the assistant calls.", place)
        result["tool_calls"] = [_call(call, f"{place}.{index}") for index, call in enumerate(message.tool_calls)]
    return result


def _check_role(role: str, field: str, template: str) -> None:
    """Templates may have further roles, Llama's "ipython" for one; any other would be written as if it were one."""
    if role not in ROLES and not (ROLE.fullmatch(role) and re.search(rf"""['"]{role}['"]""", template)):
        raise bad_request(f"{field}.role is {shown(role)}; give one of {', '.join(ROLES)}.", f"{field}.role")


def _content(message: Message, field: str) -> str:
    empty = message.content is None or message.content == []
    said = [] if empty else [text_of(message.content or "", field, between="\n")]
    if message.refusal is not None:
        said.append(message.refusal)
    if not said and not (message.role == "assistant" and (message.tool_calls or message.reasoning_content)):
        given = shown(message.content) if "content" in message.model_fields_set else "missing"
        raise bad_request(f"{field} is {given}; give a text, which may be empty.", field)
    return "\n".join(said)


def _text(part: ContentPart, field: str) -> str:
    if part.type not in TEXTS:
        raise bad_request(f"{field} is of type {shown(part.type)}; this model reads text only.", field)
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        name = "refusal" if part.type == "refusal" else "text"
        raise bad_request(f"{field} is of type {part.type}, but has no {name}; add it.", field)
    return text


def _call(call: Mapping[str, Any], field: str) -> dict[str, Any]:
    """A call whose arguments are an object; what the model wrote in vain stays text."""
    function = function_of(call, field)
    given = function.get("arguments", {})
    arguments = {} if given is None else given
    if not isinstance(arguments, (str, dict)):
        raise bad_request(f"The arguments of {field} are {shown(given)}; give an object, as JSON text.", field)
    return {**call, "function": {**function, "arguments": _read(arguments, field)}}


def _read(arguments: str | dict[str, Any], field: str) -> Any:
    try:
        value = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        deep = too_deep(value)
    except RecursionError:
        deep = True
    except ValueError:
        return arguments
    if deep:
        raise bad_request(f"The arguments of {field} are nested too deeply; send less of them.", field)
    return value
