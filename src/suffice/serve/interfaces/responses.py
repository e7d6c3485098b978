"""`/v1/responses`: OpenAI's Responses API, made of a chat request."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from suffice.dialects.reader import Kind, Part
from suffice.engine.work import Delta
from suffice.serve.errors import Problem, blamed
from suffice.serve.http.front import Front
from suffice.serve.http.stored import Stored
from suffice.serve.http.stream import HOLE, KEEP_ALIVE, EventStream, Prepared, event
from suffice.serve.interfaces.answer import Reply
from suffice.serve.interfaces.chat import counted, prepared
from suffice.serve.interfaces.costs import costs
from suffice.serve.interfaces.response_request import Responses, chat_of, items_of, read
from suffice.serve.interfaces.response_tools import Asked
from suffice.serve.processes.pending import Ticket

NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text"}
Entries = dict[str, Any]
_MOST_ITEMS = 100  # of a page


async def create(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer a request.

    Raises:
        Problem: It cannot be answered.
    """
    body = read(raw, allow_unknown=front.settings.allow_unknown_fields)
    before = await _talk(front, body, key)
    with blamed(NAMES, before=body.instructions is not None):
        chat, asked = chat_of(body, before)
        reply = await prepared(front, chat, key, "resp")
    if body.stream:
        parts = _Parts(reply, body, asked)
        return EventStream(front, reply.job, parts.events(), b"", parts.quick)
    try:
        whole = await reply.gathered(request)
    finally:
        front.finish(reply.job)
    items = _items(reply, asked, whole["choices"][0]["message"])
    found = _response(reply, body, asked, items)
    await _keep(reply, body, found)
    return Response(msgspec.json.encode(found), 200, None, "application/json")


