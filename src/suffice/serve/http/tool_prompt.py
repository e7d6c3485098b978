"""Tools for models whose chat template has no place for them: described in the system message.

Calls and their results in a conversation become text as well, which the template would drop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

_TEACHES = {
    "hermes": (
        "You can call functions. These are the functions, as JSON, one a line:\n<tools>\n{tools}\n"
        "</tools>\nTo call a function, write its name and its arguments as JSON between tags, and "
        "one pair of tags for each call:\n<tool_call>\n"
        '{{"name": "...", "arguments": {{...}}}}\n</tool_call>'
    ),
    "llama3": (
        "You can call functions. These are the functions, as JSON, one a line:\n{tools}\n"
        "To call a function, answer with nothing but its name and its parameters as JSON: "
        '{{"name": "...", "parameters": {{...}}}}\nSeparate several calls by semicolons.'
    ),
}


def taught(messages: Sequence[Message], tools: Sequence[Any] | None, form: str) -> list[Message]:
    """Return a conversation without tools, calls and results, which its texts have instead."""
    found: list[Message] = []
    results: list[str] = []
    for message in [*messages, None]:
        if message is not None and message["role"] == "tool":
            results.append(_result(message["content"], form))
            continue
        if results:  # one message: many templates want turns
            found.append({"role": "user", "content": "\n".join(results)})
            results = []
        if message is not None:
            found.append(_with_calls(message, form) if message.get("tool_calls") else message)
    if not tools:
        return found
    lines = "\n".join(json.dumps(each, ensure_ascii=False) for each in tools)
    text = _TEACHES[form].format(tools=lines)
    if not found or found[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": text}, *found]
    own = found[0]["content"]
    return [{**found[0], "content": f"{own}\n\n{text}" if own else text}, *found[1:]]


def _with_calls(message: Message, form: str) -> Message:
    """Return an assistant's message whose text ends with its calls."""
    calls = [_call(each, form) for each in message["tool_calls"]]
    parts = [message.get("content") or "", ("\n" if form == "hermes" else "; ").join(calls)]
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": "\n".join(part for part in parts if part)}


def _call(call: Any, form: str) -> str:
    function: Mapping[str, Any] = call["function"]
    field = "arguments" if form == "hermes" else "parameters"
    said = {"name": function.get("name"), field: function.get("arguments") or {}}
    text = json.dumps(said, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>" if form == "hermes" else text


def _result(text: str, form: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>" if form == "hermes" else text
