"""From a request's prompt or messages to token ids.

Works on a tokenizer of its own, a copy, since the engine's thread decodes with the original at the same time.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from foredraft.errors import RequestError
from foredraft.server.api_errors import bad_request
from foredraft.server.protocol import ChatRequest, CompletionRequest, ContentPart, Message, TokenizeRequest, ToolUse
from foredraft.server.tools import knows_tools, tools_as_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["EncodedText", "PromptReader"]

TEMPLATE_ARGUMENTS = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "documents",
    "messages",
    "padding",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
}


class EncodedText(NamedTuple):
    """A prompt. `text` is None where only token ids were given."""

    tokens: list[int]
    text: str | None


class PromptReader:
    """One thread at a time may use it.

    chat_template         instead of the tokenizer's own
    chat_template_kwargs  the template's variables unless a request sets them
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        *,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._name = name
        self._template = chat_template
        self._defaults = dict(chat_template_kwargs or {})

    @property
    def template(self) -> str:
        """The chat template, "" if there is none."""
        own = self._template or self._tokenizer.chat_template or ""
        return own if isinstance(own, str) else str(own.get("default", ""))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids; `special` adds what the model expects at the beginning of a text. Raises ApiError (400)."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise bad_request(f"The text has half a surrogate pair at character {error.start}; send text.") from error
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def decode(self, tokens: list[int]) -> str:
        """Raises ApiError (400) for ids that the vocabulary doesn't have."""
        size = len(self._tokenizer)
        wrong = next((token for token in tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise bad_request(f"tokens has the id {wrong}; the vocabulary ends at {size - 1}.", "tokens")
        return str(self._tokenizer.decode(tokens))

    def token_texts(self, tokens: list[int]) -> list[str]:
        return [str(text) for text in self._tokenizer.convert_ids_to_tokens(tokens)]

    def completion(self, request: CompletionRequest) -> list[EncodedText]:
        """One or several prompts; each is a text or token ids."""
        given = request.prompt
        prompts: Sequence[str | int | list[int]] = [given] if isinstance(given, str) else given
        if not prompts:
            raise bad_request("prompt is an empty list; give at least one token or text.", "prompt")
        if isinstance(prompts[0], int):
            prompts = [[token for token in prompts if isinstance(token, int)]]
        special = request.add_special_tokens is not False
        encoded = []
        for prompt in prompts:
            if isinstance(prompt, str):
                encoded.append(EncodedText(self.encode(prompt, special=special), prompt))
            elif isinstance(prompt, list):
                encoded.append(EncodedText(prompt, None))
        return encoded

    def chat(self, request: ChatRequest, tools: ToolUse | None) -> EncodedText:
        """A conversation by the chat template, ready for the model's turn."""
        shown = list(tools.tools) if tools is not None and tools.choice != "none" else None
        return self._conversation(request, request.messages, shown)

    def tokenize(self, request: TokenizeRequest) -> EncodedText:
        """What a completion or chat request with this prompt or these messages would begin with."""
        if (request.prompt is None) == (request.messages is None):
            raise bad_request("Give either prompt or messages.", "prompt")
        if request.messages is not None:
            return self._conversation(request, request.messages, request.tools)
        text = request.prompt or ""
        return EncodedText(self.encode(text, special=request.add_special_tokens is not False), text)

    def _conversation(
        self, request: ChatRequest | TokenizeRequest, messages: list[Message], tools: list[dict[str, Any]] | None
    ) -> EncodedText:
        from jinja2 import TemplateError

        if not messages:
            raise bad_request("messages is empty; give at least one.", "messages")
        if not self.template:
            raise RequestError(
                f"{self._name} has no chat template; use /v1/completions, or serve with --chat-template."
            )
        continued = request.continue_final_message is True
        prompted = request.add_generation_prompt if request.add_generation_prompt is not None else not continued
        if continued and prompted:
            raise bad_request(
                "continue_final_message and add_generation_prompt exclude each other; set one to false.",
                "continue_final_message",
            )
        variables = {**self._defaults, **(request.chat_template_kwargs or {})}
        reserved = sorted(TEMPLATE_ARGUMENTS & variables.keys())
        if reserved:
            raise bad_request(f"chat_template_kwargs may not set {reserved[0]}; leave it out.", "chat_template_kwargs")
        conversation = [_template_message(message, index) for index, message in enumerate(messages)]
        if tools and not knows_tools(self.template):
            conversation, tools = tools_as_text(conversation, tools), None
        try:
            text = self._tokenizer.apply_chat_template(
                conversation,
                tools=list[dict[Any, Any] | Callable[..., Any]](tools) if tools else None,
                chat_template=self._template,
                add_generation_prompt=prompted,
                continue_final_message=continued,
                tokenize=False,
                **variables,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise bad_request(
                f"{self._name}'s chat template refuses the conversation ({error}); change its roles, order or fields.",
                "messages",
            ) from error
        return EncodedText(self.encode(str(text), special=False), str(text))


def _template_message(message: Message, index: int) -> dict[str, Any]:
    """A message as templates know them: plain text, and the arguments of tool calls as objects."""
    result: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    result["content"] = _content(message.content, index)
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            result[name] = value
    if message.tool_calls:
        result["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    return result


def _content(content: str | list[ContentPart] | None, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in ("text", "refusal", "input_text") or part.text is None:
            raise bad_request(
                f"messages[{index}] has a part of type {part.type!r}; this model reads text only.",
                f"messages.{index}.content",
            )
    return "\n".join(part.text or "" for part in content)


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except json.JSONDecodeError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
