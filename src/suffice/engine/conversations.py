"""The forms in which users give conversations, brought to the one that chat templates take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suffice.errors import InputError, check_text

_MESSAGE = "{'role': ..., 'content': ...}"


def split_talks(messages: Any) -> list[Any]:
    """Return the conversations of one, or of a list of them.

    Raises:
        InputError: There is none, or it is not a list.
    """
    _check_list(messages, "messages", f"a list of {_MESSAGE}, or a list of such lists")
    return list(messages) if _is_list(messages[0]) else [messages]


def conversation(messages: Any) -> list[dict[str, Any]]:
    """Return a conversation's messages, each content a text.

    Contents may be in OpenAI's form, [{"type": "text", "text": ...}]; the texts are joined by line
    breaks, as vLLM does.

    Raises:
        InputError: It is empty, not a list of messages, or has parts that are not text.
    """
    _check_list(messages, "messages", f"a list of {_MESSAGE}")
    return [_message(f"messages[{at}]", message) for at, message in enumerate(messages)]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _check_list(value: Any, name: str, form: str) -> None:
    if not _is_list(value):
        raise InputError(f"{name}: must be {form}, not {type(value).__name__}")
    if not value:
        raise InputError("the conversation is empty: give at least one message")


def _message(name: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InputError(f"{name}: must be {_MESSAGE}, not {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise InputError(f"{name}: needs a 'role', such as 'user'")
    check_text(f"{name}: the role", role)
    if content is None and message.get("tool_calls"):
        return dict(message)
    return {**message, "content": _content(f"{name}: content", content)}


def _content(name: str, content: Any) -> str:
    if _is_list(content):
        return "\n".join(_part(f"{name}[{at}]", part) for at, part in enumerate(content))
    if not isinstance(content, str):
        raise InputError(
            f"{name} must be text or a list of {{'type': 'text', 'text': ...}}, "
            f"not {type(content).__name__}"
        )
    check_text(name, content)
    return content


def _part(name: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text" or not isinstance(part, Mapping):
        raise InputError(f"{name} is of type '{kind}': only 'text' parts are supported")
    if not isinstance(part.get("text"), str):
        raise InputError(f"{name} needs a 'text'")
    text: str = part["text"]
    check_text(name, text)
    return text
