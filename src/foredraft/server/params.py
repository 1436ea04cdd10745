"""From a request's fields to SamplingParams: the server's defaults, what the request sets, and what can't be had.

Nothing is dropped in silence: a known field that has no meaning here is refused with the reason (refused.py), an
unknown one is logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from foredraft.errors import ConfigError
from foredraft.server.api_errors import bad_request, shown
from foredraft.server.asked_form import asked_form
from foredraft.server.asked_tools import tool_use
from foredraft.server.conversation import text_of
from foredraft.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from foredraft.server.refused import refuse_known
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

MOST_TOKENS = 10**7
"""No model's context holds as many."""

TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,17}")
"""One way to write each, so that no two keys mean the same token."""

logger = logging.getLogger(__name__)


class Defaults(NamedTuple):
    """What a request leaves open. `values` has SamplingParams' names; `max_tokens` may be missing."""

    values: Mapping[str, Any]
    max_logprobs: int = 20


def completion_params(request: CompletionRequest, defaults: Defaults) -> SamplingParams:
    """Raises ApiError (400) for what can't be had. `max_tokens` 0, which needs echo, is left to the caller."""
    _check(request)
    if request.suffix:
        refuse_known({"suffix": request.suffix})
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
    wanted = request.max_tokens
    if (newer := request.max_completion_tokens) is not None:
        if newer < 1:
            raise bad_request(f"max_completion_tokens is {newer}; give at least 1.", "max_completion_tokens")
        wanted = newer
    if wanted is None:
        wanted = defaults.values.get("max_tokens")
    return _params(request, defaults, wanted, (alternatives or 0) if request.logprobs else None)


def _params(
    request: GenerationRequest, defaults: Defaults, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    values = dict(defaults.values)
    values |= {name: value for name in PLAIN_FIELDS if (value := getattr(request, name)) is not None}
    values |= {"max_tokens": max_tokens, "logprobs": logprobs, "logit_bias": _logit_bias(request)}
    if request.prediction is not None:
        values["prediction"] = text_of(request.prediction.content, "prediction.content") or None
    values["structured"] = asked_form(request)
    try:
        return SamplingParams(**values)
    except ConfigError as error:
        name = str(error).split(maxsplit=1)[0]
        raise bad_request(str(error), name if name in type(request).model_fields else None) from error


def _check(request: GenerationRequest) -> None:
    """What SamplingParams can't check, or not as clearly."""
    _check_known(request)
    if request.stream_options is not None:
        if not request.stream:
            raise bad_request("stream_options needs stream to be true.", "stream_options")
        if request.stream_options.continuous_usage_stats:
            field = "stream_options.continuous_usage_stats"
            raise bad_request(f"{field} is not supported; use include_usage, which counts at the end.", field)
    if request.prompt_logprobs is not None and request.stream:
        raise bad_request("prompt_logprobs is not part of streams; ask for a whole answer.", "prompt_logprobs")
    if request.min_tokens is not None and request.min_tokens > MOST_TOKENS:
        raise bad_request(f"min_tokens is {request.min_tokens}; no context holds as many, so lower it.", "min_tokens")
    if request.cache_salt == "":
        raise bad_request(
            "cache_salt is empty; give a text that only this caller knows, or leave it out.", "cache_salt"
        )


def _check_known(request: GenerationRequest) -> None:
    """Fields that others know, and values that can't be had."""
    unknown = request.unknown_fields()
    refuse_known(unknown)
    if unknown:
        logger.debug("Fields without meaning here: %s", ", ".join(sorted(unknown)))
    best_of = getattr(request, "best_of", None)  # of completions; chats may have it among the unknown
    if best_of is not None and best_of != (request.n or 1):
        raise bad_request(
            f"best_of is {shown(best_of)}; every answer is drawn once, so it must equal n, which is {request.n or 1}.",
            "best_of",
        )
    if request.priority:
        raise bad_request(
            f"priority is {request.priority}; requests are served in order, so leave it at 0.", "priority"
        )


def _count(name: str, count: int | None, defaults: Defaults) -> int | None:
    if count is not None and not 0 <= count <= defaults.max_logprobs:
        raise bad_request(f"{name} is {count}; give a number from 0 to {defaults.max_logprobs}.", name)
    return count


def _logit_bias(request: GenerationRequest) -> dict[int, float] | None:
    if not request.logit_bias:
        return None
    wrong = next((token for token in request.logit_bias if not TOKEN_ID.fullmatch(token)), None)
    if wrong is not None:
        raise bad_request(f'logit_bias has the key {shown(wrong)}; keys are token ids, like "7".', "logit_bias")
    return {int(token): bias for token, bias in request.logit_bias.items()}
