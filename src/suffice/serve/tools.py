"""Tool calls in the text of a model."""

from __future__ import annotations

from typing import Any, Protocol


class Reader(Protocol):
    """Finds the tool calls in one sample's text, as it comes.

    `calls` are those found so far, in OpenAI's form.
    """

    calls: list[dict[str, Any]]

    def push(self, text: str, *, last: bool) -> tuple[str, list[dict[str, Any]]]:
        """Return what of the text so far is content, and changes of calls as they are streamed."""
        ...
