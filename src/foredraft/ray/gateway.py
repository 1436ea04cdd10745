"""The gateway: takes HTTP requests, hands each to an engine replica, and passes the answer on as it comes.

If a replica dies, its requests go to another one, unless the client has got a part of the answer already: then the
stream ends with an error event that says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from foredraft.ray.forwarding import ForwardedRequest, forwarded
from foredraft.ray.merged_metrics import merged
from foredraft.server.api_errors import ApiError
from foredraft.server.guards import answer_error, local_path
from foredraft.server.metrics import CONTENT_TYPE
from foredraft.server.streaming import DONE, sse

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

__all__ = ["Gateway"]

ATTEMPTS = 3
RETRY_SECONDS = 1
METRICS_SECONDS = 5
DIED = "The replica that decoded this request died{}; send it again."

logger = logging.getLogger(__name__)


class Gateway:
    """What Ray Serve sends HTTP requests to."""

    def __init__(self, engine: DeploymentHandle[Any], max_body_bytes: int) -> None:
        self._replicas = engine
        self._engine = engine.options(method_name="answer", stream=True)
        self._limit = max_body_bytes

    async def __call__(self, request: Request) -> Response:
        if request.method == "GET" and local_path(request.scope) == "/metrics":
            return await self._metrics()
        chunks: list[bytes] = []
        size = 0
        async for chunk in request.stream():
            chunks.append(chunk)
            size += len(chunk)
            if size > self._limit:
                message = f"The request body has more than {self._limit} bytes; send less, or raise max_body_bytes."
                error = ApiError(413, message, code="request_too_large")
                return Response(error.content, error.status, error.headers)
        return RelayedAnswer(self._engine, forwarded(request.scope, b"".join(chunks)))

    async def _metrics(self) -> Response:
        """Those of all replicas that answer in time."""
        asked: Any = self._replicas.broadcast("metrics")
        pages = await asked.results_async(timeout_s=METRICS_SECONDS, return_exceptions=True)
        return Response(merged(page for page in pages if isinstance(page, bytes)), media_type=CONTENT_TYPE)


class RelayedAnswer(Response):
    """The answer of a replica, or of the next one if that dies before anything was sent."""

    def __init__(self, engine: Any, request: ForwardedRequest) -> None:
        super().__init__()
        self._engine = engine
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            relay = _Relay(send)
            try:
                await relay.run(self._engine.remote(self._request))
                return
            except RayActorError as error:
                logger.warning("A replica died with a request (attempt %d): %s", attempt, str(error).partition("\n")[0])
                if relay.begun:
                    await relay.break_off()
                    return
            except BackPressureError:
                message = "All replicas are busy and their queues are full; try again soon."
                return await answer_error(ApiError(429, message, code="queue_full", retry_after=RETRY_SECONDS), send)
            except DeploymentUnavailableError:
                message = "No replica is able to serve; try again later."
                return await answer_error(ApiError(503, message, retry_after=RETRY_SECONDS), send)
        message = DIED.format(f", and so did the next {ATTEMPTS - 1}")
        await answer_error(ApiError(503, message, code="replica_died", retry_after=RETRY_SECONDS), send)


class _Relay:
    """Passes messages on, the head of the answer only together with the first of its body."""

    def __init__(self, send: Send) -> None:
        self.begun = False
        self._send = send
        self._head: Message | None = None
        self._streams = False

    async def run(self, messages: Any) -> None:
        """Until the answer's end; cancels the replica's work if this is cancelled or the client can't be reached."""
        try:
            async for message in messages:
                await self._pass(message)
        except BaseException:
            messages.cancel()
            raise

    async def _pass(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            kind = dict(message["headers"]).get(b"content-type", b"")
            self._streams = kind.startswith(b"text/event-stream")
            return
        if self._head is not None:
            head, self._head = self._head, None
            self.begun = True
            await self._send(head)
        await self._send(message)

    async def break_off(self) -> None:
        """End an answer of which the client has a part."""
        error = ApiError(502, DIED.format(" in the middle of the answer"), code="replica_died")
        body = sse(error.body) + DONE if self._streams else b""
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
