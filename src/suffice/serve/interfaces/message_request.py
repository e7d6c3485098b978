"""Requests of Anthropic's Messages API, as requests of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from suffice.errors import brief
from suffice.serve.errors import Problem
from suffice.serve.interfaces.chat import Chat
from suffice.serve.interfaces.fields import Extras, Objects, Texts, checked, json_kind, read_object

_IGNORED = (
    *("metadata", "service_tier", "betas", "context_management", "return_progress"),
    *("speed", "inference_geo"),
)
_BILLING = "x-anthropic-billing-header:"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class OutputConfig(BaseModel):
    """`output_config`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    effort: str | None = None
    format: dict[str, Any] | None = None


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
    output_config: OutputConfig = OutputConfig()
    thinking: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    suffice: Extras = Extras()


class Create(Messages):
    """The fields of a request for an answer: Anthropic's API requires its length."""

    max_tokens: int = Field(ge=1)


def read(raw: bytes, kind: type[Messages], *, allow_unknown: bool) -> Messages:
    """Return a request's fields, checked.

    Raises:
        Problem: One is unknown, refused or of another type.
    """
    given = read_object(raw)
    for name in _IGNORED:
        given.pop(name, None)
    return checked(given, kind, allow_unknown=allow_unknown)


def _thinking(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a chat for `thinking`.

    Raises:
        Problem: It has another form.
    """
    if given is None:
        return {}
    kind, budget = given.get("type"), given.get("budget_tokens")
    whole = isinstance(budget, int) and not isinstance(budget, bool) and budget > 0
    if kind == "enabled" and (whole or budget is None):
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
        system = _text(_lasting(body.system), "system")
        if system or not isinstance(body.system, list):
            messages.append({"role": "system", "content": system})
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
        "response_format": _format(body.output_config.format),
        "reasoning_effort": body.output_config.effort,
        **_thinking(body.thinking),
    }
    last = messages[-1]
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        fields["continue_final_message"] = True
    kind = (body.tool_choice or {}).get("type")
    tools = [tool for tool in body.tools or () if not _of_a_server(tool)]
    if kind in ("any", "tool") and not tools:
        raise Problem("invalid_value", f"tool_choice '{kind}' needs tools", param="tool_choice")
    if tools:
        fields["tools"] = [_tool(at, tool) for at, tool in enumerate(tools)]
        fields["tool_choice"], fields["parallel_tool_calls"] = _choice(body.tool_choice or {})
    return checked(fields, Chat)


def marked(body: Messages) -> bool:
    """Whether a mark says that what precedes it shall stay kept, in messages.

    What precedes a mark in the system's text stays without it: all that begins so shares it.
    """
    contents = [message.get("content") for message in body.messages]
    blocks = [block for each in contents if isinstance(each, list) for block in each]
    marks = [block.get("cache_control") for block in blocks if isinstance(block, dict)]
    return any(each is not None for each in (body.cache_control, *marks))


def _lasting(system: str | list[dict[str, Any]]) -> Any:
    """Return the system's text without the block that Claude Code changes with every request.

    It says who pays. In a prompt, all that follows it would have to be computed again.
    """
    if isinstance(system, str):
        return system
    return [block for block in system if not str(block.get("text", "")).startswith(_BILLING)]


def _format(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if given is None:
        return None
    if given.get("type") != "json_schema" or not isinstance(given.get("schema"), (dict, bool)):
        must = "must be {'type': 'json_schema', 'schema': {...}}"
        message = f"output_config.format: {must}, not {brief(given)}"
        raise Problem("invalid_schema", message, param="output_config")
    return {"type": "json_schema", "json_schema": {"schema": given["schema"]}}


def _of_a_server(tool: Mapping[str, Any]) -> bool:
    """Whether a tool, such as a search, is one of Anthropic's servers: no model is told of it."""
    return tool.get("type") not in (None, "custom") and "input_schema" not in tool


def left_out(body: Messages, *, budget: bool) -> dict[str, Any]:
    """Return what an answer says of tools that are not here, and of a budget; else nothing."""
    kinds = sorted({str(tool["type"])[:40] for tool in body.tools or () if _of_a_server(tool)})
    gone = [*(f"tool {kind}" for kind in kinds), *(["thinking.budget_tokens"] if budget else ())]
    return {"metadata": {"left_out": ", ".join(gone)}} if gone else {}


def _tool(at: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(tool.get("input_schema"), dict):
        message = f"tools[{at}]: must have a name and an input_schema"
        raise Problem("unsupported", message, param="tools")
    own = {"name": tool.get("name"), "description": tool.get("description", "")}
    own |= {"parameters": tool["input_schema"], "strict": tool.get("strict")}
    return {"type": "function", "function": own}


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


def _of_a_server_block(kind: str) -> bool:
    """Whether a block is of no model here: of Anthropic's own tools, or hidden thinking."""
    own = ("thinking", "redacted_thinking", "server_tool_use")
    return kind in own or (kind.endswith("_tool_result") and kind != "tool_result")


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
        elif not _of_a_server_block(str(kind)):
            texts.append(block)
    if texts or calls or not found:
        own: dict[str, Any] = {"role": role, "content": _text(texts, where)}
        if thoughts:
            own["reasoning_content"] = "\n".join(thoughts)
        found.append({**own, "tool_calls": calls} if calls else own)
    return found
