"""Requests as they come over the wire: OpenAI's fields, vLLM's extra ones, and two of our own.

This module and described.py are the only ones that know pydantic. Fields that nobody knows are accepted and listed by
`unknown_fields`. What other parts need beyond plain values leaves here as small data types: `StructuredOutput` for the
form of an answer, `ToolUse` for tools.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool
from pydantic_core import PydanticCustomError

from foredraft.types import StructuredOutput

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "GenerationRequest",
    "Message",
    "TokenizeRequest",
    "ToolUse",
]


def _no_disguise(value: object) -> object:
    """pydantic takes true for 1, and "1" as well; a client that sends those didn't mean them."""
    if isinstance(value, (bool, str)):
        raise PydanticCustomError("number_type", "give a number")
    return value


def _none_disguised(values: object) -> object:
    """The same for a list, of which there may be a million elements."""
    if isinstance(values, list) and any(isinstance(value, (bool, str)) for value in values):
        raise PydanticCustomError("number_type", "give a list of numbers")
    return values


Whole = Annotated[int, BeforeValidator(_no_disguise)]
Number = Annotated[float, BeforeValidator(_no_disguise)]
Tokens = Annotated[list[int], BeforeValidator(_none_disguised)]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools as the chat template takes them, and which of them the answer may or must call.

    choice  "auto", "none", "required", or "function" for the one in `name`
    """

    tools: tuple[dict[str, Any], ...]
    choice: str = "auto"
    name: str | None = None
    parallel: bool = True


class Body(BaseModel):
    """Any JSON object with some known fields."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None

    def unknown_fields(self) -> dict[str, Any]:
        return self.model_extra or {}


class ContentPart(Body):
    """A part of a message; only text is understood."""

    type: str = "text"
    text: str | None = None


class Message(Body):
    """One message of a conversation; the chat template decides which roles and fields it knows."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class StreamOptions(Body):
    include_usage: StrictBool | None = None
    continuous_usage_stats: StrictBool | None = None


class ResponseFormat(Body):
    """OpenAI's: text, json_object, or json_schema with {"name", "schema", "strict"}."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class StructuredOutputs(Body):
    """vLLM's: at most one of these. `json` is taken by pydantic, hence the alias."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), populate_by_name=True)

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: StrictBool | None = None


class Prediction(Body):
    """A text that the answer is expected to resemble."""

    type: Literal["content"] = "content"
    content: str | list[ContentPart]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text or "" for part in self.content)


class GenerationRequest(Body):
    """What chat and plain completions have in common. None means: as the server is configured."""

    max_tokens: Whole | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    n: Whole | None = None
    stop: str | list[str] | None = None
    seed: Whole | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, Number] | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    # vLLM's
    top_k: Whole | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    min_tokens: Whole | None = None
    stop_token_ids: Tokens | None = None
    ignore_eos: StrictBool | None = None
    skip_special_tokens: StrictBool | None = None
    include_stop_str_in_output: StrictBool | None = None
    return_token_ids: StrictBool | None = None
    prompt_logprobs: Whole | None = None
    priority: Whole | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    # ours
    speculative: StrictBool | None = None
    num_speculative_tokens: Whole | None = None

    def structured(self) -> StructuredOutput | None:
        """The form that is asked for. Raises ValueError for several, or for a schema without content."""
        found = [*_from_format(self.response_format), *_from_structured(self.structured_outputs), *self._guided()]
        if len(found) > 1:
            kinds = " and ".join(one.kind for one in found)
            raise ValueError(f"the request asks for {kinds} at once; ask for one of them")
        return found[0] if found else None

    def _guided(self) -> list[StructuredOutput]:
        """vLLM's older names."""
        older = StructuredOutputs(
            json=self.guided_json, regex=self.guided_regex, choice=self.guided_choice, grammar=self.guided_grammar
        )
        return _from_structured(older)


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: Whole | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Whole | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: StrictBool | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: StrictBool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def tool_use(self) -> ToolUse | None:
        """None without tools. Raises ValueError for a choice that names none of them."""
        if not self.tools:
            if self.tool_choice not in (None, "none", "auto"):
                raise ValueError(f"tool_choice is {json.dumps(self.tool_choice)}, but there are no tools; add them")
            return None
        names = [_function_name(tool) for tool in self.tools]
        parallel = self.parallel_tool_calls is not False
        choice = self.tool_choice or "auto"
        if isinstance(choice, str):
            if choice not in ("auto", "none", "required"):
                raise ValueError(f'tool_choice is {choice!r}; give "auto", "none", "required" or a function')
            return ToolUse(tuple(self.tools), choice, None, parallel)
        name = _function_name(choice)
        if name not in names:
            raise ValueError(f"tool_choice names {name!r}; the tools are {', '.join(names)}")
        return ToolUse(tuple(self.tools), "function", name, parallel)


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: str | Tokens | list[str] | list[Tokens]
    logprobs: Whole | None = None
    echo: StrictBool | None = None
    best_of: Whole | None = None
    suffix: str | None = None
    add_special_tokens: StrictBool | None = None


class TokenizeRequest(Body):
    """POST /tokenize: a prompt or a conversation."""

    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: StrictBool | None = None
    return_token_strs: StrictBool | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: StrictBool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Body):
    """POST /detokenize."""

    tokens: Tokens


def _from_format(wanted: ResponseFormat | None) -> list[StructuredOutput]:
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        return [StructuredOutput("json_object")]
    schema = (wanted.json_schema or {}).get("schema")
    if not isinstance(schema, dict):
        raise ValueError('response_format of type json_schema needs {"json_schema": {"name": ..., "schema": {...}}}')
    return [StructuredOutput("json_schema", json.dumps(schema))]


def _from_structured(wanted: StructuredOutputs | None) -> list[StructuredOutput]:
    if wanted is None:
        return []
    found: list[StructuredOutput] = []
    if wanted.json_ is not None:
        schema = wanted.json_ if isinstance(wanted.json_, str) else json.dumps(wanted.json_)
        found.append(StructuredOutput("json_schema", schema))
    if wanted.regex is not None:
        found.append(StructuredOutput("regex", wanted.regex))
    if wanted.choice is not None:
        found.append(StructuredOutput("choice", json.dumps(wanted.choice)))
    if wanted.grammar is not None:
        found.append(StructuredOutput("grammar", wanted.grammar))
    if wanted.json_object:
        found.append(StructuredOutput("json_object"))
    return found


def _function_name(tool: dict[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError(
            f'tool {json.dumps(tool)[:200]} has no name; write {{"type": "function", "function": {{...}}}}'
        )
    return name
