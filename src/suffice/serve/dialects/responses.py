"""`POST /v1/responses`: OpenAI's Responses API, without stored state, made of a chat request."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from suffice.engine.work import Delta
from suffice.errors import brief
from suffice.serve.dialects.answer import Reply
from suffice.serve.dialects.chat import Chat, prepared
from suffice.serve.dialects.costs import costs, usage
from suffice.serve.dialects.fields import Extras, Objects, checked, json_kind, read_object
from suffice.serve.errors import Problem, blamed
from suffice.serve.http.front import Front
from suffice.serve.http.stream import HOLE, KEEP_ALIVE, EventStream, Prepared, event
from suffice.serve.processes.pending import Ticket

_IGNORED = ("reasoning", "prompt_cache_options")
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
        quick = parts.quick if reply.reader is None else None
        return EventStream(front, reply.job, parts.events(), b"", _failed, quick)
    try:
        whole = await reply.gathered(request)
    finally:
        front.finish(reply.job)
    message = whole["choices"][0]["message"]
    calls = message.get("tool_calls", ())
    items = []
    if message["content"]:
        items.append(_text_item(reply, message["content"], _ended(reply, last=not calls)))
    for at, call in enumerate(calls, 1):
        items.append(_call_item(call, _ended(reply, last=at == len(calls))))
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
        messages.append(_message(item, f"input[{at}]"))
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": body.stream,
        "response_format": _format((body.text or {}).get("format")),
        "parallel_tool_calls": body.parallel_tool_calls,
        "suffice": body.suffice.model_dump(),
    }
    choice = body.tool_choice
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    fields["tool_choice"] = choice
    if body.tools:
        fields["tools"] = [_tool(at, tool) for at, tool in enumerate(body.tools)]
    return checked(fields, Chat)


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


def _text_item(reply: Reply, text: str, status: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": f"msg_{reply.job.id}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [] if status == "in_progress" else [part],
    }


def _call_item(call: Mapping[str, Any], status: str) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": f"fc_{call['id']}",
        "type": "function_call",
        "call_id": call["id"],
        "name": function["name"],
        "arguments": "" if status == "in_progress" else function["arguments"],
        "status": status,
    }


def _response(reply: Reply, body: Responses, items: list[Any] | None) -> dict[str, Any]:
    """Return the response's object; without items, it is in progress."""
    cut = items is not None and reply.end[0] == "length"
    counts = None
    if items is not None:
        own = usage(reply.job)
        counts = {
            "input_tokens": own["prompt_tokens"],
            "input_tokens_details": own["prompt_tokens_details"],
            "output_tokens": own["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
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
    """The events of a stream, which have numbers. An item is text, or one call."""

    def __init__(self, reply: Reply, body: Responses) -> None:
        self._reply, self._body = reply, body
        self._number = itertools.count()
        self._items: list[dict[str, Any]] = []  # those that have ended
        self._begun = False
        self._text: list[str] = []
        self._delta: Prepared | None = None  # of the text that is open

    def quick(self, ticket: Ticket, delta: Delta) -> bytes | None:
        """Return the event of a delta that adds to a text; None if no text is open."""
        if self._delta is None:
            return None
        return self._added(delta.text) if delta.text else b""

    async def events(self) -> AsyncIterator[bytes]:
        """Yield all events."""
        async for text, calls in self._reply.pieces():
            yield b"".join(self._of(text, calls)) or KEEP_ALIVE
        if self._delta is not None:
            yield self._closed(_ended(self._reply, last=True))
        found = _response(self._reply, self._body, self._items)
        yield self._named(f"response.{found['status']}", response=found)

    def _of(self, text: str, calls: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            for kind in ("response.created", "response.in_progress"):
                yield self._named(kind, response=_response(self._reply, self._body, None))
        if text:
            if self._delta is None:
                yield self._opened()
            yield self._added(text)
        for at, call in enumerate(calls, 1):
            if self._delta is not None:
                yield self._closed("completed")
            yield self._called(call, _ended(self._reply, last=at == len(calls)))

    def _named(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._number), **fields}, kind)

    def _where(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self._reply.job.id}", "output_index": len(self._items)}

    def _opened(self) -> bytes:
        kind, where = "response.output_text.delta", {**self._where(), "content_index": 0}
        numbered = {"type": kind, "sequence_number": HOLE}
        self._delta = Prepared({**numbered, **where, "delta": HOLE, "logprobs": []}, kind)
        item = _text_item(self._reply, "", "in_progress")
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        added = self._named("response.output_item.added", output_index=len(self._items), item=item)
        return added + self._named("response.content_part.added", **where, part=part)

    def _added(self, text: str) -> bytes:
        assert self._delta is not None, "a text is open"
        self._text.append(text)
        return self._delta(next(self._number), text)

    def _closed(self, status: str) -> bytes:
        whole, where = "".join(self._text), {**self._where(), "content_index": 0}
        item = _text_item(self._reply, whole, status)
        (part,) = item["content"]
        found = (
            self._named("response.output_text.done", **where, text=whole, logprobs=[])
            + self._named("response.content_part.done", **where, part=part)
            + self._named("response.output_item.done", output_index=len(self._items), item=item)
        )
        self._items.append(item)
        self._text, self._delta = [], None
        return found

    def _called(self, call: Mapping[str, Any], status: str) -> bytes:
        item, at = _call_item(call, status), len(self._items)
        where = {"item_id": item["id"], "output_index": at}
        given = call["function"]["arguments"]
        kind = "response.function_call_arguments"
        self._items.append(item)
        return (
            self._named(
                "response.output_item.added", output_index=at, item=_call_item(call, "in_progress")
            )
            + self._named(f"{kind}.delta", **where, delta=given)
            + self._named(f"{kind}.done", **where, name=item["name"], arguments=given)
            + self._named("response.output_item.done", output_index=at, item=item)
        )


def _failed(problem: Problem) -> bytes:
    own = {"type": "error", "code": problem.code, "message": problem.message}
    return event({**own, "param": problem.param}, "error")
