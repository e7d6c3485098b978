"""Tools of the Responses API, and the calls that they become: chats know functions alone.

A namespace's functions are functions whose names begin with its name. A custom tool, which takes a
text, is a function with one parameter. Tools that a server itself would have to be, such as a
search of the web, are left out, as are types that nobody here knows: programs send them to every
server, and must be told no more than that they are not there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suffice.dialects.form import without_halves
from suffice.serve.errors import Problem

_INPUT = "input"  # of a custom tool
_TEXT = {
    "type": "object",
    "properties": {_INPUT: {"type": "string"}},
    "required": [_INPUT],
    "additionalProperties": False,
}
Entries = dict[str, Any]


@dataclass(frozen=True)
class Origin:
    """The tool that a function stands for."""

    name: str
    namespace: str | None = None
    custom: bool = False

    @property
    def function(self) -> str:
        """The function's name."""
        return self.name if self.namespace is None else f"{self.namespace.rstrip('_')}__{self.name}"

    def item(self, call: str, arguments: str, status: str) -> Entries:
        """Return the item of a call, as far as its arguments have come."""
        own: Entries = {"call_id": call, "name": self.name, "status": status}
        if self.custom:
            text = _input_of(arguments)
            return {"id": f"ctc_{call}", "type": "custom_tool_call", **own, _INPUT: text}
        if self.namespace is not None:
            own["namespace"] = self.namespace
        return {"id": f"fc_{call}", "type": "function_call", **own, "arguments": arguments}


def _input_of(arguments: str) -> str:
    """Return the text of a custom tool's call; of one that was cut, what there is."""
    try:
        found = json.loads(arguments or "{}", strict=False)
    except (ValueError, RecursionError):
        return arguments
    text = found.get(_INPUT, "") if isinstance(found, dict) else found
    text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
    return without_halves(text)


@dataclass
class Asked:
    """The tools of a request.

    Attributes:
        functions: As a chat has them.
        origins: What the functions stand for, by their names.
        left_out: What the model is not told of, for the answer's metadata.
    """

    functions: list[Entries] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> Asked:
        """Return the tools of a request.

        Raises:
            Problem: One that is known has another form.
        """
        found = cls()
        for at, tool in enumerate(tools):
            if tool.get("type") == "namespace":
                inner = tool.get("tools")
                for each in inner if isinstance(inner, list) else ():
                    found._add(f"tools[{at}]", each, str(tool.get("name")))
            else:
                found._add(f"tools[{at}]", tool, None)
        return found

    def _add(self, where: str, tool: Any, namespace: str | None) -> None:
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if kind not in ("function", "custom"):
            self.note("tool", kind)
            return
        if not isinstance(tool.get("name"), str):
            raise Problem("invalid_value", f"{where}: the tool has no name", param="tools")
        origin = Origin(tool["name"], namespace, kind == "custom")
        own = {key: tool[key] for key in ("description", "parameters", "strict") if key in tool}
        if origin.custom:
            own["parameters"] = _TEXT
        self.functions.append({"type": "function", "function": {"name": origin.function, **own}})
        self.origins[origin.function] = origin

    def note(self, what: str, kind: Any) -> None:
        """Note what is left out, once."""
        shown = f"{what} {str(kind)[:40]}"
        if shown not in self.left_out:
            self.left_out.append(shown)

    def origin(self, function: str) -> Origin:
        """Return what a function stands for; itself if it is no tool of the request."""
        return self.origins.get(function, Origin(function))

    def item(self, call: str, function: str, arguments: str, status: str) -> Entries:
        """Return the item of a call, as far as its arguments have come."""
        return self.origin(function).item(call, arguments, status)

    def choice(self, given: Any) -> Any:
        """Return a choice among these tools as a chat has it, without what is left out."""
        if not isinstance(given, Mapping):
            gone = given == "auto" or (given == "required" and self.left_out)
            return None if gone and not self.functions else given
        if given.get("type") != "allowed_tools":
            return self._function(given)
        tools, mode = given.get("tools"), given.get("mode")
        kept = [
            self._function(each)
            for each in (tools if isinstance(tools, list) else ())
            if not isinstance(each, Mapping) or each.get("type") in ("function", "custom")
        ]
        if tools and not kept and mode == "auto":  # none of these can be called here
            return "none"
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": kept}}

    @staticmethod
    def _function(given: Any) -> Entries:
        name = given.get("name") if isinstance(given, Mapping) else None
        return {"type": "function", "function": {"name": name}}

    @property
    def metadata(self) -> dict[str, str]:
        """What the answer says of what was left out."""
        return {"left_out": ", ".join(self.left_out)[:512]} if self.left_out else {}


def earlier(item: Mapping[str, Any]) -> Entries | None:
    """Return the function's call, or its result, that an item of a conversation stands for.

    None if it is neither.
    """
    kind, call = item.get("type"), item.get("call_id")
    if kind in ("function_call", "custom_tool_call"):
        custom, namespace = kind == "custom_tool_call", item.get("namespace")
        name = Origin(str(item.get("name")), namespace if isinstance(namespace, str) else None)
        arguments = item.get("arguments", "{}")
        if custom:
            arguments = json.dumps({_INPUT: item.get(_INPUT, "")}, ensure_ascii=False)
        function = {"name": name.function, "arguments": arguments}
        calls = [{"id": call, "type": "function", "function": function}]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    if kind in ("function_call_output", "custom_tool_call_output"):
        return {"role": "tool", "tool_call_id": call, "content": _output(item.get("output"))}
    return None


def _output(output: Any) -> str:
    """Return a result as text; one of parts that are all texts is these."""
    if isinstance(output, str):
        return output
    parts = output if isinstance(output, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    if parts and len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
        return "\n".join(map(str, texts))
    return json.dumps(output, ensure_ascii=False)
