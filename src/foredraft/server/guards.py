"""What stands between the network and the routes, as plain ASGI layers: request id and access log, failures, keys,
HEAD, body size.

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

from foredraft.server.api_errors import ApiError, as_api_error, shown

__all__ = [
    "NOTE",
    "REQUEST_ID",
    "BodyLimit",
    "FailureAnswer",
    "HeadAnswer",
    "KeyCheck",
    "Note",
    "RequestLog",
    "local_path",
]

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
    """Outermost: gives every request an id and writes the access log."""

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


@dataclass(slots=True)
class FailureAnswer:
    """Answers errors that nobody else caught, in OpenAI's shape; what stands outside, CORS for one, adds to that."""

    app: App

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        except Exception as error:
            if scope["type"] != "http":
                raise
            logger.exception("Request %s failed", scope[NOTE].request_id)
            if not begun:
                await answer_error(as_api_error(error), send)


@dataclass(slots=True)
class HeadAnswer:
    """Answers HEAD like GET, without the body."""

    app: App

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self.app({**scope, "method": "GET"}, receive, send_head)


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
    """Reads the whole body before anything else happens, up to `limit` bytes. Compressed ones are refused: what they
    become would have to be limited, too.
    """

    app: App
    limit: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        encoding = _header(scope, b"content-encoding").decode("latin-1")
        if encoding.lower() not in ("", "identity"):
            message = f"The content encoding is {shown(encoding)}; send the body as it is."
            await answer_error(ApiError(415, message), send, close=True)
            return
        announced = _header(scope, b"content-length")
        if announced.isdigit() and int(announced[:20]) > self.limit:
            await self._refuse(send)
            return
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            chunks.append(part.get("body", b""))
            size += len(chunks[-1])
            more = part.get("more_body", False)
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
