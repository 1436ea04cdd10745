"""Requests as they come over the wire: OpenAI's fields, vLLM's extra ones, and two of our own.

This module, field_types.py and described.py are the only ones that know pydantic. Fields that nobody knows are accepted
and listed by `unknown_fields`. What a request means is found out elsewhere: its form by asked_form.py, its tools by
asked_tools.py, its messages by conversation.py, the rest by params.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, Tag

from foredraft.server.field_types import (
    STOP_AT_FIRST,
    Biases,
    Number,
    Object,
    Objects,
    Prompt,
    TextOrObject,
    TextOrTexts,
    Texts,
    Tokens,
    Whole,
    json_type,
)

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "Content",
    "ContentPart",
    "DetokenizeRequest",
    "GenerationRequest",
    "Message",
    "ResponseFormat",
    "StructuredOutputs",
    "TokenizeRequest",
    "ToolUse",
]


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

    def unknown_fields(self) -> dict[str, Any]:
        return self.model_extra or {}


class ContentPart(Body):
    """A part of a message; only text is understood, a refusal included."""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None


Content = Annotated[
    Annotated[str, Tag("str")] | Annotated[list[ContentPart], STOP_AT_FIRST, Tag("list")],
    Discriminator(json_type, custom_error_type="kind", custom_error_message="give a text or a list of parts"),
]


class Message(Body):
    """One message of a conversation; the chat template decides which fields it knows."""

    role: str
    content: Content | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: Objects | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


Messages = Annotated[list[Message], STOP_AT_FIRST]


class StreamOptions(Body):
    include_usage: StrictBool | None = None
    continuous_usage_stats: StrictBool | None = None


class ResponseFormat(Body):
    """OpenAI's: text, json_object, or json_schema with {"name", "schema", "strict"}. json_object may have a `schema`
    beside it, as in llama.cpp.
    """

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Object | None = None
    schema_: Object | None = Field(None, alias="schema")


class StructuredOutputs(Body):
    """vLLM's: one of these. `json` is taken by pydantic, hence the alias."""

    json_: TextOrObject | None = Field(None, alias="json")
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None
    json_object: StrictBool | None = None


class Prediction(Body):
    """A text that the answer is expected to resemble."""

    type: Literal["content"] = "content"
    content: Content


class Request(Body):
    """Whatever is asked of a model."""

    model: str | None = None


class GenerationRequest(Request):
    """What chat and plain completions have in common. None means: as the server is configured."""

    max_tokens: Whole | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    n: Whole | None = None
    stop: TextOrTexts | None = None
    seed: Whole | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: Biases | None = None
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
    guided_json: TextOrObject | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    # ours
    speculative: StrictBool | None = None
    num_speculative_tokens: Whole | None = None


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Whole | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Whole | None = None
    tools: Objects | None = None
    tool_choice: TextOrObject | None = None
    parallel_tool_calls: StrictBool | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: StrictBool | None = None
    chat_template_kwargs: Object | None = None


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Prompt
    logprobs: Whole | None = None
    echo: StrictBool | None = None
    best_of: Whole | None = None
    suffix: str | None = None
    add_special_tokens: StrictBool | None = None


class TokenizeRequest(Request):
    """POST /tokenize: a prompt or a conversation."""

    prompt: str | None = None
    messages: Messages | None = None
    tools: Objects | None = None
    add_special_tokens: StrictBool | None = None
    return_token_strs: StrictBool | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: StrictBool | None = None
    chat_template_kwargs: Object | None = None


class DetokenizeRequest(Request):
    """POST /detokenize."""

    tokens: Tokens
