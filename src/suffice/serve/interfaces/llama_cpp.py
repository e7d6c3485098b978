"""`/completion`, `/infill` and others: llama.cpp's own API, made of completion requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from suffice import __version__
from suffice.engine.work import Delta
from suffice.errors import brief
from suffice.serve.errors import Problem, blamed
from suffice.serve.http.front import Front
from suffice.serve.http.stream import EventStream, event
from suffice.serve.http.text import Room
from suffice.serve.interfaces.answer import Reply
from suffice.serve.interfaces.completion import Completion, prepared
from suffice.serve.interfaces.costs import costs, usage
from suffice.serve.interfaces.fields import Objects, checked, read_object
from suffice.serve.processes.pending import Ticket

NAMES = {"max_tokens": "n_predict", "repetition_penalty": "repeat_penalty"}
_ALL = -1  # of `seed`: any; of `repeat_last_n`: the whole text


class Infill(BaseModel):
    """The fields of `/infill` besides those of `/completion`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    input_prefix: str
    input_suffix: str = ""
    input_extra: list[Any] | None = None
    prompt: str = ""


class Template(BaseModel):
    """A conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = None
    messages: Objects
    chat_template_kwargs: dict[str, Any] | None = None


async def complete(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Continue a text.

    Raises:
        Problem: It cannot be continued.
    """
    return await _answered(front, request, read_object(raw), key)


