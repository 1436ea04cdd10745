"""The tools of a request and what it says about using them, checked before templates and grammars rely on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foredraft.server.api_errors import bad_request, shown
from foredraft.server.protocol import ChatRequest, ToolUse

__all__ = ["check_tools", "function_of", "tool_use"]

FUNCTION = '{"type": "function", "function": {"name": ...}}'
CHOICES = f'"none", "auto", "required" or {FUNCTION}'


def tool_use(request: ChatRequest) -> ToolUse | None:
    """None without tools. Raises ApiError (400) for tools that are none, or a choice that names none of them."""
    choice = request.tool_choice or "auto"
    if not request.tools:
        if choice not in ("none", "auto"):
            raise bad_request(f"tool_choice is {shown(choice)}, but there are no tools; add them.", "tool_choice")
        return None
    names = check_tools(request.tools)
    parallel = request.parallel_tool_calls is not False
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise bad_request(f"tool_choice is {shown(choice)}; give {CHOICES}.", "tool_choice")
        return ToolUse(tuple(request.tools), choice, None, parallel)
    return ToolUse(tuple(request.tools), "function", _chosen(choice, names), parallel)


def check_tools(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The functions' names. Raises ApiError (400) for what is no function, or has parameters that are no schema."""
    return [_check_tool(tool, f"tools.{index}") for index, tool in enumerate(tools)]


def function_of(tool: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """The function of a tool, a choice or a call, which all have the same form. Raises ApiError (400)."""
    kind, function = tool.get("type", "function"), tool.get("function")
    if kind != "function":
        raise bad_request(f"{field} is of type {shown(kind)}, but only functions can be called.", f"{field}.type")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not name:
        raise bad_request(f"{field} is {shown(tool)}, which has no function's name; write {FUNCTION}.", field)
    return function


def _check_tool(tool: Mapping[str, Any], field: str) -> str:
    function = function_of(tool, field)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        place = f"{field}.function.parameters"
        raise bad_request(f"{place} is {shown(parameters)}; give a JSON schema, which is an object.", place)
    return str(function["name"])


def _chosen(choice: Mapping[str, Any], names: Sequence[str]) -> str:
    """The function that a choice names."""
    field = "tool_choice"
    if choice.get("type", "function") != "function":
        kind = shown(choice["type"])
        remedy = "leave the other tools out" if choice["type"] == "allowed_tools" else f"give {CHOICES}"
        raise bad_request(f"{field} of type {kind} is not supported; {remedy}.", field)
    name = str(function_of(choice, field)["name"])
    if name not in names:
        raise bad_request(f"{field} names {shown(name)}; the tools are {', '.join(names)}.", field)
    return name
