"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, made of a chat request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from suffice.dialects.reader import Part
from suffice.engine.work import Delta
from suffice.errors import brief
from suffice.serve.errors import Problem, blamed
from suffice.serve.http.front import Front
from suffice.serve.http.stream import HOLE, EventStream, Prepared, event
from suffice.serve.http.text import Room
from suffice.serve.interfaces.answer import Reply
from suffice.serve.interfaces.chat import Chat, facts_of, prepared
from suffice.serve.interfaces.costs import costs, usage
from suffice.serve.interfaces.fields import Extras, Objects, Texts, checked, json_kind, read_object
from suffice.serve.interfaces.tools import Tools
from suffice.serve.processes.pending import Ticket

_ENDS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_IGNORED = ("metadata", "service_tier", "betas", "context_management", "return_progress")
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
    thinking: dict[str, Any] | None = None
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
            return EventStream(front, reply.job, parts.events(), b"", _failed, parts.quick)
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
        room = Room(front.facts.max_model_len, "messages", apart=True)
        tokens = await front.text.run(
            lambda: (
                front.text.chat(
                    body.messages,
                    room,
                    add_generation_prompt=not body.continue_final_message,
                    continue_last=body.continue_final_message,
                    facts=facts_of(body, Tools(body.tools or (), body.tool_choice, True)),
                ).tokens
            ),
            "messages",
        )
        return _json({"input_tokens": len(tokens)})
    except Problem as problem:
        return _json(problem.messages_body(), problem.status, dict(problem.headers()))


def _read(front: Front, raw: bytes, kind: type[Messages]) -> Messages:
    given = read_object(raw)
    for name in _IGNORED:
        given.pop(name, None)
    return checked(given, kind, allow_unknown=front.settings.allow_unknown_fields)


def _thinking(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a chat for `thinking`.

    Raises:
        Problem: It has another form.
    """
    if given is None:
        return {}
    kind, budget = given.get("type"), given.get("budget_tokens")
    whole = isinstance(budget, int) and not isinstance(budget, bool) and budget > 0
    if kind == "enabled" and whole:
        return {"enable_thinking": True, "thinking_token_budget": budget}
    if kind in ("adaptive", "disabled"):
        return {} if kind == "adaptive" else {"enable_thinking": False}
    message = (
        "thinking: must be {'type': 'adaptive'}, {'type': 'disabled'} or {'type': 'enabled', "
        f"'budget_tokens': ...}}, not {brief(given)}"
    )
    raise Problem("invalid_value", message, param="thinking")


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
        "reasoning_effort": (body.output_config or {}).get("effort"),
        **_thinking(body.thinking),
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
    texts, calls, found, thoughts = [], [], [], []
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
        elif kind == "thinking" and role == "assistant":
            thoughts.append(str(block.get("thinking", "")))
        elif kind not in ("thinking", "redacted_thinking"):
            texts.append(block)
    if texts or calls or not found:
        own: dict[str, Any] = {"role": role, "content": _text(texts, where)}
        if thoughts:
            own["reasoning_content"] = "\n".join(thoughts)
        found.append({**own, "tool_calls": calls} if calls else own)
    return found


def _message(reply: Reply, whole: Mapping[str, Any]) -> dict[str, Any]:
    (choice,) = whole["choices"]
    message = choice["message"]
    content: list[dict[str, Any]] = []
    if thought := message.get("reasoning_content"):
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
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
    """The events of a stream. A block is thinking, text, or one call."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
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
        stopped = {"type": "message_delta", "delta": _stopped(*reply.end), "usage": _usage(reply)}
        stopped |= costs(reply.job)
        yield _named(stopped) + _named({"type": "message_stop"})

    def _of(self, parts: Sequence[Part]) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            message = {**_head(self._reply), "content": [], **_stopped(None, None)}
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


def _failed(problem: Problem) -> bytes:
    return event(problem.messages_body(), "error")


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")
