"""The routes without a body, and those of what is not here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from suffice import __version__
from suffice.serve import health
from suffice.serve.errors import Problem
from suffice.serve.http.front import Front
from suffice.serve.http.guard import sent_key
from suffice.serve.http.models import Models
from suffice.serve.interfaces import cards, llama_cpp, ollama, responses, slot_files

_NOT_HERE = {
    "/v1/audio/transcriptions": "audio",
    "/v1/audio/speech": "audio",
    "/v1/images/generations": "images",
    "/v1/moderations": "moderation",
    "/api/create": "making of models",
    "/api/copy": "copies of models",
    "/api/push": "uploads",
}
PATHS = (*_NOT_HERE, "/v1/models", "/health", "/ready", "/version", "/metrics")


def add(app: FastAPI, models: Models) -> None:
    """Add these routes."""
    for path, why in _NOT_HERE.items():
        app.add_api_route(path, _absent(why), methods=["POST"], include_in_schema=False)

    @app.get("/v1/models", summary="List the models.")
    async def listed() -> Response:
        return cards.listed(models)

    @app.get("/v1/models/{name:path}", summary="Describe a model.")
    async def one(name: str) -> Response:
        return cards.one(models, name)

    @app.get("/health", summary="Whether the server and its engines live.")
    async def alive() -> Response:
        return health.alive(models)

    @app.get("/ready", summary="Whether the server takes requests.")
    async def ready() -> Response:
        return health.ready(models)

    @app.get("/version", summary="The version.")
    async def version() -> Response:
        return JSONResponse({"version": __version__})

    @app.get("/metrics", summary="Metrics in Prometheus's form.")
    async def metrics() -> Response:
        return Response(models.metrics(), media_type="text/plain; version=0.0.4")

    @app.delete("/v1/requests/{ident:path}", summary="End a request.")
    async def cancel(ident: str, request: Request) -> Response:
        if not models.cancel(ident, sent_key(request)):
            raise Problem("not_found", f"no request '{ident[:60]}' is under way")
        return JSONResponse({"id": ident, "cancelled": True})

    _add_kept(app, models.served[0].front)
    _add_others(app, models)


def _add_kept(app: FastAPI, front: Front) -> None:
    """Add the routes of kept answers, which all models have in common."""

    @app.get("/v1/responses/{ident}", summary="Return a kept answer.")
    async def kept(ident: str, request: Request) -> Response:
        found = await responses.kept(front, ident, sent_key(request))
        return JSONResponse(found.response)

    @app.delete("/v1/responses/{ident}", summary="Remove a kept answer.")
    async def deleted(ident: str, request: Request) -> Response:
        return JSONResponse(await responses.deleted(front, ident, sent_key(request)))

    @app.get("/v1/responses/{ident}/input_items", summary="List what a kept answer was asked.")
    async def asked(ident: str, request: Request) -> Response:
        found = await responses.kept(front, ident, sent_key(request))
        return JSONResponse(responses.listed(found, request.query_params))


def _add_others(app: FastAPI, models: Models) -> None:
    """Add the routes without a body of llama.cpp's and Ollama's APIs."""

    @app.get("/props", summary="What clients of llama.cpp ask before they begin.")
    async def props(model: str | None = None) -> Response:
        return await llama_cpp.props(models.find(model).front)

    @app.get("/slots", summary="The places in which samples decode.")
    async def slots(model: str | None = None) -> Response:
        return llama_cpp.slots(models.find(model).front)

    @app.post("/slots/{place}", summary="Save, restore or erase what a place ended with.")
    async def slot(
        place: str, request: Request, action: str = "", model: str | None = None
    ) -> Response:
        raw, key = await request.body(), sent_key(request)
        async with models.using(models.find(model)) as front:
            front.check_model(model)
            return await slot_files.act(front, request, raw, key, place, action)

    @app.get("/api/tags", summary="List the models, by Ollama's API.")
    async def tagged() -> Response:
        return ollama.tags(models)

    @app.get("/api/ps", summary="List the models that are loaded, by Ollama's API.")
    async def running() -> Response:
        return ollama.running(models)

    @app.get("/api/version", summary="The version of Ollama's API.")
    async def version_of_ollama() -> Response:
        return JSONResponse({"version": ollama.VERSION})


def _absent(what: str) -> Callable[[], Awaitable[Response]]:
    async def handle() -> Response:
        raise Problem("not_supported", f"this server has no {what}: it works on text")

    return handle
