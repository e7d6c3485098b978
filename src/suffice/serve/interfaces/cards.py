"""`/v1/models` and `/models/load`: which models there are, and which of them are loaded."""

from __future__ import annotations

import time
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse, Response

from suffice.serve.http.models import Models
from suffice.serve.http.served import Served
from suffice.serve.interfaces.fields import checked, read_object

_STARTED = int(time.time())


class Named(BaseModel):
    """A request about a model."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str


def _card(served: Served, name: str) -> dict[str, Any]:
    settings, facts = served.front.settings, served.front.instance.facts
    length = None if facts is None else facts.max_model_len
    meta = {"n_ctx": length}
    if facts is not None:
        meta |= {"n_vocab": facts.vocabulary, "size": facts.weight_bytes}
    return {
        "id": name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "suffice",
        "root": settings.names[0],
        "parent": settings.names[0] if name in settings.adapters else None,
        "max_model_len": length,
        "meta": meta,
        "status": _status(served),
    }


def _status(served: Served) -> dict[str, Any]:
    """Return whether a model is loaded, in llama.cpp's form; a failure has its line."""
    value = {"leaving": "loaded"}.get(served.state, served.state)
    failed = {} if served.fault is None else {"failed": True, "error": served.fault}
    return {"value": value, **failed}


def listed(models: Models) -> Response:
    """Return a card for each model, or each of its aliases, and for each adapter.

    Codex reads `models`. An entry there would replace the instructions that it gives to models it
    does not know; without the list it takes the answer for damaged.
    """
    cards = [_card(each, name) for each in models.served for name in each.listed]
    return JSONResponse({"object": "list", "data": cards, "models": []})


def one(models: Models, name: str) -> Response:
    """Return the card of one name.

    Raises:
        Problem: There is no such model.
    """
    served = models.find(name)
    return JSONResponse(_card(served, served.front.check_model(name)))


def load(models: Models, raw: bytes) -> Response:
    """Begin to load a model, unless it is there.

    Raises:
        Problem: There is no such model.
    """
    models.load(_asked(models, raw))
    return JSONResponse({"success": True})


def unload(models: Models, raw: bytes) -> Response:
    """Begin to unload a model, once its requests have ended.

    Raises:
        Problem: There is no such model, or it is the only one, which stays.
    """
    models.unload(_asked(models, raw))
    return JSONResponse({"success": True})


def _asked(models: Models, raw: bytes) -> Served:
    name = checked(read_object(raw), Named).model
    served = models.find(name)
    if name not in served.names:
        served.front.check_model(name)
    return served
