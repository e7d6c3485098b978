"""`GET /health`: is the engine alive? `GET /ready`: does the server take requests?"""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from suffice.serve.errors import Problem
from suffice.serve.http.bodies import stopping
from suffice.serve.http.front import Front


def alive(front: Front) -> Response:
    """Return 200, or 503 if the engine is stuck or dies again and again."""
    ailment = front.instance.ailment()
    if ailment is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unhealthy", "reason": ailment}, 503)


def ready(front: Front) -> Response:
    """Return 200, or 503 while loading, shutting down or full, or while every engine hangs.

    Raises:
        Problem: The server takes no requests.
    """
    if front.draining:
        raise stopping()
    if not front.instance.ready:
        if (ailment := front.instance.ailment()) is not None:
            raise Problem("unhealthy", ailment, wait=5.0)
        raise Problem("loading", "the engine is being started", wait=1.0)
    if front.full:
        raise Problem("queue_full", "the queue is full", wait=front.wait())
    return JSONResponse({"status": "ready"})
