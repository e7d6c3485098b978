"""Conversations in files: JSON with the system prompt and the messages."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suffice.errors import InputError, check_text
from suffice.paths import PRIVATE, write_whole

KIND, SCHEMA = "suffice chat", 1
Message = dict[str, str]


@dataclass
class Talk:
    """A conversation: a system prompt, and alternating messages of the user and the model."""

    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    @property
    def whole(self) -> list[Message]:
        """All messages, the system prompt first."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages]


def save(path: Path, talk: Talk) -> None:
    """Write a conversation, either completely or not at all.

    Raises:
        InputError: The file cannot be written, or exists and is no saved chat.
    """
    if path.exists():
        try:
            load(path)
        except InputError as error:
            raise InputError(f"{error}: give another name") from None
    stored = {"kind": KIND, "schema": SCHEMA, "system": talk.system, "messages": talk.messages}
    text = json.dumps(stored, indent=1, ensure_ascii=False) + "\n"
    try:
        with write_whole(path, PRIVATE) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None


def load(path: Path) -> Talk:
    """Read a conversation that `save` wrote.

    Raises:
        InputError: The file cannot be read, or is no saved chat.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is no saved chat: it is not JSON") from None
    if not isinstance(stored, dict) or stored.get("kind") != KIND:
        raise InputError(f"{path} is no saved chat: it does not say kind '{KIND}'")
    if stored.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {stored.get('schema')!r:.40}; {SCHEMA} is known")
    system, messages = stored.get("system"), stored.get("messages")
    if not (system is None or isinstance(system, str)):
        raise InputError(f"{path}: 'system' must be text or null")
    if not isinstance(messages, list):
        raise InputError(f"{path}: 'messages' must be a list")
    if len(messages) % 2:
        raise InputError(f"{path}: 'messages' must end with the model's answer")
    check_text(f"{path}: system", system or "")
    return Talk(system, [_message(path, at, each) for at, each in enumerate(messages)])


def _message(path: Path, at: int, message: Any) -> Message:
    role = "assistant" if at % 2 else "user"
    if not isinstance(message, dict) or message.get("role") != role:
        raise InputError(f"{path}: messages[{at}] must have the role '{role}'")
    content = message.get("content")
    if not isinstance(content, str):
        raise InputError(f"{path}: messages[{at}] must have a text as its 'content'")
    check_text(f"{path}: messages[{at}]", content)
    return {"role": role, "content": content}
