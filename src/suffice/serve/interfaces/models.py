"""`GET /v1/models`."""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import JSONResponse, Response

from suffice.serve.http.front import Front

_STARTED = int(time.time())


def _card(front: Front, name: str) -> dict[str, Any]:
    facts = front.facts
    return {
        "id": name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "suffice",
        "root": front.settings.names[0],
        "parent": front.settings.names[0] if name in front.settings.adapters else None,
        "max_model_len": facts.max_model_len,
        "meta": {
            "n_vocab": facts.vocabulary,
            "n_ctx": facts.max_model_len,
            "size": facts.weight_bytes,
        },
    }


def listed(front: Front) -> Response:
    """Return a card for each name of the model, and for each adapter.

    Codex reads `models`. An entry there would replace the instructions that it gives to models it
    does not know; without the list it takes the answer for damaged.
    """
    names = (*front.settings.names, *front.settings.adapters)
    cards = [_card(front, name) for name in names]
    return JSONResponse({"object": "list", "data": cards, "models": []})


def one(front: Front, name: str) -> Response:
    """Return the card of one name.

    Raises:
        Problem: There is no such model.
    """
    return JSONResponse(_card(front, front.check_model(name)))
