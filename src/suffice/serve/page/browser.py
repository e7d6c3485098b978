"""The page for browsers: its files at `/` and `/page/`, what it shows, and its feed `GET /live`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from suffice import __version__
from suffice.serve.errors import Problem
from suffice.serve.http.bodies import stopping
from suffice.serve.http.models import Models
from suffice.serve.http.served import Served
from suffice.serve.http.stream import HEADERS, event
from suffice.serve.page import FILES, File

POLICY = (
    "default-src 'self'; connect-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # a browser asks whether its copy is the server's
}
MOST_WATCHERS = 64
_DEFAULTS = ("temperature", "top_p", "top_k")


def routes(models: Models) -> list[Route]:
    """Return the routes of the page, which are no part of the API's description."""

    def chosen(request: Request) -> Served:
        return models.find(request.query_params.get("model"))

    async def about(request: Request) -> Response:
        return server(chosen(request))

    async def feed(request: Request) -> Response:
        return live(models, chosen(request))

    found = [Route(path, _sender(file), include_in_schema=False) for path, file in FILES.items()]
    found.append(Route("/page/server", about, include_in_schema=False))
    found.append(Route("/live", feed, include_in_schema=False))
    return found


def _sender(file: File) -> Callable[[Request], Awaitable[Response]]:
    async def send(request: Request) -> Response:
        return sent(request, file)

    return send


def sent(request: Request, file: File) -> Response:
    """Return a file of the page, or 304 if the browser has it."""
    headers = {**_HEADERS, "etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.kind)


def server(served: Served) -> Response:
    """Return what the page shows of a model, and the values that its fields begin with."""
    settings, facts = served.front.settings, served.front.instance.facts
    loaded = {
        "max_model_len": None if facts is None else facts.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "weight_bytes": None if facts is None else facts.weight_bytes,
        # the first is the server's own
        "attentions": [] if facts is None else facts.attentions,
    }
    return JSONResponse(
        {
            "model": settings.names[0],
            "version": __version__,
            **loaded,
            "sampling": _defaults(settings.default_sampling),
        },
        headers={"cache-control": "no-store"},
    )


def _defaults(given: Any) -> dict[str, Any]:
    return {name: given[name] for name in _DEFAULTS if name in given}


def live(models: Models, served: Served) -> Response:
    """Return a stream of what the engine reads; see `Live.frames`.

    Raises:
        Problem: Too many watch, or the server stops.
    """
    front = served.front
    if models.draining:
        raise stopping()
    if front.live.watchers >= MOST_WATCHERS:
        message = f"{MOST_WATCHERS} watch already, the most allowed"
        raise Problem("queue_full", message, wait=5.0)

    async def events() -> AsyncIterator[bytes]:
        async for frame in front.live.frames(lambda: models.draining):
            yield event(frame)

    return StreamingResponse(events(), headers=HEADERS)
