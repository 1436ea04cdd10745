"""Asks the application without a network: the same way through guards, routes and errors as a request over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from starlette.types import ASGIApp

__all__ = ["Reply", "post"]


class Reply(NamedTuple):
    """An answer: its HTTP status, the request's id, and the JSON object it has."""

    status: int
    request_id: str
    body: Any


async def post(app: ASGIApp, path: str, body: dict[str, Any]) -> Reply:
    """One POST of a JSON object; cancelling it gives the request up. The reply is not streamed."""
    content = json.dumps(body).encode()
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())],
        "client": None,
        "server": ("localhost", 80),
    }
    pending = [content]
    status, headers, chunks = 0, dict[bytes, bytes](), list[bytes]()

    async def receive() -> MutableMapping[str, Any]:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await asyncio.Future()  # this client never leaves

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update(message.get("headers", ()))
        else:
            chunks.append(message.get("body", b""))

    await app(scope, receive, send)
    return Reply(status, headers.get(b"x-request-id", b"").decode(), json.loads(b"".join(chunks)))
