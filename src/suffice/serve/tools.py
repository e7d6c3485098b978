"""Tool calls."""

from __future__ import annotations
from typing import Any, Protocol

class Reader(Protocol):
    calls: list[dict[str, Any]]
    def push(self, text: str, *, last: bool) -> tuple[str, list[dict[str, Any]]]: ...
