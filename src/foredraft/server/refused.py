"""Fields that other servers know and that can't be had here, or not at this address: refused with the reason, since an
answer without them would not be what was asked for.

Fields that nobody knows are accepted, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foredraft.server.api_errors import bad_request

__all__ = ["refuse_known"]

FORM = "use structured_outputs"
LENGTH = "use max_tokens"
MEDIA = "prompts are text"
CHAT = "it belongs to /v1/chat/completions"
COMPLETIONS = "it belongs to /v1/completions"
BEAMS = "there is no beam search"
REASONS: Mapping[str, str] = {
    "add_generation_prompt": CHAT,
    "add_special_tokens": "the chat template writes special tokens",
    "allowed_token_ids": "use structured_outputs or logit_bias",
    "audio": "answers are text",
    "bad_words": "use logit_bias",
    "chat_template": "a template is a program; the server's own is used (--chat-template)",
    "chat_template_kwargs": CHAT,
    "continue_final_message": CHAT,
    "documents": "put them into a message",
    "ebnf": FORM,
    "echo": COMPLETIONS,
    "function_call": "use tool_choice",
    "functions": "use tools",
    "grammar": FORM,
    "guided_decoding_backend": "there is only one",
    "guided_whitespace_pattern": "JSON is written on one line, with single spaces",
    "json_schema": FORM,
    "kv_transfer_params": "the cache stays with this server",
    "length_penalty": BEAMS,
    "logits_processors": "they are programs",
    "max_completion_tokens": LENGTH,
    "max_new_tokens": LENGTH,
    "media_io_kwargs": MEDIA,
    "messages": CHAT,
    "mm_processor_kwargs": MEDIA,
    "modalities": "answers are text",
    "n_predict": LENGTH,
    "prompt": COMPLETIONS,
    "prompt_embeds": "prompts are text or token ids",
    "reasoning_effort": "say what the chat template knows in chat_template_kwargs",
    "regex": FORM,
    "repeat_penalty": "use repetition_penalty",
    "return_tokens_as_token_ids": "use return_token_ids",
    "service_tier": "requests are served in order",
    "spaces_between_special_tokens": "the tokenizer decides",
    "store": "answers are not kept",
    "suffix": "the model continues texts, it does not fill gaps",
    "thinking_token_budget": "use max_tokens",
    "tool_choice": CHAT,
    "tools": CHAT,
    "top_logprobs": "logprobs is their number here",
    "truncate_prompt_tokens": "shorten the prompt instead",
    "use_beam_search": BEAMS,
    "verbosity": "say in a message how long the answer should be",
    "vllm_xargs": "no extension is installed",
    "web_search_options": "the server has no access to the web",
}
NOTHING: tuple[Any, ...] = (None, False, "", [], {})
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "length_penalty": (None, 1),
    "modalities": (None, ["text"]),
    "n_predict": (None, -1),
    "repeat_penalty": (None, 1),
    "service_tier": (None, "auto", "default"),
    "spaces_between_special_tokens": (None, True),
    "tool_choice": (None, "none", "auto"),
    "truncate_prompt_tokens": (None, -1),
    "verbosity": (None, "medium"),
}
"""Values that ask for what happens anyway; NOTHING for all others."""


def refuse_known(fields: Mapping[str, Any]) -> None:
    """Raises ApiError (400) for one of the fields that a request has beside its own."""
    for name in REASONS.keys() & fields.keys():
        if fields[name] not in NEUTRAL.get(name, NOTHING):
            raise bad_request(f"{name} is not supported here: {REASONS[name]}.", name)
