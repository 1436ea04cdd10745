"""The application: routes, errors in OpenAI's shape, and the guards around them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from foredraft import __version__
from foredraft.engine.llm import LLM
from foredraft.errors import ForedraftError
from foredraft.server.activity import Activity
from foredraft.server.api_errors import ApiError, as_api_error
from foredraft.server.described import CHUNKS
from foredraft.server.guards import BodyLimit, FailureAnswer, HeadAnswer, KeyCheck, RequestLog
from foredraft.server.metrics import Metrics
from foredraft.server.observer import Observer
from foredraft.server.pages import page_routes
from foredraft.server.routes import generation_routes
from foredraft.server.service import Service
from foredraft.server.settings import ServerSettings
from foredraft.server.tracing import RequestTraces
from foredraft.server.validation import from_validation, wrong_content_type
from foredraft.server.worker import EngineWorker

__all__ = ["create_app", "create_service"]

LOG_SECONDS = 10.0

stats = logging.getLogger("foredraft.stats")


def create_service(
    load: Callable[[], LLM], settings: ServerSettings, *, method: str = "off", engine: str = "0"
) -> Service:
    """A service whose model is loaded by `load`, in the engine's thread, once the application starts. `engine` is its
    label in the metrics.

    Raises ConfigError if requests are to be traced and can't be.
    """
    model, endpoint = settings.model_names[0], settings.otlp_traces_endpoint
    traces = None if endpoint is None else RequestTraces.sent_to(endpoint, model, method)
    metrics = Metrics(model, settings.metrics_namespace, method, engine)
    activity = Activity(method)
    worker = EngineWorker(load, Observer(metrics, activity), max_queue=settings.max_queue)
    return Service(settings, worker, metrics, activity, traces=traces)


def create_app(service: Service) -> FastAPI:
    """The ASGI application of a service; it starts the engine's thread and stops it."""
    settings = service.settings

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        logger = asyncio.create_task(_log_stats(service.activity)) if settings.log_stats else None
        yield
        if logger is not None:
            logger.cancel()
            with suppress(asyncio.CancelledError):
                await logger
        await asyncio.to_thread(service.close)

    app = _Application(title="foredraft", version=__version__, lifespan=lifespan)
    app.include_router(generation_routes(service))
    app.include_router(page_routes(service))
    if settings.plan is not None:
        app.mount("/plan", StaticFiles(directory=settings.plan.folder, html=True))
    app.add_exception_handler(ApiError, _answer)
    app.add_exception_handler(ForedraftError, _answer)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    app.add_middleware(HeadAnswer)
    if settings.api_keys:
        app.add_middleware(KeyCheck, keys=settings.api_keys)
    app.add_middleware(FailureAnswer)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.allowed_origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(RequestLog, rejected=service.metrics.rejected)
    return app


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["components"]["schemas"] |= CHUNKS
        return document


async def _log_stats(activity: Activity) -> None:
    while True:
        await asyncio.sleep(LOG_SECONDS)
        for line in (activity.log_line(LOG_SECONDS) or "").splitlines():
            stats.info(line)


async def _answer(request: Request, error: Exception) -> Response:
    return _response(as_api_error(error))


async def _answer_invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        return _response(as_api_error(error))
    if isinstance(error.body, bytes):  # the framework parses only what claims to be JSON
        return _response(wrong_content_type(request.headers.get("content-type")))
    return _response(from_validation(error.errors()))


async def _answer_http(request: Request, error: Exception) -> Response:
    """What the framework refuses: unknown paths and methods."""
    if not isinstance(error, HTTPException):
        return _response(as_api_error(error))
    status, detail = error.status_code, error.detail
    if status == 400:
        detail = (
            "The request body can't be read; send a JSON object in UTF-8, not nested too deeply and without numbers of "
            "thousands of digits."
        )
    if status == 404:
        detail = f"There is nothing at {request.url.path}; the API is under /v1."
    if status == 405:
        detail = f"{request.url.path} doesn't answer to {request.method}."
    return _response(ApiError(status, detail), error.headers)


def _response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """`headers` are more of them, such as which methods are allowed."""
    return Response(error.content, error.status, {**error.headers, **(headers or {})})