async def count(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Return the number of tokens of a request."""
    body = read(raw, allow_unknown=front.settings.allow_unknown_fields)
    with blamed(NAMES, before=body.instructions is not None):
        chat, _ = chat_of(body, await _talk(front, body, key))
        tokens = await counted(front, chat)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": tokens})


async def _talk(front: Front, body: Responses, key: str) -> list[Any]:
    """Return the items that a request goes on from.

    Raises:
        Problem: The answer before it is not kept here.
    """
    ident = body.previous_response_id
    if ident is None:
        return []
    found = None
    if front.settings.store:
        found = await asyncio.to_thread(front.stored.talk, ident, key)
    if found is None:
        raise _missing(ident, "previous_response_id")
    return found


def _missing(ident: str, param: str | None = None) -> Problem:
    message = f"no response '{ident[:60]}' is kept here"
    code = "not_found" if param is None else "previous_response_not_found"
    return Problem(code, message, param=param)


async def _keep(reply: Reply, body: Responses, found: dict[str, Any]) -> None:
    """Keep an answer, unless the request or the server's settings say otherwise."""
    front = reply.front
    if front.settings.store and body.store is not False:
        kept = Stored(found, items_of(body), body.previous_response_id)
        await asyncio.to_thread(front.stored.put, found["id"], reply.job.key, kept)


async def kept(front: Front, ident: str, key: str) -> Stored:
    """Return a kept answer.

    Raises:
        Problem: There is none.
    """
    found = await asyncio.to_thread(front.stored.get, ident, key)
    if found is None:
        raise _missing(ident)
    return found


async def deleted(front: Front, ident: str, key: str) -> dict[str, Any]:
    """Remove a kept answer.

    Raises:
        Problem: There is none.
    """
    if not await asyncio.to_thread(front.stored.delete, ident, key):
        raise _missing(ident)
    return {"id": ident, "object": "response", "deleted": True}


def listed(found: Stored, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the items that a kept answer was asked, a page of them.

    Raises:
        Problem: `limit` or `order` has another form, or `after` is no item's id.
    """
    limit, order = query.get("limit", "20"), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _MOST_ITEMS):
        message = f"limit={limit[:20]}: must be a number from 1 to {_MOST_ITEMS}"
        raise Problem("invalid_value", message, param="limit")
    if order not in ("asc", "desc"):
        message = f"order={order[:20]}: must be asc or desc"
        raise Problem("invalid_value", message, param="order")
    items = [{"id": item.get("id") or f"item_{at}", **item} for at, item in enumerate(found.items)]
    items = items if order == "asc" else items[::-1]
    after, start = query.get("after"), 0
    if after is not None:
        start = 1 + next((at for at, item in enumerate(items) if item["id"] == after), -1)
        if not start:
            message = f"after={after[:60]}: no item of this response has this id"
            raise Problem("invalid_value", message, param="after")
    end = start + int(limit)
    data = items[start:end]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return {"object": "list", "data": data, "has_more": end < len(items), **ends}


def _ended(reply: Reply, *, last: bool) -> str:
    """Return the status of an item that has ended: `max_tokens` cuts the last one."""
    return "incomplete" if last and reply.only.reason == "length" else "completed"


def _part_of(part: Part, text: str) -> dict[str, Any]:
    if part.kind == "thinking":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(reply: Reply, asked: Asked, part: Part, text: str, status: str) -> Entries:
    """Return an item of an answer; `part` is the first of it."""
    if part.kind == "call":
        return asked.item(part.ident, part.text, text, status)
    own: Entries
    content = [] if status == "in_progress" else [_part_of(part, text)]
    if part.kind == "thinking":
        own = {"id": f"rs_{reply.job.id}", "type": "reasoning", "summary": []}
    else:
        own = {"id": f"msg_{reply.job.id}", "type": "message", "role": "assistant"}
    return {**own, "status": status, "content": content}


def _items(reply: Reply, asked: Asked, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a whole answer; the last one may have been cut."""
    found = [(Part(kind, ""), message[name]) for kind, name in _TEXTS.items() if message.get(name)]
    for call in message.get("tool_calls", ()):
        own = call["function"]
        found.append((Part("call", own["name"], 0, call["id"]), own["arguments"]))
    last = len(found) - 1
    return [
        _item(reply, asked, part, text, _ended(reply, last=at == last))
        for at, (part, text) in enumerate(found)
    ]


_TEXTS: Mapping[Kind, str] = {"thinking": "reasoning_content", "text": "content"}


def _response(
    reply: Reply, body: Responses, asked: Asked, items: list[Any] | None
) -> dict[str, Any]:
    """Return the response's object; without items, it is in progress."""
    cut = items is not None and reply.only.reason == "length"
    counts = None
    if items is not None:
        own = reply.usage()
        thought = own.get("completion_tokens_details", {"reasoning_tokens": 0})
        counts = {
            "input_tokens": own["prompt_tokens"],
            "input_tokens_details": own["prompt_tokens_details"],
            "output_tokens": own["completion_tokens"],
            "output_tokens_details": thought,
            "total_tokens": own["total_tokens"],
        }
    return {
        "id": reply.job.id,
        "object": "response",
        "created_at": reply.job.stamp,
        "model": reply.model,
        "status": "in_progress" if items is None else "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": {**(body.metadata or {}), **asked.metadata},
        "previous_response_id": body.previous_response_id,
        "store": reply.front.settings.store and body.store is not False,
        "output": items or [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "text": body.text or {"format": {"type": "text"}},
        "usage": counts,
        **costs(reply.job),
    }


class _Parts:
    """The events of a stream, which have numbers. An item is thinking, text, or one call."""

    def __init__(self, reply: Reply, body: Responses, asked: Asked) -> None:
        self._reply, self._body, self._asked = reply, body, asked
        self._number = itertools.count()
        self._items: list[dict[str, Any]] = []  # those that have ended
        self._begun = False
        self._open: Part | None = None  # the first part of the item that is open
        self._texts: list[str] = []  # of that item
        self._delta: Prepared | None = None

    def quick(self, ticket: Ticket, delta: Delta) -> bytes | None:
        """Return the events of a delta; None if none has begun."""
        if not self._begun:
            return None
        return b"".join(self._of(self._reply.take(ticket, delta)))

    async def events(self) -> AsyncIterator[bytes]:
        """Yield all events."""
        async for parts in self._reply.parts():
            yield b"".join(self._of(parts)) or KEEP_ALIVE
        yield self._closed(_ended(self._reply, last=True))
        found = _response(self._reply, self._body, self._asked, self._items)
        await _keep(self._reply, self._body, found)
        yield self._named(f"response.{found['status']}", response=found)

    def _of(self, parts: Sequence[Part]) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            for kind in ("response.created", "response.in_progress"):
                yield self._named(
                    kind, response=_response(self._reply, self._body, self._asked, None)
                )
        for part in parts:
            goes_on = self._open is not None and _KINDS[part.kind] == _KINDS[self._open.kind]
            if part.kind == "call" or not goes_on:
                yield self._closed("completed")
                yield self._opened(part)
            if part.kind != "call":
                self._texts.append(part.text)
                if self._delta is not None:
                    yield self._delta(next(self._number), part.text)

    def _named(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._number), **fields}, kind)

    def _where(self, part: Part) -> dict[str, Any]:
        item = _item(self._reply, self._asked, part, "", "in_progress")
        where = {"item_id": item["id"], "output_index": len(self._items)}
        return where if part.kind == "call" else {**where, "content_index": 0}

    def _opened(self, part: Part) -> bytes:
        self._open, where, kind = part, self._where(part), _KINDS[part.kind]
        if part.kind == "call" and self._asked.origin(part.text).custom:
            item = _item(self._reply, self._asked, part, "", "in_progress")
            at = len(self._items)
            return self._named("response.output_item.added", output_index=at, item=item)
        numbered = {"type": f"{kind}.delta", "sequence_number": HOLE, **where, "delta": HOLE}
        extra: Entries = {"logprobs": []} if part.kind == "text" else {}
        self._delta = Prepared({**numbered, **extra}, f"{kind}.delta")
        item = _item(self._reply, self._asked, part, "", "in_progress")
        added = self._named("response.output_item.added", output_index=len(self._items), item=item)
        if part.kind == "call":
            return added
        return added + self._named("response.content_part.added", **where, part=_part_of(part, ""))

    def _closed(self, status: str) -> bytes:
        """Close the item that is open."""
        if (part := self._open) is None:
            return b""
        whole, where, kind = "".join(self._texts), self._where(part), _KINDS[part.kind]
        item = _item(self._reply, self._asked, part, whole, status)
        if item["type"] == "custom_tool_call":  # its text is part of what the model writes
            kind, text = "response.custom_tool_call_input", item["input"]
            found = self._named(f"{kind}.delta", **where, delta=text)
            found += self._named(f"{kind}.done", **where, input=text)
        elif part.kind == "call":
            found = self._named(f"{kind}.done", **where, name=item["name"], arguments=whole)
        else:
            extra: Entries = {"logprobs": []} if part.kind == "text" else {}
            found = self._named(f"{kind}.done", **where, text=whole, **extra)
            own = _part_of(part, whole)
            found += self._named("response.content_part.done", **where, part=own)
        found += self._named("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._texts, self._open, self._delta = [], None, None
        return found


_KINDS = {
    "text": "response.output_text",
    "thinking": "response.reasoning_text",
    "call": "response.function_call_arguments",
    "arguments": "response.function_call_arguments",
}
