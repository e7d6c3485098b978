"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, made of a chat request."""

from __future__ import annotations

import json
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
from suffice.serve.dialects.fields import Extras, Objects, Texts, checked, json_kind, read_object
from suffice.serve.errors import Problem, blamed
from suffice.serve.http.front import Front
from suffice.serve.http.stream import HOLE, EventStream, Prepared, event
from suffice.serve.http.text import Room
from suffice.serve.processes.pending import Ticket

_ENDS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_IGNORED = ("metadata", "service_tier", "betas", "context_management")
_NAMES = {"stop": "stop_sequences", "response_format": "output_config"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Messages(BaseModel):
    """The fields of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = None
    messages: Objects = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    system: str | Objects | None = None
    stop_sequences: Texts | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = False
    tools: Objects | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    suffice: Extras = Extras()


class Create(Messages):
    """The fields of a request for an answer: Anthropic's API requires its length."""

    max_tokens: int = Field(ge=1)


async def create(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer a request."""
    try:
        body = _read(front, raw, Create)
        chat = chat_of(body)
        with blamed(_NAMES, before=body.system is not None):
            reply = await prepared(front, chat, key, "msg")
        if body.stream:
            parts = _Parts(reply)
            quick = parts.quick if reply.reader is None else None
            return EventStream(front, reply.job, parts.events(), b"", _failed, quick)
        try:
            whole = await reply.gathered(request)
        finally:
            front.finish(reply.job)
        return _json(_message(reply, whole))
    except Problem as problem:
        front.metrics.refused(problem.code)
        return _json(problem.messages_body(), problem.status, dict(problem.headers()))


async def count(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Return the number of tokens of a request."""
    try:
        body = chat_of(_read(front, raw, Messages))
        front.check_model(body.model)
        facts = {"tools": body.tools} if body.tools else {}
        room = Room(front.facts.max_model_len, "messages", apart=True)
        tokens = await front.text.run(
            lambda: front.text.chat(
                body.messages,
                room,
                add_generation_prompt=not body.continue_final_message,
                continue_last=body.continue_final_message,
                facts=facts,
                form=front.tool_form,
            ),
            "messages",
        )
        return _json({"input_tokens": len(tokens)})
    except Problem as problem:
        return _json(problem.messages_body(), problem.status, dict(problem.headers()))


def _read(front: Front, raw: bytes, kind: type[Messages]) -> Messages:
    given = read_object(raw)
    thinking = given.pop("thinking", None)
    if thinking is not None and thinking != {"type": "disabled"}:
        message = (
            f"thinking: must be {{'type': 'disabled'}}, not {brief(thinking)}: this server has no "
            "blocks of thinking"
        )
        raise Problem("unsupported", message, param="thinking")
    for name in _IGNORED:
        given.pop(name, None)
    return checked(given, kind, allow_unknown=front.settings.allow_unknown_fields)


def chat_of(body: Messages) -> Chat:
    """Return the chat request that a request stands for.

    The answer goes on where an assistant's message at the end stops.

    Raises:
        Problem: A block or a choice is not supported.
    """
    messages: list[dict[str, Any]] = []
    if body.system is not None:
        messages.append({"role": "system", "content": _text(body.system, "system")})
    for at, message in enumerate(body.messages):
        messages += _converted(message, f"messages[{at}]")
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stream": body.stream,
        "suffice": body.suffice.model_dump(),
        "response_format": _format((body.output_config or {}).get("format")),
    }
    last = messages[-1]
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        fields["continue_final_message"] = True
    kind = (body.tool_choice or {}).get("type")
    if kind in ("any", "tool") and not body.tools:
        raise Problem("invalid_value", f"tool_choice '{kind}' needs tools", param="tool_choice")
    if body.tools:
        fields["tools"] = [_tool(at, tool) for at, tool in enumerate(body.tools)]
        fields["tool_choice"], fields["parallel_tool_calls"] = _choice(body.tool_choice or {})
    return checked(fields, Chat)


def _format(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind != "json_schema" or not isinstance(given.get("schema"), (dict, bool)):
        must = "must be {'type': 'json_schema', 'schema': {...}}"
        message = f"output_config.format: {must}, not {brief(given)}"
        raise Problem("invalid_schema", message, param="output_config")
    return {"type": "json_schema", "json_schema": {"schema": given["schema"]}}


def _tool(at: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(tool.get("input_schema"), dict):
        message = f"tools[{at}]: must have a name and an input_schema"
        raise Problem("unsupported", message, param="tools")
    own = {"name": tool.get("name"), "description": tool.get("description", "")}
    return {"type": "function", "function": {**own, "parameters": tool["input_schema"]}}


def _choice(given: Mapping[str, Any]) -> tuple[Any, bool]:
    kind = given.get("type", "auto")
    parallel = not given.get("disable_parallel_tool_use", False)
    if kind == "tool":
        return {"type": "function", "function": {"name": given.get("name")}}, parallel
    if not isinstance(kind, str) or kind not in _CHOICES:
        message = f"tool_choice.type: must be auto, any, tool or none, not {brief(kind)}"
        raise Problem("invalid_value", message, param="tool_choice")
    return _CHOICES[kind], parallel


def _text(content: Any, where: str) -> str:
    """Return the text of a content that has no other blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Problem("invalid_value", f"{where}: must be text or a list of blocks", param=where)
    parts = []
    for block in content:
        text = block.get("text") if isinstance(block, dict) else None
        if not isinstance(text, str) or block.get("type") != "text":
            kind = block.get("type") if isinstance(block, dict) else json_kind(block)
            message = f"{where}: a block of type '{str(kind)[:40]}' is not supported here"
            raise Problem("unsupported", message, param=where.partition("[")[0])
        parts.append(text)
    return "\n".join(parts)


def _converted(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return a message as those of a chat: results of tools are messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise Problem("invalid_value", f"{where}: role must be user or assistant", param="messages")
    if not isinstance(content, list):
        return [{"role": role, "content": _text(content, where)}]
    texts, calls, found = [], [], []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input", {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            text = _text(block.get("content", ""), where)
            found.append(
                {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
            )
        elif kind not in ("thinking", "redacted_thinking"):
            texts.append(block)
    if texts or calls or not found:
        own: dict[str, Any] = {"role": role, "content": _text(texts, where)}
        found.append({**own, "tool_calls": calls} if calls else own)
    return found


def _message(reply: Reply, whole: Mapping[str, Any]) -> dict[str, Any]:
    (choice,) = whole["choices"]
    message = choice["message"]
    content: list[dict[str, Any]] = []
    if message["content"]:
        content.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        content.append({**_tool_use(call), "input": _input(call["function"]["arguments"])})
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


def _input(arguments: str) -> Any:
    """Return a call's arguments; none of one that was cut, as `stop_reason` says."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}


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
    """The events of a stream. A block is text, or one call."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._begun = self._text_open = False
        self._index = 0  # of the block
        self._delta = Prepared(
            {
                "type": "content_block_delta",
                "index": HOLE,
                "delta": {"type": "text_delta", "text": HOLE},
            },
            "content_block_delta",
        )

    def quick(self, ticket: Ticket, delta: Delta) -> bytes | None:
        """Return the event of a delta that adds to a text; None if no text is open."""
        if not self._text_open:
            return None
        return self._delta(self._index, delta.text) if delta.text else b""

    async def events(self) -> AsyncIterator[bytes]:
        """Yield all events."""
        reply = self._reply
        async for text, calls in reply.pieces():
            yield b"".join(self._of(text, calls)) or _named({"type": "ping"})
        if self._text_open:
            yield _block_stop(self._index)
        stopped = {"type": "message_delta", "delta": _stopped(*reply.end), "usage": _usage(reply)}
        stopped |= costs(reply.job)
        yield _named(stopped) + _named({"type": "message_stop"})

    def _of(self, text: str, calls: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            message = {**_head(self._reply), "content": [], **_stopped(None, None)}
            yield _named(
                {"type": "message_start", "message": {**message, "usage": _usage(self._reply)}}
            )
        if text:
            if not self._text_open:
                yield _block_start(self._index, {"type": "text", "text": ""})
                self._text_open = True
            yield self._delta(self._index, text)
        for call in calls:
            if self._text_open:
                yield _block_stop(self._index)
                self._index, self._text_open = self._index + 1, False
            arguments = call["function"]["arguments"]
            delta = {"type": "input_json_delta", "partial_json": arguments}
            yield _block_start(self._index, _tool_use(call))
            yield _block_delta(self._index, delta) + _block_stop(self._index)
            self._index += 1


def _block_start(index: int, block: Mapping[str, Any]) -> bytes:
    return _named({"type": "content_block_start", "index": index, "content_block": block})


def _block_delta(index: int, delta: Mapping[str, Any]) -> bytes:
    return _named({"type": "content_block_delta", "index": index, "delta": delta})


def _block_stop(index: int) -> bytes:
    return _named({"type": "content_block_stop", "index": index})


def _named(body: Mapping[str, Any]) -> bytes:
    return event(body, body["type"])


def _failed(problem: Problem) -> bytes:
    return event(problem.messages_body(), "error")


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")
