"""The routes."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suffice import __version__
from suffice.serve import health
from suffice.serve.errors import Problem, path_of
from suffice.serve.http.bodies import stopping
from suffice.serve.http.front import Front
from suffice.serve.http.guard import Guard, key_of, note
from suffice.serve.interfaces import llama_cpp, models, ollama, responses
from suffice.serve.page import FILES, browser
from suffice.serve.posted import POSTED, Route

Handle = Callable[[Request], Awaitable[Response]]
_NOT_HERE = {
    "/v1/audio/transcriptions": "audio",
    "/v1/audio/speech": "audio",
    "/v1/images/generations": "images",
    "/v1/moderations": "moderation",
    "/api/create": "making of models",
    "/api/copy": "copies of models",
    "/api/push": "uploads",
}
_PLAIN = (*_NOT_HERE, "/v1/models", "/health", "/ready", "/version", "/metrics")
_WITH_NAMES = ("/models/", "/requests/", "/responses/")  # what follows is a name


def build(front: Front) -> ASGIApp:
    """Return the application around a front, which has been started."""
    app = FastAPI(
        title="suffice",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    posts = {}
    for path, route, kind, text in POSTED:
        posts[path] = _handler(front, route)
        _describe(app, path, posts[path], kind, text)
    _add_plain(app, front)
    _add_others(app, front)
    if front.settings.page:
        app.router.routes.extend(browser.routes(front))
    app.add_exception_handler(Problem, _refuse(front))
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(Exception, _broken)
    shown = FILES if front.settings.page else ()
    paths = Paths(Posts(app, front, posts), {*posts, *_PLAIN})
    guarded = Heads(Guard(paths, front, shown))
    if not front.settings.allowed_origins:
        return guarded
    return CORSMiddleware(
        guarded,
        allow_origins=list(front.settings.allowed_origins),
        allow_methods=["*"],
        allow_headers=["*"],
    )


class Paths:
    """Takes known paths with and without /v1, in which clients differ."""

    def __init__(self, app: ASGIApp, known: set[str]) -> None:
        self._app = app
        self._others = {
            each.removeprefix("/v1") if each.startswith("/v1/") else f"/v1{each}": each
            for each in known
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "http":
            path = path_of(scope)
            known = self._others.get(path)
            if known is None and scope["method"] != "POST" and path.startswith(_WITH_NAMES):
                known = f"/v1{path}"
            if known is not None:
                scope = {**scope, "path": scope["root_path"] + known}
        await self._app(scope, receive, send)


class Heads:
    """Answers HEAD as GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        ended = False

        async def sending(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start":
                await send(message)
            elif not ended:  # a stream would send for ever; now its client has left, as it sees it
                ended = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app({**scope, "method": "GET"}, receive, sending)


class Posts:
    """Answers the requests that generate; the application behind it describes them, and the rest.

    A request's way through FastAPI's layers would take as long as all that the server does for it.
    """

    def __init__(self, app: ASGIApp, front: Front, handlers: Mapping[str, Handle]) -> None:
        self._app, self._front, self._handlers = app, front, handlers
        self._refused = _refuse(front)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        handle = None
        if scope["type"] == "http" and scope["method"] == "POST":
            handle = self._handlers.get(path_of(scope))
        if handle is None:
            await self._app(scope, receive, send)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        request = Request(scope, receive)
        try:
            response = await handle(request)
            await response(scope, receive, sending)
        except ClientDisconnect:  # nobody waits for an answer
            return
        except Problem as problem:
            if problem.cuts:
                self._front.metrics.refused(problem.code)
            if started or problem.cuts:
                raise  # the guard ends the connection
            await self._refused(request, problem)(scope, receive, send)
        except Exception as error:
            if started:
                note(scope, error)
                raise
            await _broken(request, error)(scope, receive, send)


def _handler(front: Front, route: Route) -> Handle:
    """Return what answers a request with a JSON body, which it reads itself."""

    async def handle(request: Request) -> Response:
        declared = request.headers.get("content-type", "application/json").partition(";")[0]
        if declared.strip().lower() not in ("application/json", ""):
            message = (
                "the body must be JSON with the header 'Content-Type: application/json' "
                f"(curl --json sends it), not {declared[:60]}"
            )
            raise Problem("unsupported_type", message)
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", ""):
            message = f"the body must come as it is, without Content-Encoding: {coding[:60]}"
            raise Problem("unsupported_type", message)
        if front.draining:
            raise stopping()
        return await route(front, request, await request.body(), _key(request))

    return handle


def _describe(app: FastAPI, path: str, handle: Handle, kind: type[BaseModel], text: str) -> None:
    """Add a route to what `GET /openapi.json` lists."""
    app.openapi_schema = None
    body = {"required": True, "content": {"application/json": {"schema": _schema(kind)}}}
    app.add_api_route(
        path,
        handle,
        methods=["POST"],
        summary=text,
        openapi_extra={"requestBody": body},
        response_class=Response,
        responses={
            200: {
                "description": text,
                "content": {"application/json": {}, "text/event-stream": {}},
            },
            "4XX": {"description": "The request is at fault.", "content": {"application/json": {}}},
            "5XX": {"description": "The server is at fault.", "content": {"application/json": {}}},
        },
    )


@functools.cache
def _schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return what a request's fields may be; nobody changes it."""
    return _inlined(kind.model_json_schema(ref_template="#/components/schemas/{model}"))


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose definitions stand where they are used."""
    definitions = schema.pop("$defs", {})

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return walk(definitions[value["$ref"].rpartition("/")[2]])
            return {key: walk(each) for key, each in value.items()}
        return [walk(each) for each in value] if isinstance(value, list) else value

    found: dict[str, Any] = walk(schema)
    return found


def _add_plain(app: FastAPI, front: Front) -> None:
    """Add the routes without a body."""
    for path, why in _NOT_HERE.items():
        app.add_api_route(path, _absent(why), methods=["POST"], include_in_schema=False)

    @app.get("/v1/models", summary="List the model.")
    async def listed() -> Response:
        return models.listed(front)

    @app.get("/v1/models/{name:path}", summary="Describe the model.")
    async def one(name: str) -> Response:
        return models.one(front, name)

    @app.get("/health", summary="Whether the server and its engine live.")
    async def alive() -> Response:
        return health.alive(front)

    @app.get("/ready", summary="Whether the server takes requests.")
    async def ready() -> Response:
        return health.ready(front)

    @app.get("/version", summary="The version.")
    async def version() -> Response:
        return JSONResponse({"version": __version__})

    @app.get("/metrics", summary="Metrics in Prometheus's form.")
    async def metrics() -> Response:
        return Response(front.metrics.page(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/responses/{ident}", summary="Return a kept answer.")
    async def kept(ident: str, request: Request) -> Response:
        found = await responses.kept(front, ident, _key(request))
        return JSONResponse(found.response)

    @app.delete("/v1/responses/{ident}", summary="Remove a kept answer.")
    async def deleted(ident: str, request: Request) -> Response:
        return JSONResponse(await responses.deleted(front, ident, _key(request)))

    @app.get("/v1/responses/{ident}/input_items", summary="List what a kept answer was asked.")
    async def asked(ident: str, request: Request) -> Response:
        found = await responses.kept(front, ident, _key(request))
        return JSONResponse(responses.listed(found, request.query_params))

    @app.delete("/v1/requests/{ident:path}", summary="End a request.")
    async def cancel(ident: str, request: Request) -> Response:
        if not front.cancel(ident, _key(request)):
            raise Problem("not_found", f"no request '{ident[:60]}' is under way")
        return JSONResponse({"id": ident, "cancelled": True})


def _add_others(app: FastAPI, front: Front) -> None:
    """Add the routes without a body of llama.cpp's and Ollama's APIs."""

    @app.get("/props", summary="What clients of llama.cpp ask before they begin.")
    async def props() -> Response:
        return llama_cpp.props(front)

    @app.get("/slots", summary="The places in which samples decode.")
    async def slots() -> Response:
        return llama_cpp.slots(front)

    @app.get("/api/tags", summary="List the model, by Ollama's API.")
    async def tagged() -> Response:
        return ollama.tags(front)

    @app.get("/api/ps", summary="List the model that is loaded, by Ollama's API.")
    async def running() -> Response:
        return ollama.running(front)

    @app.get("/api/version", summary="The version of Ollama's API.")
    async def version_of_ollama() -> Response:
        return JSONResponse({"version": ollama.VERSION})


def _key(request: Request) -> str:
    return key_of(request.scope["headers"]).decode("latin-1")


def _absent(what: str) -> Callable[[], Awaitable[Response]]:
    async def handle() -> Response:
        raise Problem("not_supported", f"this server has no {what}: it works on text")

    return handle


def _refuse(front: Front) -> Callable[[Request, Exception], Response]:
    def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        front.metrics.refused(error.code)
        headers = dict(error.headers())
        return Response(error.encoded(request.scope), error.status, headers, "application/json")

    return handle


def _broken(request: Request, error: Exception) -> Response:
    problem = note(request.scope, error)
    body = problem.encoded(request.scope)
    return Response(body, 500, dict(problem.headers()), "application/json")


def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:60]
    if error.status_code == 405:
        message = f"{request.method[:20]} is not allowed for {path}"
        problem = Problem("method_not_allowed", message)
        headers = {**problem.headers(), **(error.headers or {})}
        return Response(problem.encoded(request.scope), 405, headers, "application/json")
    problem = Problem("not_found", f"there is no {path}; GET /openapi.json lists what there is")
    body = problem.encoded(request.scope)
    return Response(body, problem.status, dict(problem.headers()), "application/json")
