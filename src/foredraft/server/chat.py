"""Answers of /v1/chat/completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from foredraft.engine.outputs import CompletionOutput
from foredraft.server.answers import Identity, chat_logprobs, prompt_logprobs
from foredraft.server.tickets import JobDelta, Result
from foredraft.server.tool_seam import MessagePart, NoTools, ToolReader

__all__ = ["ChatAnswer"]


@dataclass(slots=True)
class ChatAnswer:
    """One request's answer, being written.

    logprobs    alternatives per token; None: no log-probabilities
    token_ids   add vLLM's token ids
    usage_null  streams: every chunk has "usage": null, since a usage chunk will come
    totals      what the last chunk or the whole answer ends with: usage and metrics
    open_tools  a new reader of tool calls for a choice
    """

    identity: Identity
    logprobs: int | None
    token_ids: bool
    usage_null: bool
    prompt: Sequence[int]
    totals: Callable[[], dict[str, Any]]
    open_tools: Callable[[], ToolReader] = NoTools
    _readers: dict[int, ToolReader] = field(default_factory=dict)
    _called: set[int] = field(default_factory=set)

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The answer in one object."""
        [result] = results
        body = self.identity.envelope([self._choice(choice) for choice in result.output.outputs])
        body |= self.totals()
        if result.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(result.prompt_logprobs)
        if self.token_ids:
            body["prompt_token_ids"] = list(self.prompt)
        return body

    def step(self, part: JobDelta) -> Iterator[dict[str, Any]]:
        """Role first, then text, then the end."""
        delta = part.delta
        if delta.index not in self._readers:
            self._readers[delta.index] = self.open_tools()
            opening = self._chunk(delta.index, {"role": "assistant", "content": ""})
            if self.token_ids:
                opening["prompt_token_ids"] = list(self.prompt)
            yield opening
        reader = self._readers[delta.index]
        ended = delta.finish_reason is not None
        pieces = [reader.push(delta.text)] + ([reader.finish()] if ended else [])
        content = "".join(piece.content for piece in pieces)
        calls = [call for piece in pieces for call in piece.tool_calls]
        if calls:
            self._called.add(delta.index)
        logprobs = None
        if self.logprobs is not None:
            logprobs = chat_logprobs(delta.token_ids, delta.logprobs, self.logprobs)
        if content or calls or (delta.token_ids and (logprobs or self.token_ids)):
            message: dict[str, Any] = {"content": content} if content or not calls else {}
            if calls:
                message["tool_calls"] = calls
            chunk = self._chunk(delta.index, message, logprobs=logprobs)
            if self.token_ids:
                chunk["choices"][0]["token_ids"] = delta.token_ids
            yield chunk
        if ended:
            reason = self._finish_reason(delta.index, delta.finish_reason)
            yield self._chunk(delta.index, {}, finish_reason=reason, stop_reason=delta.stop_reason)

    def last(self) -> Iterator[dict[str, Any]]:
        """The usage chunk."""
        if self.usage_null:
            yield {**self.identity.envelope([]), **self.totals()}

    def _chunk(self, index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        chunk = self.identity.envelope([choice])
        if self.usage_null:
            chunk["usage"] = None
        return chunk

    def _choice(self, choice: CompletionOutput) -> dict[str, Any]:
        reader = self.open_tools()
        parts = [reader.push(choice.text), reader.finish()]
        message: dict[str, Any] = {"role": "assistant", "refusal": None}
        content = "".join(part.content for part in parts)
        calls = _joined(parts)
        message["content"] = content if content or not calls else None
        if calls:
            message["tool_calls"] = calls
            self._called.add(choice.index)
        result: dict[str, Any] = {
            "index": choice.index,
            "message": message,
            "logprobs": None,
            "finish_reason": self._finish_reason(choice.index, choice.finish_reason),
            "stop_reason": choice.stop_reason,
        }
        if self.logprobs is not None:
            result["logprobs"] = chat_logprobs(choice.token_ids, choice.logprobs, self.logprobs)
        if self.token_ids:
            result["token_ids"] = choice.token_ids
        return result

    def _finish_reason(self, index: int, reason: str | None) -> str | None:
        return "tool_calls" if reason == "stop" and index in self._called else reason


def _joined(parts: list[MessagePart]) -> list[dict[str, Any]]:
    """Whole tool calls from their streamed pieces."""
    calls: dict[int, dict[str, Any]] = {}
    for piece in (call for part in parts for call in part.tool_calls):
        place = piece.get("index", len(calls))
        if place not in calls:
            calls[place] = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call, function = calls[place], piece.get("function", {})
        call["id"] = piece.get("id") or call["id"]
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""
    return [calls[place] for place in sorted(calls)]
