"""What stands between the network and the routes, as plain ASGI layers: request id and access log, keys, body size.

The access log has one JSON object per request, with counts and times and never any text of a prompt or an answer.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from foredraft.server.api_errors import ApiError, as_api_error

__all__ = ["NOTE", "REQUEST_ID", "BodyLimit", "KeyCheck", "Note", "RequestLog", "local_path"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

NOTE = "foredraft.note"
"""The key of a request's `Note` in its ASGI scope."""
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
OPEN = {"/", "/health", "/ping", "/load", "/version", "/metrics", "/docs", "/openapi.json", "/plan"}
OPEN_BELOW = ("/status.", "/plan/")
"""What needs no key; everything else does, known or not."""

access = logging.getLogger("foredraft.access")
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Note:
    """What the access log tells about a request."""

    request_id: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    streamed: bool = False


@dataclass(slots=True)
class RequestLog:
    """Outermost: gives every request an id, answers errors that nobody else caught, and writes the access log."""

    app: App
    rejected: Callable[[int], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        note = scope[NOTE] = Note(_request_id(scope))
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", note.request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_marked)
        except Exception as error:  # the outermost guard: whatever went wrong is answered in OpenAI's shape
            logger.exception("Request %s failed", note.request_id)
            if not status:
                await answer_error(as_api_error(error), send_marked)
        finally:
            if status >= 400:
                self.rejected(status)
            entry = {
                "request_id": note.request_id,
                "client": (scope.get("client") or ("",))[0],
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "ms": round((time.perf_counter() - began) * 1e3, 1),
                "streamed": note.streamed,
                "prompt_tokens": note.prompt_tokens,
                "completion_tokens": note.completion_tokens,
            }
            access.info(json.dumps({name: value for name, value in entry.items() if value is not None}))


class KeyCheck:
    """Lets requests through only with one of the keys, except to what is open to all. The comparison takes the same
    time for any key.
    """

    def __init__(self, app: App, keys: tuple[str, ...]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope) or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        message = "The API key is missing or wrong; send the header Authorization: Bearer KEY."
        await answer_error(ApiError(401, message, code="invalid_api_key"), send)

    def _allowed(self, scope: Scope) -> bool:
        given = _header(scope, b"authorization")
        scheme, _, key = given.partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them, always
        return any(matches)


@dataclass(slots=True)
class BodyLimit:
    """Reads the whole body before anything else happens, up to `limit` bytes."""

    app: App
    limit: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = _header(scope, b"content-length")
        if announced.isdigit() and int(announced) > self.limit:
            await self._refuse(send)
            return
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            more = message.get("more_body", False)
            if size > self.limit:
                await self._refuse(send)
                return
        pending: list[Message] = [{"type": "http.request", "body": b"".join(chunks), "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self.app(scope, replay, send)

    async def _refuse(self, send: Send) -> None:
        message = f"The request body has more than {self.limit} bytes; send less, or serve with --max-body-bytes."
        error = ApiError(413, message, code="request_too_large")
        await answer_error(error, send, close=True)


async def answer_error(error: ApiError, send: Send, *, close: bool = False) -> None:
    """Send an error as the whole response; `close` ends the connection, whose body was not read."""
    headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    headers.append((b"content-length", str(len(error.content)).encode()))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.content})


def _request_id(scope: Scope) -> str:
    """The client's own, if it is harmless; a new one otherwise."""
    given = _header(scope, b"x-request-id").decode("ascii", "replace")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def local_path(scope: Scope) -> str:
    """The path without the prefix that a proxy's path has."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(prefix) if prefix and path.startswith(f"{prefix}/") else path


def _is_open(scope: Scope) -> bool:
    """Whether the path needs no key."""
    path = local_path(scope)
    return path in OPEN or path.startswith(OPEN_BELOW)


def _header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


def _digest(key: bytes) -> bytes:
    """Of equal length for all keys, so that comparing them doesn't tell theirs."""
    return hashlib.sha256(key).digest()
