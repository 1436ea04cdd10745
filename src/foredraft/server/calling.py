"""A request's tools, brought together: the conversation, the sampling and the reader of its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from foredraft.server.protocol import ToolUse
from foredraft.server.tool_calls import ToolCallStream
from foredraft.server.tool_seam import NoTools, ToolReader
from foredraft.server.tools import find_format, marker_token, tool_structure
from foredraft.types import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Calling", "prepare_calls"]


class Calling(NamedTuple):
    """How to decode an answer that may call tools, and a new reader for each choice."""

    params: SamplingParams
    open_tools: Callable[[], ToolReader]


def prepare_calls(
    use: ToolUse | None, params: SamplingParams, template: str, tokenizer: PreTrainedTokenizerBase
) -> Calling:
    """What tools change about a request with these params; nothing without tools or with `tool_choice` "none".

    template  the chat template that the conversation was written with

    Raises ApiError (400) if the form that is asked for and tools exclude each other.
    """
    if use is None or use.choice == "none":
        return Calling(params, NoTools)
    form = find_format(template)
    marker = marker_token(tokenizer, form)
    changed = replace(
        params,
        structured=tool_structure(use, form, marker, params.structured),
        skip_special_tokens=params.skip_special_tokens and marker is None,  # the marker must be seen to be read
    )
    names = frozenset(str(tool["function"]["name"]) for tool in use.tools)
    return Calling(changed, partial(ToolCallStream, form, names=names, parallel=use.parallel))
