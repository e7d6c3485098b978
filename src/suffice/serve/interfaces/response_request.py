"""Requests of OpenAI's Responses API, as requests of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from suffice.errors import brief
from suffice.serve.errors import Problem
from suffice.serve.interfaces.chat import Chat
from suffice.serve.interfaces.fields import (
    Extras,
    Objects,
    Texts,
    checked,
    json_kind,
    read_object,
)
from suffice.serve.interfaces.response_tools import Asked, earlier

_IGNORED = ("prompt_cache_options", "client_metadata", "return_progress")
Entries = dict[str, Any]
# Fields that would change the answer, with the values that ask for nothing, and why not.
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "conversation": ((None,), "previous_response_id goes on from an answer"),
    "background": ((None, False), "the answer comes with the request"),
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


class StreamOptions(BaseModel):
    """`stream_options`: nothing is added to events that hides how long they are."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_obfuscation: bool = False


class Responses(BaseModel):
    """The fields of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = None
    input: str | Objects
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | Texts | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    text: dict[str, Any] | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    reasoning: dict[str, Any] | None = None
    store: bool | None = None
    previous_response_id: str | None = Field(None, max_length=128)
    metadata: dict[str, str] | None = None
    suffice: Extras = Extras()


def read(raw: bytes, *, allow_unknown: bool) -> Responses:
    """Return a request's fields, checked.

    Raises:
        Problem: One is unknown, refused or of another type.
    """
    given = read_object(raw)
    for name, (allowed, why) in _REFUSED.items():
        if (value := given.pop(name, None)) not in allowed:
            message = f"{name}={brief(value)} is not supported: {why}"
            raise Problem("unsupported", message, param=name)
    for name in _IGNORED:
        given.pop(name, None)
    _check_included(given.pop("include", None))
    return checked(given, Responses, allow_unknown=allow_unknown)


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


def items_of(body: Responses) -> list[Any]:
    """Return the items that a request adds to a conversation."""
    if isinstance(body.input, str):
        return [{"type": "message", "role": "user", "content": body.input}]
    return body.input


def chat_of(body: Responses, before: Sequence[Any] = ()) -> tuple[Chat, Asked]:
    """Return the chat request that a request stands for, and its tools.

    `before` are the items of the conversation that it goes on with.

    Raises:
        Problem: An item or a tool has a form that is not its type's.
    """
    asked = Asked.of(body.tools or ())
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    for at, item in enumerate([*before, *items_of(body)], -len(before)):
        if (own := _message(item, f"input[{at}]")) is None:
            asked.note("item", item.get("type"))
        else:
            _add(messages, own)
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "max_tokens": body.max_output_tokens,
        **{name: getattr(body, name) for name in ("temperature", "top_p", "seed", "stop")},
        "stream": body.stream,
        "stream_options": None if body.stream_options is None else {},
        "response_format": _format((body.text or {}).get("format")),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": (body.reasoning or {}).get("effort"),
        "verbosity": (body.text or {}).get("verbosity"),
        "suffice": body.suffice.model_dump(),
    }
    if asked.functions:
        fields["tools"] = asked.functions
    return checked({**fields, "tool_choice": asked.choice(body.tool_choice)}, Chat), asked


def _add(messages: list[dict[str, Any]], own: dict[str, Any]) -> None:
    """Add a message to a conversation: an answer's thinking, text and calls are one."""
    last = messages[-1] if messages else {}
    if own["role"] == last.get("role") == "assistant":
        if "tool_calls" in own and "tool_calls" in last:
            messages[-1] = {**last, "tool_calls": [*last["tool_calls"], *own["tool_calls"]]}
            return
        if "tool_calls" in own and "tool_calls" not in last:
            messages[-1] = {**last, "tool_calls": own["tool_calls"]}
            return
        if not last["content"] and "tool_calls" not in last:  # thinking alone
            thoughts = [each.get("reasoning_content") for each in (last, own)]
            messages[-1] = {**last, **own, "reasoning_content": "\n".join(filter(None, thoughts))}
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


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Return an item as a message; None if no model is told of it.

    Raises:
        Problem: It has a part that is not supported.
    """
    kind = item.get("type", "message")
    if kind == "reasoning":
        return {"role": "assistant", "content": "", "reasoning_content": _thought(item)}
    if kind != "message":
        return earlier(item)
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
