"""Requests that generate nothing: what is read off their prompts is the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from suffice.engine.work import Delta
from suffice.errors import InputError, OptionError
from suffice.serve.errors import Problem
from suffice.serve.http.front import Front, Job
from suffice.serve.interfaces.answer import check, collected
from suffice.serve.interfaces.costs import usage
from suffice.serve.interfaces.fields import Shared
from suffice.serve.interfaces.requests import Ask, readings
from suffice.serve.processes.pending import Ticket

MOST = 2048  # prompts of a request, as OpenAI's


async def read(
    front: Front,
    request: Request,
    job: Job,
    body: Shared,
    asks: Sequence[Ask],
    param: str,
) -> list[NDArray[np.float32]]:
    """Return what the engine reads off each prompt, and end the job; `param` is their field.

    Raises:
        Problem: A prompt is too long, or something cannot be read.
    """
    for _, reading in asks[:1]:
        _check(front, reading.check)
    front.submit(job, readings(front, job, asks, body, param))
    found: dict[int, NDArray[np.float32]] = {}

    def take(ticket: Ticket, delta: Delta) -> None:
        check(delta.final)
        if delta.vector is not None:
            found[ticket.index] = np.frombuffer(delta.vector, "<f4")

    await collected(job, request, take)
    front.finish(job)
    return [found[at] for at in range(len(asks))]


def _check(front: Front, checked: Callable[[Any], None]) -> None:
    """Refuse a reading that the model does not have.

    Raises:
        Problem: It has it not.
    """
    try:
        checked(front.pooling)
    except OptionError as error:
        message = f"{error.option}={error.value}: {error.must}"
        raise Problem("invalid_value", message, param=error.option) from None
    except InputError as error:
        raise Problem("unsupported", str(error)) from None


def counts(job: Job) -> dict[str, Any]:
    """Return the tokens of a request; none is generated."""
    found = usage(job)
    del found["completion_tokens"]
    return found


def answer(job: Job, body: Any) -> Response:
    """Return a whole answer."""
    headers = {"x-request-id": job.id}
    return Response(msgspec.json.encode(body), 200, headers, "application/json")
