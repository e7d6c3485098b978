"""`POST /v1/responses`: OpenAI's Responses API, without stored state, made of a chat request."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from suffice.dialects.reader import Kind, Part
from suffice.engine.work import Delta
from suffice.errors import brief
from suffice.serve.errors import Problem, blamed
from suffice.serve.http.front import Front
from suffice.serve.http.stream import HOLE, KEEP_ALIVE, EventStream, Prepared, event
from suffice.serve.interfaces.answer import Reply
from suffice.serve.interfaces.chat import Chat, prepared
from suffice.serve.interfaces.costs import costs
from suffice.serve.interfaces.fields import Extras, Objects, checked, json_kind, read_object
from suffice.serve.processes.pending import Ticket

_IGNORED = ("prompt_cache_options", "return_progress")
Entries = dict[str, Any]
# Fields that would change the answer, with the values that ask for nothing, and why not.
_STATE = "this server keeps no responses"
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "previous_response_id": ((None,), _STATE),
    "conversation": ((None,), _STATE),
    "background": ((None, False), _STATE),
    "prompt": ((None,), "this server keeps no prompts"),
    "max_tool_calls": ((None,), "this server has no built-in tools"),
    "top_logprobs": ((None, 0), "/v1/chat/completions has log probabilities"),
    "truncation": ((None, "disabled"), "must be 'disabled'; a prompt that is too long is refused"),
}
_LOGPROBS = "message.output_text.logprobs"
# Of items that no answer here has: there is nothing to include.
_INCLUDED = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
_FORMS = (
    "text.format: must be {'type': 'text'}, {'type': 'json_object'} or {'type': 'json_schema', "
    "'name': ..., 'schema': {...}, 'strict': True}"
)

_NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text"}


class Responses(BaseModel):
    """The fields of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = None
    input: str | Objects
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = False
    text: dict[str, Any] | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    reasoning: dict[str, Any] | None = None
    suffice: Extras = Extras()


