"""The messages of a chat request, checked and as chat templates take them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from suffice.engine.inputs import conversation
from suffice.errors import InputError, brief, nearest, one_line

# OpenAI's. A template may know others, which it then names.
ROLES = ("assistant", "developer", "function", "system", "tool", "user")
_CALL = "{'id': ..., 'type': 'function', 'function': {'name': ..., 'arguments': ...}}"


def talk_of(
    messages: Sequence[Mapping[str, Any]], template: str | Mapping[str, str] | None
) -> list[dict[str, Any]]:
    """Return messages with contents as text and the arguments of their calls as objects.

    Calls without a content get an empty one, which many templates add to a text. A developer's
    message becomes a system's unless the template names developers.

    Raises:
        InputError: A message has another form, or a role that neither OpenAI's API nor the
            chat template knows: many templates would drop it without a word.
    """
    found = shaped(messages)
    source = template if isinstance(template, str) else " ".join((template or {}).values())
    for at, message in enumerate(found):
        role = message["role"]
        if re.search(f"""(['"]){re.escape(role)}\\1""", source):
            continue
        if role == "developer":
            message["role"] = "system"
        if role not in ROLES:
            hint = nearest(role[:60], ROLES)
            raise InputError(
                f"messages[{at}]: unknown role '{one_line(role, 60)}'.{hint} Known: "
                f"{', '.join(ROLES)}"
            )
    return found


def shaped(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with contents as text and the arguments of their calls as objects.

    Raises:
        InputError: A message has another form.
    """
    return conversation(
        [_with_objects(f"messages[{at}]", each) for at, each in enumerate(messages)]
    )


def _with_objects(where: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = message.get("tool_calls")
    if calls is None:
        return message
    if not isinstance(calls, list):
        raise InputError(f"{where}: tool_calls must be a list of {_CALL}, not {brief(calls)}")
    content = message.get("content")
    return {
        **message,
        "content": "" if content is None else content,
        "tool_calls": [_call(f"{where}.tool_calls[{at}]", each) for at, each in enumerate(calls)],
    }


def _call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f"{where}: must be {_CALL}, not {brief(call)}")
    given = function.get("arguments")
    arguments = given
    if given is None or isinstance(given, str):
        try:
            arguments = json.loads(given or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, Mapping):
        raise InputError(f"{where}: arguments must be a JSON object, not {brief(given)}")
    return {**call, "function": {**function, "arguments": arguments}}
