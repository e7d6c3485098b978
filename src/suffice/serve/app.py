"""The routes."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suffice import __version__
from suffice.serve import plain
from suffice.serve.errors import OLLAMA, Problem, path_of
from suffice.serve.http.bodies import stopping
from suffice.serve.http.chance import drawn
from suffice.serve.http.front import Front
from suffice.serve.http.guard import Guard, note, sent_key
from suffice.serve.http.loading import LoadingStream
from suffice.serve.http.models import Models
from suffice.serve.http.turns import TURN, Turn
from suffice.serve.interfaces import cards, early, ollama_request
from suffice.serve.page import FILES, browser
from suffice.serve.posted import POSTED, Route

Handle = Callable[[Request], Awaitable[Response]]
_CHANGES = (
    ("/models/load", cards.load, "Begin to load a model, by llama.cpp's API."),
    ("/models/unload", cards.unload, "Begin to unload a model, by llama.cpp's API."),
)
_WITH_NAMES = ("/models/", "/requests/", "/responses/")  # what follows is a name
_OF_FILES = ("/api/show", "/api/pull")  # need no engine


class _Asked(msgspec.Struct):
    """What of a body tells how to wait for its model."""

    model: Any = None
    name: Any = None  # as older clients of Ollama have it
    stream: Any = None


_read_asked = msgspec.json.Decoder(_Asked).decode


def build(models: Models) -> ASGIApp:
    """Return the application around models, which have been started."""
    app = FastAPI(
        title="suffice",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    posts = {}
    for path, route, kind, text in POSTED:
        posts[path] = _handler(models, path, route, kind)
        _describe(app, path, posts[path], kind, text)
    for path, change, text in _CHANGES:
        posts[path] = _changer(models, change)
        _describe(app, path, posts[path], cards.Named, text)
    plain.add(app, models)
    if models.settings.page:
        app.router.routes.extend(browser.routes(models))
    app.add_exception_handler(Problem, _refuse(models))
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(Exception, _broken)
    shown = FILES if models.settings.page else ()
    paths = Paths(Posts(app, models, posts), {*posts, *plain.PATHS})
    guarded = Heads(Guard(paths, models, shown))
    if not models.settings.allowed_origins:
        return guarded
    return CORSMiddleware(
        guarded,
        allow_origins=list(models.settings.allowed_origins),
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

    def __init__(self, app: ASGIApp, models: Models, handlers: Mapping[str, Handle]) -> None:
        self._app, self._models, self._handlers = app, models, handlers
        self._refused = _refuse(models)

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
                self._models.refused(problem.code)
            if started or problem.cuts:
                raise  # the guard ends the connection
            await self._refused(request, problem)(scope, receive, send)
        except Exception as error:
            if started:
                note(scope, error)
                raise
            await _broken(request, error)(scope, receive, send)


def _handler(models: Models, path: str, route: Route, kind: type[BaseModel]) -> Handle:
    """Return what answers a request with a JSON body, which it reads itself."""
    of_ollama = path.startswith(OLLAMA)
    # Streams with comments, which Ollama's have no place for.
    streams = "stream" in kind.model_fields and not of_ollama

    async def handle(request: Request) -> Response:
        _check_form(request)
        if models.draining:
            raise stopping()
        raw, key = await request.body(), sent_key(request)
        asked = _asked(raw) if models.lazy else _Asked()
        name = asked.name if of_ollama and asked.model is None else asked.model
        served = models.find(name, tagged=of_ollama)

        async def answer(front: Front) -> Response:
            return await route(front, request, raw, key)

        if path in _OF_FILES:
            return await answer(served.front)
        if served.state == "loaded":
            async with models.using(served) as front:
                return await answer(front)
        body = early.checked(path, kind, served.front, raw)
        if ollama_request.unloads(body):
            return await answer(served.front)
        ident = getattr(body, "request_id", None) or f"req-{drawn(12).hex()}"
        turn = Turn(ident, key, request.receive)
        TURN.set(turn)
        using = models.using(served, turn)
        if streams and asked.stream is True:
            every = models.settings.keep_alive_seconds
            return LoadingStream(served.names[0], using, answer, every, ident)
        async with using as front:
            return await answer(front)

    return handle


def _changer(models: Models, change: Callable[[Models, bytes], Response]) -> Handle:
    """Return what answers a request that loads or unloads a model."""

    async def handle(request: Request) -> Response:
        _check_form(request)
        return change(models, await request.body())

    return handle


def _asked(raw: bytes) -> _Asked:
    """Return what a body asks for; the route of the first model says what is wrong with others."""
    try:
        return _read_asked(raw)
    except msgspec.DecodeError:
        return _Asked()


def _check_form(request: Request) -> None:
    """Check that a body is JSON, as it is.

    Raises:
        Problem: Its headers say otherwise.
    """
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


def _refuse(models: Models) -> Callable[[Request, Exception], Response]:
    def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        models.refused(error.code)
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