async def create(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer a request.

    Raises:
        Problem: It cannot be answered.
    """
    given = read_object(raw)
    for name, (allowed, why) in _REFUSED.items():
        if (value := given.pop(name, None)) not in allowed:
            message = f"{name}={brief(value)} is not supported: {why}"
            raise Problem("unsupported", message, param=name)
    for name in _IGNORED:
        given.pop(name, None)
    _check_included(given.pop("include", None))
    body = checked(given, Responses, allow_unknown=front.settings.allow_unknown_fields)
    with blamed(_NAMES, before=body.instructions is not None):
        reply = await prepared(front, chat_of(body), key, "resp")
    if body.stream:
        parts = _Parts(reply, body)
        return EventStream(front, reply.job, parts.events(), b"", _failed, parts.quick)
    try:
        whole = await reply.gathered(request)
    finally:
        front.finish(reply.job)
    items = _items(reply, whole["choices"][0]["message"])
    found = _response(reply, body, items)
    return Response(msgspec.json.encode(found), 200, None, "application/json")


def _check_included(given: Any) -> None:
    """Refuse an `include` that asks for what answers do not have."""
    for each in given if isinstance(given, list) else [] if given is None else [given]:
        if each in _INCLUDED:
            continue
        if each == _LOGPROBS:
            message = f"include: '{each}' is not supported: {_REFUSED['top_logprobs'][1]}"
            raise Problem("unsupported", message, param="include")
        message = f"include: must be a list of {', '.join(_INCLUDED)}, not {brief(each)}"
        raise Problem("invalid_value", message, param="include")


def chat_of(body: Responses) -> Chat:
    """Return the chat request that a request stands for.

    Raises:
        Problem: An item or a tool is not supported.
    """
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for at, item in enumerate(items):
        _add(messages, item, f"input[{at}]")
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": body.stream,
        "response_format": _format((body.text or {}).get("format")),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": (body.reasoning or {}).get("effort"),
        "suffice": body.suffice.model_dump(),
    }
    choice = body.tool_choice
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    fields["tool_choice"] = choice
    if body.tools:
        fields["tools"] = [_tool(at, tool) for at, tool in enumerate(body.tools)]
    return checked(fields, Chat)


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    """Add an item to a conversation: an answer's thinking, text and calls are one message."""
    if item.get("type") == "reasoning":
        own = {"role": "assistant", "content": "", "reasoning_content": _thought(item)}
    else:
        own = _message(item, where)
    last = messages[-1] if messages else {}
    if own["role"] == last.get("role") == "assistant" and "tool_calls" not in last:
        if not last["content"] and "reasoning_content" in last:
            messages[-1] = {**last, **own}
            return
        if "tool_calls" in own:
            messages[-1] = {**last, "tool_calls": own["tool_calls"]}
            return
    if "tool_calls" in own and "tool_calls" in last:
        last["tool_calls"] += own["tool_calls"]
        return
    messages.append(own)


def _thought(item: Mapping[str, Any]) -> str:
    """Return the text of a reasoning item; other servers may have encrypted it."""
    for name in ("content", "summary"):
        parts = item.get(name)
        texts = [
            str(part.get("text", ""))
            for part in (parts if isinstance(parts, list) else ())
            if isinstance(part, dict)
        ]
        if texts:
            return "\n".join(texts)
    return ""


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        output = item.get("output")
        text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": text}
    if kind != "message":
        message = f"{where}: an item of type '{str(kind)[:40]}' is not supported here"
        raise Problem("unsupported", message, param="input")
    role, content = item.get("role"), item.get("content")
    role = "system" if role == "developer" else role
    if isinstance(content, list):
        content = [_part(part, where) for part in content]
    return {"role": role, "content": content}


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else json_kind(part)
    if kind not in ("input_text", "output_text", "text"):
        message = f"{where}: a part of type '{str(kind)[:40]}' is not supported here"
        raise Problem("unsupported", message, param="input")
    return {"type": "text", "text": part.get("text")}


def _format(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind in ("text", "json_object"):
        return {"type": kind}
    known = kind == "json_schema" and isinstance(given.get("schema"), (dict, bool))
    if not known or given.get("strict") not in (None, True, False):
        raise Problem("invalid_schema", f"{_FORMS}, not {brief(given)}", param="text")
    return {"type": "json_schema", "json_schema": {"schema": given["schema"]}}


def _tool(at: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        kind = str(tool.get("type"))[:40]
        message = f"tools[{at}]: a tool of type '{kind}' is not supported; functions are"
        raise Problem("unsupported", message, param="tools")
    own = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": "function", "function": own}


def _ended(reply: Reply, *, last: bool) -> str:
    """Return the status of an item that has ended: `max_tokens` cuts the last one."""
    return "incomplete" if last and reply.end[0] == "length" else "completed"


def _part_of(part: Part, text: str) -> dict[str, Any]:
    if part.kind == "thinking":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(reply: Reply, part: Part, text: str, status: str) -> dict[str, Any]:
    """Return an item of an answer; `part` is the first of it."""
    own: Entries
    if part.kind == "call":
        own = {"id": f"fc_{part.ident}", "type": "function_call", "call_id": part.ident}
        return {**own, "name": part.text, "arguments": text, "status": status}
    content = [] if status == "in_progress" else [_part_of(part, text)]
    if part.kind == "thinking":
        own = {"id": f"rs_{reply.job.id}", "type": "reasoning", "summary": []}
    else:
        own = {"id": f"msg_{reply.job.id}", "type": "message", "role": "assistant"}
    return {**own, "status": status, "content": content}


def _items(reply: Reply, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a whole answer; the last one may have been cut."""
    found = [(Part(kind, ""), message[name]) for kind, name in _TEXTS.items() if message.get(name)]
    for call in message.get("tool_calls", ()):
        own = call["function"]
        found.append((Part("call", own["name"], 0, call["id"]), own["arguments"]))
    last = len(found) - 1
    return [
        _item(reply, part, text, _ended(reply, last=at == last))
        for at, (part, text) in enumerate(found)
    ]


_TEXTS: Mapping[Kind, str] = {"thinking": "reasoning_content", "text": "content"}


def _response(reply: Reply, body: Responses, items: list[Any] | None) -> dict[str, Any]:
    """Return the response's object; without items, it is in progress."""
    cut = items is not None and reply.end[0] == "length"
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
        "metadata": {},
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

    def __init__(self, reply: Reply, body: Responses) -> None:
        self._reply, self._body = reply, body
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
        found = _response(self._reply, self._body, self._items)
        yield self._named(f"response.{found['status']}", response=found)

    def _of(self, parts: Sequence[Part]) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            for kind in ("response.created", "response.in_progress"):
                yield self._named(kind, response=_response(self._reply, self._body, None))
        for part in parts:
            goes_on = self._open is not None and _KINDS[part.kind] == _KINDS[self._open.kind]
            if part.kind == "call" or not goes_on:
                yield self._closed("completed")
                yield self._opened(part)
            if part.kind != "call" and self._delta is not None:
                self._texts.append(part.text)
                yield self._delta(next(self._number), part.text)

    def _named(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._number), **fields}, kind)

    def _where(self, part: Part) -> dict[str, Any]:
        item = _item(self._reply, part, "", "in_progress")
        where = {"item_id": item["id"], "output_index": len(self._items)}
        return where if part.kind == "call" else {**where, "content_index": 0}

    def _opened(self, part: Part) -> bytes:
        self._open, where, kind = part, self._where(part), _KINDS[part.kind]
        numbered = {"type": f"{kind}.delta", "sequence_number": HOLE, **where, "delta": HOLE}
        extra: Entries = {"logprobs": []} if part.kind == "text" else {}
        self._delta = Prepared({**numbered, **extra}, f"{kind}.delta")
        item = _item(self._reply, part, "", "in_progress")
        added = self._named("response.output_item.added", output_index=len(self._items), item=item)
        if part.kind == "call":
            return added
        return added + self._named("response.content_part.added", **where, part=_part_of(part, ""))

    def _closed(self, status: str) -> bytes:
        """Close the item that is open."""
        if (part := self._open) is None:
            return b""
        whole, where, kind = "".join(self._texts), self._where(part), _KINDS[part.kind]
        item = _item(self._reply, part, whole, status)
        if part.kind == "call":
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


def _failed(problem: Problem) -> bytes:
    own = {"type": "error", "code": problem.code, "message": problem.message}
    return event({**own, "param": problem.param}, "error")
