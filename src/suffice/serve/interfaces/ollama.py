"""`/api`: Ollama's API, made of chat requests."""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncIterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from suffice.checkpoints.files import family_named, stored
from suffice.decoder.pooling import Pooling
from suffice.dialects.reader import Part
from suffice.engine.work import Delta
from suffice.serve.errors import Problem, blamed
from suffice.serve.http.front import Front
from suffice.serve.http.models import Models
from suffice.serve.http.stream import EventStream
from suffice.serve.interfaces.answer import Reply
from suffice.serve.interfaces.arguments import arguments_of
from suffice.serve.interfaces.chat import prepared
from suffice.serve.interfaces.costs import costs, usage
from suffice.serve.interfaces.fields import checked, read_object
from suffice.serve.interfaces.logprobs import of_chat
from suffice.serve.interfaces.ollama_request import Generate, Talk, chat_of, keep, named, unloads
from suffice.serve.processes.local_fleet import Files, files_of
from suffice.serve.processes.pending import Ticket

VERSION = "0.15.0"  # of Ollama's API, as which clients know what they may send
_LINES = "application/x-ndjson"
_NEVER = "9999-12-31T00:00:00Z"
_MS = 1_000_000  # nanoseconds
_UNKNOWN = {"parent_model": "", "parameter_size": "", "quantization_level": ""}  # clients expect it
NAMES = {
    "response_format": "format",
    "max_tokens": "options",
    "enable_thinking": "think",
    "reasoning_effort": "think",
}


class Named(BaseModel):
    """A request about a model."""

    model_config = ConfigDict(extra="ignore", strict=True)
    model: str | None = None
    name: str | None = None


