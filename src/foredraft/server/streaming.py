"""Server-sent events: one response that streams, and the chunks of chat and plain completions.

An event carries what one engine step added to one choice, which may be several tokens. The order is OpenAI's: for chat
a chunk with the role, then text, then a chunk with the finish reason; after all choices the usage, if wanted, and
[DONE]. What goes wrong after the beginning is sent as an event with an error.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foredraft.server.api_errors import as_api_error
from foredraft.server.tickets import JobDelta

__all__ = ["Chunks", "EventStream", "event_blocks", "sse"]

DONE = b"data: [DONE]\n\n"
ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # json.dumps would make one for every event

logger = logging.getLogger(__name__)


class Chunks(Protocol):
    """Turns what steps add into the chunks of one kind of answer."""

    def step(self, part: JobDelta) -> Iterator[dict[str, Any]]:
        """The chunks for what a step added to a choice."""
        ...

    def last(self) -> Iterator[dict[str, Any]]:
        """The chunks after all choices are done."""
        ...


def sse(value: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + ENCODER.encode(value).encode("utf-8", "replace") + b"\n\n"


async def event_blocks(
    first: list[JobDelta] | None, rest: AsyncIterator[list[JobDelta]], chunks: Chunks
) -> AsyncIterator[bytes]:
    """What goes over the wire, one block per engine step. Never raises: errors become an event."""
    try:
        if first is not None:
            yield _block(first, chunks)
        async for parts in rest:
            yield _block(parts, chunks)
        yield b"".join(sse(chunk) for chunk in chunks.last()) + DONE
    except Exception as error:  # the status is sent already, so whatever goes wrong is told as an event
        known = as_api_error(error)
        if known.status >= 500 and known is not error:
            logger.error("A stream failed", exc_info=error)
        yield sse(known.body) + DONE


def _block(parts: list[JobDelta], chunks: Chunks) -> bytes:
    return b"".join(sse(chunk) for part in parts for chunk in chunks.step(part))


class EventStream(Response):
    """Sends blocks as they come; `on_end` is called however it ends."""

    media_type = "text/event-stream"

    def __init__(self, blocks: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        self._blocks = blocks
        self._on_end = on_end
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for block in self._blocks:
                if block:
                    await send({"type": "http.response.body", "body": block, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            logger.debug("The reader of a stream left")
        finally:
            self._on_end()
