"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, made of a chat request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from suffice.dialects.reader import Part
from suffice.engine.work import Delta
from suffice.serve.errors import Problem, blamed
from suffice.serve.http.front import Front
from suffice.serve.http.stream import HOLE, EventStream, Prepared, event
from suffice.serve.interfaces.answer import Reply
from suffice.serve.interfaces.arguments import arguments_of
from suffice.serve.interfaces.chat import counted, prepared
from suffice.serve.interfaces.costs import costs, usage
from suffice.serve.interfaces.message_request import (
    Create,
    Messages,
    chat_of,
    left_out,
    marked,
    read,
)
from suffice.serve.processes.pending import Ticket

_ENDS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
NAMES = {"stop": "stop_sequences", "response_format": "output_config"}


async def create(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer a request."""
    try:
        body = read(raw, Create, allow_unknown=front.settings.allow_unknown_fields)
        chat = chat_of(body)
        with blamed(NAMES, before=body.system is not None):
            # Claude Code has a budget for every model.
            own = {"budget_if_possible": True, "keeps": marked(body)}
            budget = chat.thinking_token_budget
            reply = await prepared(front, chat, key, "msg", **own)
        gone = left_out(body, budget=chat.thinking_token_budget != budget)
        if body.stream:
            parts = _Parts(reply, gone)
            return EventStream(front, reply.job, parts.events(), b"", parts.quick)
        try:
            whole = await reply.gathered(request)
        finally:
            front.finish(reply.job)
        return _json({**_message(reply, whole), **gone})
    except Problem as problem:
        front.metrics.refused(problem.code)
        return _json(problem.messages_body(), problem.status, dict(problem.headers()))


async def count(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Return the number of tokens of a request."""
    try:
        body = read(raw, Messages, allow_unknown=front.settings.allow_unknown_fields)
        return _json({"input_tokens": await counted(front, chat_of(body))})
    except Problem as problem:
        return _json(problem.messages_body(), problem.status, dict(problem.headers()))


def _message(reply: Reply, whole: Mapping[str, Any]) -> dict[str, Any]:
    (choice,) = whole["choices"]
    message = choice["message"]
    content: list[dict[str, Any]] = []
    if thought := message.get("reasoning_content"):
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
    if message["content"]:
        content.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        content.append({**_tool_use(call), "input": arguments_of(call["function"]["arguments"])})
    return {
        **_head(reply),
        "content": content,
        **_stopped(choice["finish_reason"], choice["stop_reason"]),
        "usage": _usage(reply),
        **costs(reply.job),
    }


def _head(reply: Reply) -> dict[str, Any]:
    return {"id": reply.job.id, "type": "message", "role": "assistant", "model": reply.model}


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}


def _stopped(reason: str | None, stop: int | str | None) -> dict[str, Any]:
    if reason == "stop" and isinstance(stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _ENDS.get(reason or "", reason), "stop_sequence": None}


def _usage(reply: Reply) -> dict[str, int]:
    found = usage(reply.job)
    cached = found["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": found["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": found["completion_tokens"],
    }


class _Parts:
    """The events of a stream. A block is thinking, text, or one call."""

    def __init__(self, reply: Reply, more: Mapping[str, Any]) -> None:
        self._reply, self._more = reply, more  # of the message
        self._begun = False
        self._open: str | None = None  # the kind of the block that is open
        self._index = -1  # of the block
        self._deltas = {kind: _delta_of(*fields) for kind, fields in _DELTAS.items()}

    def quick(self, ticket: Ticket, delta: Delta) -> bytes | None:
        """Return the events of a delta; None if none has begun."""
        if not self._begun:
            return None
        return b"".join(self._of(self._reply.take(ticket, delta)))

    async def events(self) -> AsyncIterator[bytes]:
        """Yield all events."""
        reply = self._reply
        async for parts in reply.parts():
            yield b"".join(self._of(parts)) or _named({"type": "ping"})
        yield b"".join(self._closed())
        stopped = {
            "type": "message_delta",
            "delta": _stopped(*reply.only.end),
            "usage": _usage(reply),
        }
        stopped |= costs(reply.job)
        yield _named(stopped) + _named({"type": "message_stop"})

    def _of(self, parts: Sequence[Part]) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            message = {**_head(self._reply), "content": [], **_stopped(None, None), **self._more}
            yield _named(
                {"type": "message_start", "message": {**message, "usage": _usage(self._reply)}}
            )
        for part in parts:
            if part.kind == "call" or (part.kind != "arguments" and part.kind != self._open):
                yield from self._closed()
                self._open = "arguments" if part.kind == "call" else part.kind
                self._index += 1
                yield _block_start(self._index, _block_of(part))
            if part.kind != "call":
                yield self._deltas[part.kind](self._index, part.text)

    def _closed(self) -> Iterator[bytes]:
        """Close the block that is open."""
        if self._open == "thinking":  # clients want one; nobody checks it here
            signature = {"type": "signature_delta", "signature": ""}
            yield _named({"type": "content_block_delta", "index": self._index, "delta": signature})
        if self._open is not None:
            yield _named({"type": "content_block_stop", "index": self._index})
        self._open = None


_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "arguments": ("input_json_delta", "partial_json"),
}


def _delta_of(kind: str, field: str) -> Prepared:
    delta = {"type": kind, field: HOLE}
    body = {"type": "content_block_delta", "index": HOLE, "delta": delta}
    return Prepared(body, "content_block_delta")


def _block_of(part: Part) -> dict[str, Any]:
    """Return the block that a part begins, as it is while nothing of it has come."""
    if part.kind == "call":
        return {"type": "tool_use", "id": part.ident, "name": part.text, "input": {}}
    if part.kind == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _block_start(index: int, block: Mapping[str, Any]) -> bytes:
    return _named({"type": "content_block_start", "index": index, "content_block": block})


def _named(body: Mapping[str, Any]) -> bytes:
    return event(body, body["type"])


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")
