"""What the engine's process needs of an engine; tests have one without a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from suffice.engine.work import Delta, EngineStats, Grammar, Look, Work
from suffice.serve.processes import wire


class Engine(Protocol):
    """As `suffice.engine.service.Engine`, which is used by several threads."""

    def submit(self, work: Work, on_delta: Callable[[Delta], None]) -> None:
        """Queue a request."""

    def cancel(self, id: str) -> bool:
        """End a request at the next step."""

    def stats(self) -> EngineStats:
        """Return the counts."""

    def step_tokens(self) -> list[int]:
        """Return the tokens of each step since the last call."""

    def look(self) -> Look:
        """Return the counts, and what was read by layer and head."""

    def close(self) -> None:
        """Stop."""


@dataclass(frozen=True)
class Opened:
    """An engine as its process serves it; `compiled` makes grammars for its tokens."""

    engine: Engine
    facts: wire.Facts
    compiled: Callable[[str], Grammar]
