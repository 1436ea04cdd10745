"""A chat template cut open where the user speaks, so that a model can speak for the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from foredraft.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["UserTurn", "chat_prompt", "user_turn"]

MARK = "⟪message⟫"
LONGEST_STOP = 24


class UserTurn(NamedTuple):
    """`before` [tokens] leads up to the user's message; one of `stop_ids` or of the `stop` texts ends it."""

    before: list[int]
    stop_ids: tuple[int, ...]
    stop: tuple[str, ...]


def user_turn(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], opening: str, eos: tuple[int, ...]
) -> UserTurn:
    """Where a user who has said `opening` goes on, after `messages`.

    Raises ConfigError if the template can't be cut.
    """
    rendered = _render(tokenizer, [*messages, {"role": "user", "content": MARK}])
    before, found, after = rendered.partition(MARK)
    if not found:
        raise ConfigError("the chat template changes the user's message, so none can be invented; use --prompts FILE")
    ending = list(tokenizer.encode(after.lstrip(), add_special_tokens=False))
    special = set(tokenizer.all_special_ids)
    ids = {*eos, *(ending[:1] if ending and ending[0] in special else ())}
    text = after.strip()[:LONGEST_STOP]
    own = (text,) if text and not (ending and ending[0] in special) else ()
    return UserTurn(list(tokenizer.encode(before + opening, add_special_tokens=False)), tuple(sorted(ids)), own)


def chat_prompt(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> list[int]:
    """The conversation up to where the model answers."""
    return list(tokenizer.encode(_render(tokenizer, messages), add_special_tokens=False))


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> str:
    if not tokenizer.chat_template:
        raise ConfigError(
            "the model has no chat template, so no user can be invented; give prompts with --prompts FILE"
        )
    from jinja2 import TemplateError

    try:
        rendered = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    except TemplateError as error:
        raise ConfigError(f"the chat template refuses a conversation ({error}); use --prompts FILE") from error
    return str(rendered)
