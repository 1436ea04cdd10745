"""What chat needs from a parser of tool calls, and the one that finds none."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

__all__ = ["MessagePart", "NoTools", "ToolReader"]


class MessagePart(NamedTuple):
    """Text that is certainly content, and pieces of tool calls in OpenAI's streaming shape."""

    content: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()


class ToolReader(Protocol):
    """Reads one choice's text as it comes, and holds back what may yet become a tool call."""

    def push(self, text: str) -> MessagePart:
        """More of the text."""
        ...

    def finish(self) -> MessagePart:
        """The text is over: whatever was held back."""
        ...


class NoTools:
    """All text is content."""

    def push(self, text: str) -> MessagePart:
        return MessagePart(text)

    def finish(self) -> MessagePart:
        return MessagePart()
