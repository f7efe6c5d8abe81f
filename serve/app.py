"""The application: every route over one service, its errors, and the doors around them"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from serve import cache_routes, chat_route, completion_route, page_routes
from serve.doors import Rules, hang
from serve.errors import ApiError, bad_request, failed, not_allowed, not_found
from serve.recording import Reel
from serve.service import Service
from serve.stats import stats

_log = logging.getLogger(__name__)


def app_of(service: Service, rules: Rules, reel: Reel | None = None) -> FastAPI:
    """The ASGI application. Starting it starts the engine's thread, ending it is a planned stop."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        saved = service.stop()
        if reel is not None:
            reel.close()
        _log.info("stopped; %d conversations are on the drive", saved)

    app = FastAPI(
        title="moorage",
        summary="Exact prompt caches for hybrid language models, behind OpenAI's API",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(chat_route.routes(service))
    app.include_router(completion_route.routes(service))
    app.include_router(cache_routes.routes(service))
    app.include_router(page_routes.routes())
    _about(app, service)
    _errors(app, service)
    house = service.house
    hang(app, rules, lambda: house.settings.serving.request_bytes_max, reel)
    return app


def _about(app: FastAPI, service: Service) -> None:
    """Routes that say what is served, and how it is."""
    house, about = service.house, service.about
    model = {
        "id": about.model,
        "object": "model",
        "created": int(house.clock.wall_s()),
        "owned_by": "moorage",
        "max_model_len": house.engine.window,
        "context_length": house.engine.window,
    }

    @app.get("/v1/models", tags=["models"])
    async def models() -> dict[str, Any]:
        """The model that is served."""
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}", tags=["models"])
    async def model_of(name: str) -> dict[str, Any]:
        """The model of that name."""
        service.check_model(name)
        return model

    @app.get("/health", tags=["server"])
    async def health() -> dict[str, Any]:
        """Whether it serves, and whether the day's write budget lets the caches write."""
        if service.desk.broken:
            raise failed(f"The engine's thread ended: {service.desk.broken}.")
        queue = {"active": service.desk.active, "waiting": service.desk.waiting}
        return {"status": "ok", "model": about.model, "requests": queue, "writes": service.level}

    @app.get("/metrics", tags=["server"])
    async def metrics() -> Response:
        """Counters and gauges for Prometheus."""
        parts = service.parts()
        service.metrics.read(await service.between(lambda: stats(parts)))
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _errors(app: FastAPI, service: Service) -> None:
    """Errors in OpenAI's shape."""

    def told(error: ApiError) -> JSONResponse:
        service.metrics.error(error.status)
        return JSONResponse(error.body(), error.status, error.headers)

    @app.exception_handler(ApiError)
    async def refused(_: Request, error: ApiError) -> JSONResponse:
        return told(error)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 405:
            return told(not_allowed(request.method, request.url.path))
        if error.status_code == 404:
            return told(not_found(f"There is no {request.url.path}.", "not_found"))
        return told(ApiError(error.status_code, str(error.detail)))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first.get("loc", ())[1:]) or None
        return told(bad_request(f"{where}: {first.get('msg')}", param=where))
