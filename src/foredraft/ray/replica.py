"""A replica: one engine worker and the application around it, in a process of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

from foredraft.errors import ForedraftError
from foredraft.ray.forwarding import ForwardedRequest
from foredraft.server.model_spec import ModelSpec
from foredraft.server.settings import PlanPage, ServerSettings

__all__ = ["EngineReplica"]

API_KEY_VARIABLE = "FOREDRAFT_API_KEY"

Message = MutableMapping[str, Any]


class EngineReplica:
    """What Ray Serve makes one of for each replica. It is ready when its model is loaded."""

    async def __init__(self, spec: ModelSpec, settings: ServerSettings) -> None:  # type: ignore[misc]
        from ray import serve

        from foredraft.page import page_directory, page_hash
        from foredraft.server.app import create_app, create_service
        from foredraft.server.run import configure_logging

        configure_logging()
        secret = os.environ.get(API_KEY_VARIABLE)  # of the cluster's own secrets, rather than in a YAML file
        keys = settings.api_keys or ((secret,) if secret else ())
        settings = replace(settings, api_keys=keys, plan=PlanPage(page_directory(), page_hash))
        self._service = create_service(
            spec.load, settings, method=spec.method, engine=serve.get_replica_context().replica_id.unique_id
        )
        self._app = create_app(self._service)
        self._lifespan = AsyncExitStack()
        await self._lifespan.enter_async_context(self._app.router.lifespan_context(self._app))
        try:
            await asyncio.to_thread(self._service.worker.wait_until_settled)
        except ForedraftError as error:
            raise RuntimeError(str(error)) from error  # of a type that every Python can unpickle

    async def answer(self, request: ForwardedRequest) -> AsyncIterator[Message]:
        """The ASGI messages of the answer, as they come. Closing this, or cancelling it, is what a client's leaving is
        elsewhere: the work is given up.
        """
        pending: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]
        messages: asyncio.Queue[Message | None] = asyncio.Queue()

        async def receive() -> Message:
            if pending:
                return pending.pop()
            return await asyncio.Future()

        async def send(message: Message) -> None:
            messages.put_nowait(message)

        async def call() -> None:
            try:
                await self._app(request.scope(), receive, send)
            finally:
                messages.put_nowait(None)

        task = asyncio.create_task(call())
        try:
            while (message := await messages.get()) is not None:
                yield message
            await task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica that raises."""
        worker = self._service.worker
        if not worker.ready:
            raise RuntimeError(f"The engine is not able to decode (it is {worker.state}).")

    async def metrics(self) -> bytes:
        """This replica's metrics as Prometheus reads them; its id is their `engine` label."""
        return self._service.metrics.render()

    async def pid(self) -> int:
        """This replica's process."""
        return os.getpid()

    async def open_sequences(self) -> int:
        """Sequences that this replica decodes or that wait in it."""
        return self._service.worker.open_sequences

    async def __del__(self) -> None:
        """Called by Ray Serve when the replica's last request is done."""
        await self._lifespan.aclose()
