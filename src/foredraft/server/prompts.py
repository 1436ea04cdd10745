"""From a request's prompt or messages to token ids.

Works on a tokenizer of its own, a copy, since the engine's thread decodes with the original at the same time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from foredraft.server.api_errors import bad_request
from foredraft.server.asked_tools import check_tools
from foredraft.server.conversation import as_conversation
from foredraft.server.protocol import ChatRequest, CompletionRequest, Message, TokenizeRequest, ToolUse
from foredraft.server.refused import refuse_known
from foredraft.server.tools import knows_calls, knows_tools, tools_as_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["EncodedText", "PromptReader"]

TEMPLATE_ARGUMENTS = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "conversations",
    "documents",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "self",
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
    context               tokens that a prompt to be continued may have; None: as many as it likes
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        *,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        context: int | None = None,
    ) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._context = context
        self._longest_token = max(map(len, tokenizer.get_vocab()), default=1)
        self._name = name
        self._template = chat_template
        self._defaults = dict(chat_template_kwargs or {})

    @property
    def template(self) -> str:
        """The chat template, "" if there is none."""
        own = self._template or self._tokenizer.chat_template or ""
        return own if isinstance(own, str) else str(own.get("default", ""))

    def encode(self, text: str, *, special: bool = True, field: str | None = None) -> list[int]:
        """Token ids; `special` adds what the model expects at the beginning of a text. Raises ApiError (400) about the
        field that the text is from.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"The text has half a surrogate pair at character {error.start}; send text."
            raise bad_request(message, field) from error
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def decode(self, tokens: list[int]) -> str:
        """Raises ApiError (400) for ids that the vocabulary doesn't have."""
        self._check_ids(tokens, "tokens")
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
                self._check_size(prompt, "prompt")
                encoded.append(EncodedText(self.encode(prompt, special=special, field="prompt"), prompt))
            elif isinstance(prompt, list):
                if request.echo:  # which writes them as text; the engine's vocabulary may be larger
                    self._check_ids(prompt, "prompt")
                encoded.append(EncodedText(prompt, None))
        if not all(one.tokens for one in encoded):
            raise bad_request("prompt is empty; give at least one token or a text.", "prompt")
        return encoded

    def chat(self, request: ChatRequest, tools: ToolUse | None) -> EncodedText:
        """A conversation by the chat template, ready for the model's turn."""
        shown = list(tools.tools) if tools is not None and tools.choice != "none" else None
        return self._conversation(request, request.messages, shown)

    def tokenize(self, request: TokenizeRequest) -> EncodedText:
        """What a completion or chat request with this prompt or these messages would begin with."""
        if (request.prompt is None) == (request.messages is None):
            raise bad_request("Give either prompt or messages.", "prompt")
        others = request.unknown_fields()
        refuse_known({name: others[name] for name in others.keys() & {"chat_template", "documents"}})
        if request.messages is not None:
            check_tools(request.tools or ())
            return self._conversation(request, request.messages, request.tools)
        text = request.prompt or ""
        return EncodedText(self.encode(text, special=request.add_special_tokens is not False, field="prompt"), text)

    def _conversation(
        self, request: ChatRequest | TokenizeRequest, messages: list[Message], tools: list[dict[str, Any]] | None
    ) -> EncodedText:
        if not messages:
            raise bad_request("messages is empty; give at least one.", "messages")
        if not self.template:
            raise bad_request(
                f"{self._name} has no chat template; use /v1/completions, or serve with --chat-template.", "messages"
            )
        conversation = as_conversation(messages, self.template)
        if tools and not knows_tools(self.template):
            conversation, tools = tools_as_text(conversation, tools), None
        elif not knows_calls(self.template):
            conversation = tools_as_text(conversation)
        text = self._written(request, conversation, tools, _beginning(request))
        if isinstance(request, ChatRequest):
            self._check_size(text, "messages")
        tokens = self.encode(text, special=False, field="messages")
        if not tokens:
            raise bad_request(f"{self._name}'s chat template makes no text of the messages; change them.", "messages")
        return EncodedText(tokens, text)

    def _written(
        self,
        request: ChatRequest | TokenizeRequest,
        conversation: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        beginning: _Beginning,
    ) -> str:
        """What the chat template makes of a conversation. Raises ApiError (400)."""
        variables = {**self._defaults, **(request.chat_template_kwargs or {})}
        reserved = sorted(TEMPLATE_ARGUMENTS & variables.keys())
        if reserved:
            raise bad_request(f"chat_template_kwargs may not set {reserved[0]}; leave it out.", "chat_template_kwargs")
        try:
            text = self._tokenizer.apply_chat_template(
                conversation,
                tools=list[dict[Any, Any] | Callable[..., Any]](tools) if tools else None,
                chat_template=self._template,
                add_generation_prompt=beginning.prompted,
                continue_final_message=beginning.continued,
                tokenize=False,
                **variables,
            )
        except Exception as error:  # a template is somebody's program; whatever it raises is about this conversation
            raise bad_request(
                f"{self._name}'s chat template refuses the conversation ({error}); change its roles, order or fields.",
                "messages",
            ) from error
        return str(text)

    def _check_size(self, text: str, field: str) -> None:
        """Refuse what can't fit the context however it is tokenised, before that takes half a minute."""
        least = len(text) // self._longest_token
        if self._context is not None and least > self._context:
            raise bad_request(
                f"{field} has {len(text)} characters, at least {least} tokens, more than the model's context of "
                f"{self._context}; shorten it.",
                field,
                "context_length_exceeded",
            )

    def _check_ids(self, tokens: list[int], field: str) -> None:
        size = len(self._tokenizer)
        wrong = next((token for token in tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise bad_request(f"{field} has the id {wrong}; the vocabulary ends at {size - 1}.", field)


class _Beginning(NamedTuple):
    """How an answer begins: after a prompt for the model's turn, or in the last message."""

    prompted: bool
    continued: bool


def _beginning(request: ChatRequest | TokenizeRequest) -> _Beginning:
    """Raises ApiError (400) for both at once."""
    continued = request.continue_final_message is True
    prompted = request.add_generation_prompt if request.add_generation_prompt is not None else not continued
    if continued and prompted:
        raise bad_request(
            "continue_final_message and add_generation_prompt exclude each other; set one to false.",
            "continue_final_message",
        )
    return _Beginning(prompted, continued)
