"""A request's tools and how they may be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any

from suffice.dialects.grammar import Held
from suffice.engine.structured import SPACES
from suffice.errors import brief
from suffice.serve.errors import Problem

_MOST_TOOLS = 128


class Tools:
    """A request's tools and how they may be used.

    Attributes:
        given: As the chat template is told of them: whether they are strict is no affair of it.
        choice: "none", "auto" or "required".
        allowed: The names of the tools that may be called.
    """

    def __init__(self, given: Sequence[dict[str, Any]], choice: Any, parallel: bool) -> None:
        """Check the fields of a request.

        Raises:
            Problem: They have another form.
        """
        self.parallel = parallel
        if len(given) > _MOST_TOOLS:
            message = f"{len(given)} tools given; at most {_MOST_TOOLS} are allowed"
            raise Problem("invalid_value", message, param="tools")
        names = [self._name(at, tool) for at, tool in enumerate(given)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            message = f"tools: '{twice[:60]}' is there twice"
            raise Problem("invalid_value", message, param="tools")
        both = zip(names, given, strict=True)
        self._functions = {name: dict(tool["function"]) for name, tool in both}
        self._strict = {name for name, each in self._functions.items() if each.pop("strict", None)}
        own = zip(given, self._functions.values(), strict=True)
        self.given = [{**tool, "function": function} for tool, function in own]
        self.choice, self.allowed = self._choice(choice)

    @staticmethod
    def _name(at: int, tool: dict[str, Any]) -> str:
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            message = f"tools[{at}]: must be {{'type': 'function', 'function': {{'name': ...}}}}"
            raise Problem("invalid_value", message, param="tools")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise Problem("invalid_value", f"tools[{at}]: the function has no name", param="tools")
        parameters = function.get("parameters")
        known = isinstance(parameters, dict) and parameters.get("type", "object") == "object"
        if parameters is not None and not known:
            message = f"tools[{at}]: parameters must be the schema of an object"
            raise Problem("invalid_value", f"{message}, not {brief(parameters)}", param="tools")
        if not isinstance(strict := function.get("strict"), (bool, NoneType)):
            message = f"tools[{at}]: strict must be true or false, not {brief(strict)}"
            raise Problem("invalid_value", message, param="tools")
        return name

    def _choice(self, choice: Any) -> tuple[str, list[str]]:
        """Return the choice in a word, and the names of the tools that it is among."""
        every = list(self._functions)
        if choice is None:
            return "auto" if self.given else "none", every
        if not self.given and (choice == "required" or isinstance(choice, dict)):
            own = "required" if choice == "required" else brief(choice)
            raise Problem("invalid_value", f"tool_choice={own} needs tools", param="tool_choice")
        if isinstance(choice, dict):
            found = self._narrowed(choice)
            if found is not None:
                return found
        elif choice in ("none", "auto", "required"):
            return str(choice), every
        message = "tool_choice: must be none, auto or required"
        if known := ", ".join(self._functions)[:200]:
            message += (
                f", or {{'type': 'function', 'function': {{'name': ...}}}} of {known}, or "
                "{'type': 'allowed_tools', 'allowed_tools': {'mode': 'auto' or 'required', "
                "'tools': [...]}} with such functions"
            )
        raise Problem("invalid_value", message, param="tool_choice")

    def _narrowed(self, choice: dict[str, Any]) -> tuple[str, list[str]] | None:
        """Return what a choice says that names functions; None if it has another form."""
        given = choice.get("allowed_tools")
        if choice.get("type") != "allowed_tools":
            name = self._named(choice)
            return None if name is None else ("required", [name])
        if not isinstance(given, dict) or given.get("mode") not in ("auto", "required"):
            return None
        several = given.get("tools")
        names = [self._named(each) for each in several] if isinstance(several, list) else []
        known = [name for name in names if name is not None]
        return (given["mode"], known) if names and len(known) == len(names) else None

    def _named(self, choice: Any) -> str | None:
        function = choice.get("function") if isinstance(choice, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        return name if isinstance(name, str) and name in self._functions else None

    @property
    def used(self) -> bool:
        """Whether the model may call one."""
        return bool(self.given) and self.choice != "none"

    @property
    def schemas(self) -> dict[str, Any] | None:
        """The schemas of parameters by name; None if the model may call no tool."""
        return self._schemas(self._functions) if self.used else None

    @property
    def binding(self) -> bool:
        """Whether not every call may be made, by their choice or by a tool that is strict."""
        narrowed = self.choice == "required" or len(self.allowed) < len(self._functions)
        return self.used and (narrowed or not self._strict.isdisjoint(self.allowed))

    def held(self, *, form: bool) -> Held | None:
        """Return what calls are held to by a grammar; None if every call may be made.

        `form` says that the answer's text obeys a grammar: then calls have to do so as well.
        """
        if not (self.binding or (self.used and form)):
            return None
        # Of a schema that nobody asked to be kept to, parts that are not supported are left out.
        options = SPACES if self.binding else {**SPACES, "lenient": True}
        several = self.parallel and not (self.choice == "required" and len(self.allowed) == 1)
        return Held(self._schemas(self.allowed), self.choice == "required", several, options)

    def _schemas(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: self._functions[name].get("parameters") for name in names}
