"""A request's tools and how they may be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from suffice.dialects.speech import Speech
from suffice.engine.structured import SPACES
from suffice.errors import brief
from suffice.serve.errors import Problem

_MOST_TOOLS = 128


class Tools:
    """A request's tools and how they may be used.

    Attributes:
        choice: "none", "auto", "required", or the name of the one to call.
    """

    def __init__(self, given: Sequence[dict[str, Any]], choice: Any, parallel: bool) -> None:
        """Check the fields of a request.

        Raises:
            Problem: They have another form.
        """
        self.given = list(given)
        self.parallel = parallel
        if len(self.given) > _MOST_TOOLS:
            message = f"{len(self.given)} tools given; at most {_MOST_TOOLS} are allowed"
            raise Problem("invalid_value", message, param="tools")
        names = [self._name(at, tool) for at, tool in enumerate(given)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            message = f"tools: '{twice[:60]}' is there twice"
            raise Problem("invalid_value", message, param="tools")
        both = zip(names, given, strict=True)
        self._functions = {name: tool["function"] for name, tool in both}
        self.choice = self._choice(choice)

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
        return name

    def _choice(self, choice: Any) -> str:
        if choice is None:
            return "auto" if self.given else "none"
        if not self.given and (choice == "required" or isinstance(choice, dict)):
            own = "required" if choice == "required" else brief(choice)
            raise Problem("invalid_value", f"tool_choice={own} needs tools", param="tool_choice")
        if isinstance(choice, dict):
            function = choice.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            if isinstance(name, str) and name in self._functions:
                return str(name)
        elif choice in ("none", "auto", "required"):
            return str(choice)
        message = "tool_choice: must be none, auto or required"
        if known := ", ".join(self._functions)[:200]:
            message += f", or {{'type': 'function', 'function': {{'name': ...}}}} of {known}"
        raise Problem("invalid_value", message, param="tool_choice")

    @property
    def used(self) -> bool:
        """Whether the model may call one."""
        return bool(self.given) and self.choice != "none"

    @property
    def schemas(self) -> dict[str, Any] | None:
        """The schemas of parameters by name; None if the model may call no tool."""
        return self._schemas(self._functions) if self.used else None

    @property
    def obliged(self) -> list[str]:
        """The tools that the model must choose from; none if it need not call any."""
        if self.choice in ("none", "auto"):
            return []
        return list(self._functions) if self.choice == "required" else [self.choice]

    def grammar(self, speech: Speech) -> str | None:
        """Return the grammar of answers that must call; None if they need not."""
        if not self.obliged:
            return None
        from llguidance import LLMatcher

        several = self.parallel and self.choice == "required"
        text = speech.grammar(self._schemas(self.obliged), SPACES, several=several)
        found: str = LLMatcher.grammar_from_lark(text)
        return found

    def _schemas(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: self._functions[name].get("parameters") for name in names}
