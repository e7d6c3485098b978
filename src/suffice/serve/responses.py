"""`POST /v1/responses`: OpenAI's Responses API, without stored state, made of a chat request."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from suffice.serve.answer import Reply, costs, usage
from suffice.serve.chat import Chat, prepared
from suffice.serve.errors import Problem
from suffice.serve.fields import Extras, Objects, checked, read_object
from suffice.serve.front import Front
from suffice.serve.stream import KEEP_ALIVE, EventStream, event

_IGNORED = ("include", "reasoning", "truncation", "prompt_cache_options")
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "previous_response_id": (None,),
    "conversation": (None,),
    "background": (None, False),
    "prompt": (None,),
    "max_tool_calls": (None,),
    "top_logprobs": (None, 0),
}


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
    for name, allowed in _REFUSED.items():
        if given.pop(name, None) not in allowed:
            message = f"'{name}' is not supported: this server keeps no responses"
            raise Problem("unsupported", message, param=name)
    for name in _IGNORED:
        given.pop(name, None)
    body = checked(given, Responses, allow_unknown=front.settings.allow_unknown_fields)
    reply = await prepared(front, chat_of(body), key, "resp")
    if body.stream:
        return EventStream(front, reply.job, _events(reply, body), last=b"", failed=_failed)
    try:
        whole = await reply.gathered(request)
    finally:
        front.finish(reply.job)
    message = whole["choices"][0]["message"]
    items = []
    if message["content"]:
        items.append(_text_item(reply, message["content"]))
    items += [_call_item(call) for call in message.get("tool_calls", ())]
    found = _response(reply, body, items)
    return Response(msgspec.json.encode(found), 200, None, "application/json")


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
    if body.tools:
        fields["tools"] = [_tool(at, tool) for at, tool in enumerate(body.tools)]
        choice = body.tool_choice
        if isinstance(choice, dict):
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        fields["tool_choice"] = choice
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
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind not in ("input_text", "output_text", "text"):
        message = f"{where}: a part of type '{str(kind)[:40]}' is not supported here"
        raise Problem("unsupported", message, param="input")
    return {"type": "text", "text": part.get("text")}


def _format(given: Any) -> dict[str, Any] | None:
    if not isinstance(given, dict) or given.get("type") != "json_schema":
        return given  # type: ignore[no-any-return]
    return {"type": "json_schema", "json_schema": {"schema": given.get("schema", {})}}


def _tool(at: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        kind = str(tool.get("type"))[:40]
        message = f"tools[{at}]: a tool of type '{kind}' is not supported; functions are"
        raise Problem("unsupported", message, param="tools")
    own = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": "function", "function": own}


def _text_item(reply: Reply, text: str, status: str = "completed") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": f"msg_{reply.job.id}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [part] if status == "completed" else [],
    }


def _call_item(call: Mapping[str, Any], status: str = "completed") -> dict[str, Any]:
    function = call["function"]
    return {
        "id": f"fc_{call['id']}",
        "type": "function_call",
        "call_id": call["id"],
        "name": function["name"],
        "arguments": function["arguments"] if status == "completed" else "",
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


async def _events(reply: Reply, body: Responses) -> AsyncIterator[bytes]:
    """Yield the events of a stream."""
    numbers = itertools.count()

    def named(kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    items: list[dict[str, Any]] = []
    whole, begun, text_open = "", False, False
    where: dict[str, Any] = {"item_id": f"msg_{reply.job.id}", "output_index": 0}

    def closed() -> bytes:
        item = _text_item(reply, whole)
        items.append(item)
        (part,) = item["content"]
        inner = {**where, "content_index": 0}
        return (
            named("response.output_text.done", **inner, text=whole, logprobs=[])
            + named("response.content_part.done", **inner, part=part)
            + named("response.output_item.done", output_index=where["output_index"], item=item)
        )

    async for text, calls in reply.pieces():
        parts: list[bytes] = []
        if not begun:
            begun = True
            for kind in ("response.created", "response.in_progress"):
                parts.append(named(kind, response=_response(reply, body, None)))
        if text and not text_open:
            text_open = True
            where["output_index"] = len(items)
            item = _text_item(reply, "", "in_progress")
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            parts.append(named("response.output_item.added", output_index=len(items), item=item))
            parts.append(named("response.content_part.added", **where, content_index=0, part=part))
        if text:
            whole += text
            inner = {**where, "content_index": 0, "delta": text, "logprobs": []}
            parts.append(named("response.output_text.delta", **inner))
        for call in calls:
            if text_open:
                parts.append(closed())
                whole, text_open = "", False
            parts.append(_called(named, call, len(items)))
            items.append(_call_item(call))
        yield b"".join(parts) or KEEP_ALIVE
    if text_open:
        yield closed()
    found = _response(reply, body, items)
    yield named(f"response.{found['status']}", response=found)


def _called(named: Any, call: Mapping[str, Any], index: int) -> bytes:
    item, arguments = _call_item(call), call["function"]["arguments"]
    where = {"item_id": item["id"], "output_index": index}
    begun = _call_item(call, "in_progress")
    kind = "response.function_call_arguments"
    found: bytes = (
        named("response.output_item.added", output_index=index, item=begun)
        + named(f"{kind}.delta", **where, delta=arguments)
        + named(f"{kind}.done", **where, name=item["name"], arguments=arguments)
        + named("response.output_item.done", output_index=index, item=item)
    )
    return found


def _failed(problem: Problem) -> bytes:
    own = {"type": "error", "code": problem.code, "message": problem.message}
    return event({**own, "param": problem.param}, "error")