async def chat(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer a conversation.

    Raises:
        Problem: It cannot be answered.
    """
    allow = front.settings.allow_unknown_fields
    body = checked(read_object(raw), Talk, allow_unknown=allow)
    return await _answered(front, request, body, key)


async def generate(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer a prompt.

    Raises:
        Problem: It cannot be answered.
    """
    allow = front.settings.allow_unknown_fields
    body = checked(read_object(raw), Generate, allow_unknown=allow)
    return await _answered(front, request, body, key)


async def _answered(front: Front, request: Request, body: Talk | Generate, key: str) -> Response:
    keep(front, body.keep_alive)
    if not body.asks:  # loads the model, which has been done, or unloads it
        shape = _Shape(named(front, body.model), talks=isinstance(body, Talk))
        reason = "unload" if unloads(body) else "load"
        return JSONResponse({**shape.line(), "done": True, "done_reason": reason})
    with blamed(NAMES):
        reply = await prepared(front, chat_of(front, body), key, "api")
    parts = _Lines(reply, _Shape(reply.model, talks=isinstance(body, Talk)))
    if body.stream is not False:
        events = parts.events()
        return EventStream(front, reply.job, events, b"", parts.quick, _LINES)
    try:
        await reply.gathered(request)
    finally:
        front.finish(reply.job)
    return Response(msgspec.json.encode(parts.whole()), media_type="application/json")


def _stamp(later: float = 0.0) -> str:
    """Return the time now, or some seconds later."""
    return _time(time.time() + later)


def _time(seconds: float) -> str:
    """Return a time, in seconds since 1970."""
    found = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return found.isoformat().replace("+00:00", "Z")


class _Shape:
    """How a line is written: a chat's has a message, the other a response."""

    def __init__(self, model: str, *, talks: bool) -> None:
        self._model, self._talks = model, talks

    def line(self, text: str = "", thinking: str = "", calls: Sequence[Any] = ()) -> dict[str, Any]:
        """Return a line."""
        head = {"model": self._model, "created_at": _stamp()}
        own = {"thinking": thinking} if thinking else {}
        if not self._talks:
            return {**head, "response": text, **own, "done": False}
        message: dict[str, Any] = {"role": "assistant", "content": text, **own}
        if calls:
            message["tool_calls"] = list(calls)
        return {**head, "message": message, "done": False}


class _Lines:
    """The lines of a stream. A call comes once it is whole, with its arguments as an object."""

    def __init__(self, reply: Reply, shape: _Shape) -> None:
        self._reply, self._shape = reply, shape
        self._begun = False
        self._shown = self._told = 0  # calls, and tokens whose log probabilities were told

    def quick(self, ticket: Ticket, delta: Delta) -> bytes | None:
        """Return the lines of a delta; None if none has begun."""
        if not self._begun:
            return None
        return b"".join(map(_line, self._of(self._reply.take(ticket, delta))))

    async def events(self) -> AsyncIterator[bytes]:
        """Yield all lines."""
        async for parts in self._reply.parts():
            self._begun = True
            yield b"".join(map(_line, self._of(parts)))
        calls = self._calls(last=True)
        rest = _line(self._shape.line(calls=calls)) if calls else b""
        yield rest + _line({**self._shape.line(), **self._end(), **self._logprobs()})

    def _logprobs(self) -> dict[str, Any]:
        """Return the field of log probabilities of tokens that were not told of, if asked for."""
        top, entries = self._reply.top, self._reply.only.entries[self._told :]
        self._told += len(entries)
        if top is None or not entries:
            return {}
        return {"logprobs": of_chat(self._reply.front.text, entries, top)["content"]}

    def _of(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for part in parts:
            if part.kind == "text":
                found.append(self._shape.line(part.text))
            elif part.kind == "thinking":
                found.append(self._shape.line(thinking=part.text))
            elif part.kind == "call" and (calls := self._calls(last=False)):
                found.append(self._shape.line(calls=calls))
        if found:
            found[-1] |= self._logprobs()
        return found

    def _calls(self, *, last: bool) -> list[dict[str, Any]]:
        """Return calls that are whole and were not shown."""
        known = self._reply.only.calls
        end = len(known) if last else len(known) - 1
        found = [_call(call) for call in known[self._shown : end]]
        self._shown = max(self._shown, end)
        return found

    def whole(self) -> dict[str, Any]:
        """Return the whole answer as one line."""
        message = self._reply.only.message
        calls = [_call(call) for call in message.get("tool_calls", ())]
        thinking = message.get("reasoning_content", "")
        line = self._shape.line(message["content"] or "", thinking, calls)
        return {**line, **self._end(), **self._logprobs()}

    def _end(self) -> dict[str, Any]:
        job, reason = self._reply.job, self._reply.only.reason
        times, tokens = costs(job)["timings"], usage(job)
        prompt, decode = (int(_MS * times[name]) for name in ("prompt_ms", "predicted_ms"))
        load = int(1000 * _MS * job.waited)
        return {
            "done": True,
            "done_reason": "length" if reason == "length" else "stop",
            "total_duration": load + prompt + decode,
            "load_duration": load,
            "prompt_eval_count": tokens["prompt_tokens"],
            "prompt_eval_duration": prompt,
            "eval_count": tokens["completion_tokens"],
            "eval_duration": decode,
        }


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call; one whose arguments were cut has none, as `done_reason` says."""
    function = call["function"]
    arguments = arguments_of(function["arguments"])
    return {"id": call["id"], "function": {"name": function["name"], "arguments": arguments}}


def _line(body: Any) -> bytes:
    return msgspec.json.encode(body) + b"\n"


def _card(front: Front, name: str) -> dict[str, Any]:
    """Return what the lists of models say of one; its size is of its files until it is loaded."""
    facts, files = front.instance.facts, _files(front)
    return {
        "name": name,
        "model": name,
        "modified_at": _time(max((at for *_, at, _ in files), default=0) / 1e9),
        "size": sum(size for _, size, *_ in files) if facts is None else facts.weight_bytes,
        "digest": "" if facts is None else facts.stamp or facts.fingerprint,
        "details": _details(front),
    }


def _files(front: Front) -> Files:
    """Return what tells a model's files apart; nothing if they are not on this machine."""
    path = stored(str(front.settings.options.get("model", "")))
    return () if path is None else files_of(path)


def _details(front: Front) -> dict[str, Any]:
    """Return what a model's files say of it."""
    path = stored(str(front.settings.options.get("model", "")))
    if path is None:
        return {**_UNKNOWN, "format": "", "family": "", "families": None}
    kind = "gguf" if path.suffix == ".gguf" else "safetensors"
    family = _family(path, files_of(path))
    return {**_UNKNOWN, "format": kind, "family": family, "families": [family] if family else None}


@cache
def _family(path: Path, files: Files) -> str:
    return family_named(path)


def tags(models: Models) -> Response:
    """Return the models that are here."""
    cards = [_card(each.front, name) for each in models.served for name in each.listed]
    return JSONResponse({"models": cards})


def running(models: Models) -> Response:
    """Return the models that are loaded."""
    found = []
    for each in models.served:
        if each.state in ("loaded", "leaving"):
            left = each.left(models.settings.kept_seconds)
            more = {"expires_at": _NEVER if left is None else _stamp(left), "size_vram": 0}
            more["context_length"] = each.front.facts.max_model_len
            found += [{**_card(each.front, name), **more} for name in each.listed]
    return JSONResponse({"models": found})


async def show(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Describe a model.

    Raises:
        Problem: It is not served here.
    """
    named(front, _asked(raw))
    text = await front.shown_text()
    source = text.tokenizer.chat_template
    template = source if isinstance(source, str) else (source or {}).get("default", "")
    facts = front.instance.facts
    embeds = facts is not None and Pooling.of(facts.pooling).embeds
    can = ["embedding"] if embeds else ["completion", *(["tools"] if template else [])]
    can += ["thinking"] if text.speech.thinks else []
    info: dict[str, Any] = {"general.architecture": "suffice"}
    if facts is not None:
        info["suffice.context_length"] = facts.max_model_len
        info["suffice.vocab_size"] = facts.vocabulary
    own = {"modelfile": "", "parameters": "", "template": template, "details": _details(front)}
    return JSONResponse({**own, "model_info": info, "capabilities": can})


async def pull(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Say that a model is here; others are not fetched for a request.

    Raises:
        Problem: It is not served here.
    """
    named(front, _asked(raw))
    return Response(_line({"status": "success"}), media_type=_LINES)


def _asked(raw: bytes) -> str:
    body = checked(read_object(raw), Named, allow_unknown=True)
    name = body.model or body.name
    if not name:
        raise Problem("invalid_value", "model: is required", param="model")
    return name
