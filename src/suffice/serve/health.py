"""`GET /health`: is the engine alive? `GET /ready`: does the server take requests?"""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from suffice.serve.errors import Problem
from suffice.serve.http.bodies import stopping
from suffice.serve.http.models import Models


def alive(models: Models) -> Response:
    """Return 200, or 503 if the engine of a loaded model is stuck or dies again and again."""
    for each in models.served:
        if each.state == "loaded" and (ailment := each.front.instance.ailment()) is not None:
            reason = f"{each.names[0]}: {ailment}" if models.lazy else ailment
            return JSONResponse({"status": "unhealthy", "reason": reason}, 503)
    return JSONResponse({"status": "ok"})


def ready(models: Models) -> Response:
    """Return 200, or 503 while the server shuts down.

    A server of one model that stays also says 503 while that is loaded or has a full queue, or
    while every engine hangs.

    Raises:
        Problem: The server takes no requests.
    """
    if models.draining:
        raise stopping()
    if models.lazy:
        return JSONResponse({"status": "ready"})
    front = models.served[0].front
    if not front.instance.ready:
        if (ailment := front.instance.ailment()) is not None:
            raise Problem("unhealthy", ailment, wait=5.0)
        raise Problem("loading", "the engine is being started", wait=1.0)
    if front.full:
        raise Problem("queue_full", "the queue is full", wait=front.wait())
    return JSONResponse({"status": "ready"})