async def infill(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Fill in what stands between two texts.

    Raises:
        Problem: The model has no tokens for it, or the request is bad.
    """
    return await _answered(front, request, filled_in(raw), key)


def filled_in(raw: bytes) -> dict[str, Any]:
    """Return the fields of the completion request that a request of `/infill` stands for.

    Raises:
        Problem: A field has another type, or is not supported.
    """
    given = read_object(raw)
    body = checked({key: given[key] for key in Infill.model_fields if key in given}, Infill)
    if body.input_extra:
        raise Problem("unsupported", "'input_extra' is not supported here", param="input_extra")
    rest = {key: each for key, each in given.items() if key not in Infill.model_fields}
    own = {"prompt": body.input_prefix + body.prompt, "suffix": body.input_suffix or "\n"}
    return {**rest, **own}


async def _answered(front: Front, request: Request, given: dict[str, Any], key: str) -> Response:
    with blamed(NAMES):
        body = completion_of(front, given)
        reply = await prepared(front, body, key, "cmpl")
    if body.stream:
        parts = _Parts(reply)
        return EventStream(front, reply.job, parts.events(), b"", parts.quick)
    try:
        whole = await reply.gathered(request)
    finally:
        front.finish(reply.job)
    text, tokens = whole["choices"][0]["text"], reply.only.tokens
    return JSONResponse({**_chunk(text, tokens, reply), **_end(reply), "stop": True})


def completion_of(front: Front, given: dict[str, Any]) -> Completion:
    """Return the completion request that a request stands for.

    Raises:
        Problem: A field is unknown, or asks for what is not here.
    """
    fields = dict(given)
    if fields.get("seed") == _ALL:
        del fields["seed"]
    penalty, rows = fields.pop("repeat_penalty", None), fields.pop("repeat_last_n", None)
    if penalty not in (None, 1) and rows not in (None, _ALL):
        message = f"repeat_last_n={brief(rows)}: must be -1: penalties look at the whole text"
        raise Problem("unsupported", message, param="repeat_last_n")
    if penalty is not None:
        fields["repetition_penalty"] = penalty
    if "return_tokens" in fields:
        fields["return_token_ids"] = fields.pop("return_tokens")
    bias = fields.get("logit_bias")
    if isinstance(bias, list):
        fields["logit_bias"] = _bias(bias)
    body = checked(fields, Completion, allow_unknown=front.settings.allow_unknown_fields)
    body.model_fields_set.add("max_tokens")  # without a limit, as llama.cpp
    if isinstance(body.prompt, list) and not all(isinstance(each, int) for each in body.prompt):
        raise Problem("unsupported", "prompt: must be one text, or tokens", param="prompt")
    return body


def _bias(given: list[Any]) -> dict[str, float]:
    """Return a bias for each token; false forbids it."""
    found: dict[str, float] = {}
    for each in given:
        if not isinstance(each, list) or len(each) != 2 or not isinstance(each[0], int):
            message = f"logit_bias: must be a list of [token, bias], not {brief(each)}"
            raise Problem("invalid_value", message, param="logit_bias")
        found[str(each[0])] = -100.0 if each[1] is False else each[1]
    return found


def _chunk(text: str, tokens: list[int], reply: Reply) -> dict[str, Any]:
    shown = tokens if reply.body.return_token_ids else []
    place = reply.job.tickets[0].place
    return {"index": 0, "content": text, "tokens": shown, "stop": False, "id_slot": place}


def _end(reply: Reply) -> dict[str, Any]:
    """Return what the last line says."""
    (reason, stop), counts = reply.only.end, usage(reply.job)
    word = stop if isinstance(stop, str) else ""
    kind = "limit" if reason == "length" else "word" if word else "eos"
    return {
        "model": reply.model,
        "tokens_predicted": counts["completion_tokens"],
        "tokens_evaluated": counts["prompt_tokens"],
        "tokens_cached": counts["prompt_tokens_details"]["cached_tokens"],
        "truncated": False,
        "stop_type": kind,
        "stopping_word": word,
        **costs(reply.job),
    }


class _Parts:
    """The events of a stream."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._begun = False

    def quick(self, ticket: Ticket, delta: Delta) -> bytes | None:
        """Return the event of a delta; None if none has begun."""
        return self._of(delta, ticket) if self._begun else None

    def _of(self, delta: Delta, ticket: Ticket) -> bytes:
        parts = self._reply.take(ticket, delta)
        text = "".join(part.text for part in parts)
        return event(_chunk(text, list(delta.tokens), self._reply)) if text else b""

    async def events(self) -> AsyncIterator[bytes]:
        """Yield all events."""
        async for parts in self._reply.parts():
            self._begun = True
            text = "".join(part.text for part in parts)
            yield event(_chunk(text, [], self._reply)) if text else b""
        end = _chunk("", self._reply.only.tokens, self._reply)
        yield event({**end, **_end(self._reply), "stop": True})


async def apply_template(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Return a conversation as the model's template writes it.

    Raises:
        Problem: The template refuses it.
    """
    body = checked(read_object(raw), Template)
    room = Room(front.facts.max_model_len, "messages", apart=True)
    text = await front.text.run(
        lambda: front.text.shown(body.messages, room, facts=body.chat_template_kwargs), "messages"
    )
    return JSONResponse({"prompt": text})


async def props(front: Front) -> Response:
    """Return what clients ask before they begin; the context of a model that is loaded.

    Raises:
        Problem: The tokenizer cannot be used.
    """
    source = (await front.shown_text()).tokenizer.chat_template
    template = source if isinstance(source, str) else (source or {}).get("default", "")
    facts = front.instance.facts
    context: Mapping[str, Any] = {"n_ctx": None if facts is None else facts.max_model_len}
    return JSONResponse(
        {
            "default_generation_settings": context,
            "total_slots": front.places,
            "model_path": front.settings.model,
            "model_alias": front.settings.names[0],
            "chat_template": template,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"suffice {__version__}",
        }
    )


def slots(front: Front) -> Response:
    """Return the places in which samples decode; as many as requests run are busy."""
    busy = front.slots.busy or [at < len(front.jobs) for at in range(front.places)]
    found = [
        {"id": at, "n_ctx": front.facts.max_model_len, "is_processing": busy[at]}
        for at in range(front.places)
    ]
    return Response(msgspec.json.encode(found), media_type="application/json")
