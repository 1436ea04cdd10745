"""What the API's document (/openapi.json and /docs) says about answers, for the routes."""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic import TypeAdapter

from foredraft.server.shapes import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    Error,
    Health,
)

__all__ = ["CHAT", "CHUNKS", "COMPLETION", "ERRORS", "HEALTH", "METRICS"]

Responses: TypeAlias = dict[int | str, dict[str, Any]]


def _answer(model: type[Any], chunk: type[Any]) -> Responses:
    content = {"text/event-stream": _events(chunk)}
    return {200: {"model": model, "description": "The answer, or with stream its chunks.", "content": content}}


def _events(chunk: type[Any]) -> dict[str, Any]:
    """A stream's events: chunks, or an error, and [DONE] at the end."""
    json = {"anyOf": [{"$ref": REF.format(model=model.__name__)} for model in (chunk, Error)]}
    data = {"anyOf": [{"const": "[DONE]"}, {"contentMediaType": "application/json", "contentSchema": json}]}
    return {"schema": {"type": "object", "properties": {"data": {"type": "string", **data}}, "required": ["data"]}}


REF = "#/components/schemas/{model}"
CHUNKS: dict[str, Any] = TypeAdapter.json_schemas(
    [(model, "serialization", TypeAdapter(model)) for model in (ChatCompletionChunk, CompletionChunk)],
    ref_template=REF,
)[1]["$defs"]
"""What the framework doesn't collect by itself, since it is not the body of an answer."""

ERRORS: Responses = {
    "4XX": {"model": Error, "description": "400, 401, 404, 413, 415 or 429 (with Retry-After): the request."},
    "5XX": {"model": Error, "description": "500, 503 (with Retry-After) or 504: the server."},
}
"""In place of the framework's own 422, which this server doesn't use."""

CHAT = _answer(ChatCompletion, ChatCompletionChunk)
COMPLETION = _answer(Completion, CompletionChunk)
HEALTH: Responses = {
    200: {"model": Health, "description": "Ready."},
    503: {"model": Health, "description": "Loading, draining, stopped or failing; with Retry-After."},
}
METRICS: Responses = {
    200: {"description": "Prometheus's text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
