"""What people and monitoring look at: health, metrics, the status page and the economics page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response

from foredraft import __version__
from foredraft.server.described import HEALTH, METRICS
from foredraft.server.metrics import CONTENT_TYPE
from foredraft.server.service import Service
from foredraft.server.settings import PlanPage
from foredraft.server.shapes import Load

__all__ = ["page_routes"]

STATIC = Path(__file__).parent / "static"
LOADING_RETRY = {"retry-after": "5"}
POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'"
PAGE_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def page_routes(service: Service) -> APIRouter:
    """None of these needs a key, and none of them shows any text of a request."""
    router = APIRouter()

    @router.get("/health", responses=HEALTH)
    @router.get("/ping", responses=HEALTH)
    async def health() -> Response:
        state = "failing" if service.worker.failing else str(service.worker.state)
        if service.worker.ready:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": state}, 503, LOADING_RETRY)

    @router.get("/load")
    async def load() -> Load:
        return {"server_load": service.worker.open_sequences}

    @router.get("/metrics", responses=METRICS, response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    @router.get("/status.json", include_in_schema=False)
    async def status() -> dict[str, Any]:
        return {
            "model": service.settings.model_names[0],
            "version": __version__,
            "state": "failing" if service.worker.failing else str(service.worker.state),
            **service.activity.summary(),
        }

    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "status.html", headers=PAGE_HEADERS)

    for name in ("status.css", "status.js", "icon.svg"):
        router.add_api_route(f"/{name}", _file(STATIC / name), include_in_schema=False)

    if service.settings.plan is not None:
        _add_plan(router, service, service.settings.plan)
    return router


def _file(path: Path) -> Any:
    async def serve() -> Response:
        return FileResponse(path, headers=PAGE_HEADERS)

    return serve


def _add_plan(router: APIRouter, service: Service, plan: PlanPage) -> None:
    @router.get("/plan", include_in_schema=False)
    async def open_plan(http: Request) -> Response:
        """The page, its dials set to what was measured here in the last minute."""
        window = service.activity.recent(60.0)
        address = "plan/index.html"
        if window.alpha is not None and window.cost_ratio is not None:
            address += plan.address(window.alpha, max(1, round(window.draft_length)), window.cost_ratio)
        return RedirectResponse(address, 307)
