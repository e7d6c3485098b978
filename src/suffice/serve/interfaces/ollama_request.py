"""Requests of Ollama's API, as requests of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from suffice.engine.option_values import seconds
from suffice.errors import OptionError, brief, nearest, one_line
from suffice.serve.errors import Problem
from suffice.serve.http.front import Front
from suffice.serve.http.models import LATEST
from suffice.serve.interfaces.chat import Chat
from suffice.serve.interfaces.fields import Objects, checked

# Options, and the fields of a chat that they are.
_SAME = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_tokens",
}
# Options of how a model runs, which is not for a request to say here.
_OF_RUNNING = frozenset(
    {
        *("num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "numa"),
        *("low_vram", "f16_kv", "vocab_only", "logits_all", "num_keep"),
    }
)
# Others, with the values that ask for nothing.
_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "typical_p": (1, 1.0),
    "tfs_z": (1, 1.0),
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_tau": (5, 5.0),
    "repeat_last_n": (-1, 64),
    "penalize_newline": (True,),
}


class Request(BaseModel):
    """What both kinds of requests have."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    stream: bool | None = True
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | int | float | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None


class Talk(Request):
    """The fields of `/api/chat`."""

    messages: Objects = Field(default_factory=list)
    tools: Objects | None = None

    @property
    def asks(self) -> bool:
        """Whether there is something to answer; else a model is loaded, or unloaded."""
        return bool(self.messages)


class Generate(Request):
    """The fields of `/api/generate`."""

    prompt: str = ""
    system: str | None = None
    suffix: str | None = None
    raw: bool | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None

    @property
    def asks(self) -> bool:
        """See `Talk`."""
        return bool(self.prompt)


def named(front: Front, name: str) -> str:
    """Return the name that the server has for a model.

    Raises:
        Problem: It is not served here.
    """
    known = (*front.settings.names, *front.settings.adapters)
    if name not in known and name.removesuffix(LATEST) in known:
        name = name.removesuffix(LATEST)
    return front.check_model(name)


def keep(front: Front, given: str | int | float | None) -> None:
    """Keep a model loaded for as long as a request says, if it does; else as one before it said.

    A time of 0 was of that request alone: it unloads the model.

    Raises:
        Problem: That is no time.
    """
    if (found := seconds_of(given)) is not None or front.keep_seconds == 0:
        front.keep_seconds = found


def unloads(body: BaseModel) -> bool:
    """Whether a request does nothing but unload its model, which need not be loaded for it."""
    return isinstance(body, Talk | Generate) and not body.asks and seconds_of(body.keep_alive) == 0


def seconds_of(given: str | int | float | None) -> float | None:
    """Return the time for which a request keeps its model, in seconds; None if it says none.

    Raises:
        Problem: It is no time.
    """
    try:
        return None if given is None else seconds("keep_alive", given)
    except OptionError as error:
        message = f"keep_alive={brief(given)}: {error.must}"
        raise Problem("invalid_value", message, param="keep_alive") from None


def chat_of(front: Front, body: Talk | Generate) -> Chat:
    """Return the chat request that a request stands for.

    Raises:
        Problem: An option or a field is not supported.
    """
    fields: dict[str, Any] = {
        "model": named(front, body.model),
        "stream": bool(body.stream),
        "response_format": _format(body.format),
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs,
        **_thinking(body.think),
        **options_of(front, body.options or {}),
    }
    if isinstance(body, Talk):
        tools = [{"type": "function", **each} for each in body.tools or ()]
        fields |= {"messages": [_message(each) for each in body.messages], "tools": tools}
        last = body.messages[-1] if body.messages else {}
        if last.get("role") == "assistant" and last.get("content"):
            fields["continue_final_message"] = True
        return checked(fields, Chat)
    for name in ("suffix", "template", "context", "images", "raw"):
        if getattr(body, name):
            raise Problem("unsupported", f"'{name}' is not supported here", param=name)
    system = [] if body.system is None else [{"role": "system", "content": body.system}]
    fields["messages"] = [*system, {"role": "user", "content": body.prompt}]
    return checked(fields, Chat)


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in a chat's form.

    Raises:
        Problem: It has images.
    """
    if given.get("images"):
        raise Problem("unsupported", "images are not supported: this is text", param="messages")
    known = {key: value for key, value in given.items() if key not in ("images", "tool_name")}
    calls = known.get("tool_calls")
    if isinstance(calls, list):
        known["tool_calls"] = [
            {"type": "function", "id": str(at), **each} if isinstance(each, dict) else each
            for at, each in enumerate(calls)
        ]
    return known


def _format(given: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if given is None or given == "":
        return None
    if given == "json":
        return {"type": "json_object"}
    if isinstance(given, dict):
        return {"type": "json_schema", "json_schema": {"schema": given}}
    message = f"format: must be 'json' or a schema, not {brief(given)}"
    raise Problem("invalid_schema", message, param="format")


def _thinking(think: bool | str | None) -> dict[str, Any]:
    if think is None:
        return {}
    if isinstance(think, bool):
        return {"enable_thinking": think}
    return {"enable_thinking": True, "reasoning_effort": think}


def options_of(front: Front, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as fields of a chat.

    Raises:
        Problem: One is unknown, or asks for what is not here.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in _SAME:
            found[_SAME[name]] = value
        elif name == "num_ctx":
            _check_context(value)
        elif name in _NOTHING and value not in _NOTHING[name]:
            message = f"options.{name}={brief(value)} is not supported here"
            raise Problem("unsupported", message, param="options")
        elif name not in _NOTHING and name not in _OF_RUNNING:
            if front.settings.allow_unknown_fields:
                continue
            near = nearest(name[:60], sorted({*_SAME, *_OF_RUNNING, *_NOTHING}))
            message = f"unknown option '{one_line(name, 60)}'.{near}"
            raise Problem("unknown_field", message, param="options")
    if found.get("seed") == -1:  # any
        del found["seed"]
    most = found.get("max_tokens")
    if isinstance(most, int) and most < 0:  # until the context is full
        del found["max_tokens"]
    return found


def _check_context(value: Any) -> None:
    """Check the wish for a context; what is beyond the server's is not there, as in Ollama."""
    if not isinstance(value, int) or value < 1:
        message = f"options.num_ctx={brief(value)}: must be a number of at least 1"
        raise Problem("invalid_value", message, param="options")
