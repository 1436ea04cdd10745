"""From a request's fields to SamplingParams: the server's defaults, what the request sets, and what can't be had.

Nothing is dropped in silence: a known field that has no meaning here is refused with the reason, an unknown one is
logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from foredraft.errors import ConfigError
from foredraft.server.api_errors import bad_request
from foredraft.server.protocol import ChatRequest, CompletionRequest, GenerationRequest, ToolUse
from foredraft.types import SamplingParams

__all__ = ["Defaults", "chat_params", "completion_params", "tool_use"]

PLAIN_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "cache_salt",
    "speculative",
    "num_speculative_tokens",
)
COMPLETION_TOKENS = 16
"""OpenAI's default for plain completions; chat goes on to the end of the context."""

REFUSED: Mapping[str, str] = {
    "allowed_token_ids": "use structured_outputs or logit_bias",
    "audio": "answers are text",
    "bad_words": "use logit_bias",
    "best_of": "every answer is drawn once, so it must equal n",
    "chat_template": "a template is a program; the server's own is used (--chat-template)",
    "documents": "put them into a message",
    "echo": "it belongs to /v1/completions",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "length_penalty": "there is no beam search",
    "logits_processors": "they are programs",
    "prompt_embeds": "prompts are text or token ids",
    "suffix": "the model continues texts, it does not fill gaps",
    "truncate_prompt_tokens": "shorten the prompt instead",
    "use_beam_search": "there is no beam search",
    "web_search_options": "the server has no access to the web",
}
NEUTRAL: Mapping[str, tuple[Any, ...]] = {"length_penalty": (1, 1.0), "best_of": ()}

logger = logging.getLogger(__name__)


class Defaults(NamedTuple):
    """What a request leaves open. `values` has SamplingParams' names; `max_tokens` may be missing."""

    values: Mapping[str, Any]
    max_logprobs: int = 20


def completion_params(request: CompletionRequest, defaults: Defaults) -> SamplingParams:
    """Raises ApiError (400) for what can't be had. `max_tokens` 0, which needs echo, is left to the caller."""
    _check(request)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise bad_request(f"best_of is {request.best_of}; {REFUSED['best_of']}.", "best_of")
    if request.suffix:
        raise bad_request(f"suffix is not supported: {REFUSED['suffix']}.", "suffix")
    default = min(COMPLETION_TOKENS, defaults.values.get("max_tokens", COMPLETION_TOKENS))
    wanted = default if request.max_tokens is None else request.max_tokens
    if wanted == 0:
        if not request.echo:
            raise bad_request("max_tokens is 0; give at least 1, or set echo to get the prompt back.", "max_tokens")
        wanted = 1
    return _params(request, defaults, wanted, _count("logprobs", request.logprobs, defaults))


def chat_params(request: ChatRequest, defaults: Defaults) -> SamplingParams:
    """The same for a conversation."""
    _check(request)
    if request.top_logprobs and not request.logprobs:
        raise bad_request(f"top_logprobs is {request.top_logprobs}; set logprobs to true, too.", "top_logprobs")
    alternatives = _count("top_logprobs", request.top_logprobs, defaults)
    wanted = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    if wanted is None:
        wanted = defaults.values.get("max_tokens")
    return _params(request, defaults, wanted, (alternatives or 0) if request.logprobs else None)


def tool_use(request: ChatRequest) -> ToolUse | None:
    """The request's tools. Raises ApiError (400)."""
    try:
        return request.tool_use()
    except ValueError as error:
        raise bad_request(f"{error}.", "tools") from error


def _params(
    request: GenerationRequest, defaults: Defaults, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    values = dict(defaults.values)
    values |= {name: value for name in PLAIN_FIELDS if (value := getattr(request, name)) is not None}
    values |= {"max_tokens": max_tokens, "logprobs": logprobs, "logit_bias": _logit_bias(request)}
    if request.prediction is not None:
        values["prediction"] = request.prediction.text or None
    try:
        values["structured"] = request.structured()
    except ValueError as error:
        raise bad_request(f"{error}.", "response_format") from error
    if request.cache_salt == "":
        raise bad_request(
            "cache_salt is empty; give a text that only this caller knows, or leave it out.", "cache_salt"
        )
    try:
        return SamplingParams(**values)
    except ConfigError as error:
        name = str(error).split(maxsplit=1)[0]
        raise bad_request(str(error), name if name in type(request).model_fields else None) from error


def _check(request: GenerationRequest) -> None:
    unknown = request.unknown_fields()
    for name, value in unknown.items():
        if name in REFUSED and value not in (None, False, "", *NEUTRAL.get(name, ())) and value != []:
            raise bad_request(f"{name} is not supported: {REFUSED[name]}.", name)
    if unknown:
        logger.debug("Fields without meaning here: %s", ", ".join(sorted(unknown)))
    if request.priority:
        raise bad_request(
            f"priority is {request.priority}; requests are served in order, so leave it at 0.", "priority"
        )
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options needs stream to be true.", "stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise bad_request("prompt_logprobs is not part of streams; ask for a whole answer.", "prompt_logprobs")


def _count(name: str, count: int | None, defaults: Defaults) -> int | None:
    if count is not None and not 0 <= count <= defaults.max_logprobs:
        raise bad_request(f"{name} is {count}; give a number from 0 to {defaults.max_logprobs}.", name)
    return count


def _logit_bias(request: GenerationRequest) -> dict[int, float] | None:
    if not request.logit_bias:
        return None
    wrong = next((token for token in request.logit_bias if not (token.isascii() and token.isdecimal())), None)
    if wrong is not None:
        raise bad_request(f"logit_bias has the key {wrong!r}; keys are token ids.", "logit_bias")
    return {int(token): bias for token, bias in request.logit_bias.items()}
