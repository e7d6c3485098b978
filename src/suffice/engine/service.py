"""What the engine takes and gives: works, deltas, counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from suffice.errors import InputError
from suffice.sampling_params import SamplingParams


class Busy(Exception):
    """The queue is full; `wait` is the estimated time in seconds until there is room."""

    def __init__(self, message: str, wait: float = 1.0) -> None:
        super().__init__(message)
        self.wait = wait


class Closed(Exception):
    """The engine takes no more work."""


__all__ = ["Busy", "Closed", "Delta", "Engine", "EngineStats", "Final", "InputError", "Work"]


@dataclass(frozen=True)
class Work:
    """One request: tokens and how to go on from them."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    key: str = ""
    deadline: float | None = None
    attention: str | None = None
    reuse: bool = True
    known: tuple[tuple[int, ...], ...] = ()  # tokens that each sample has emitted already


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log probability."""

    token: int
    logprob: float
    rank: int
    text: str


@dataclass(frozen=True)
class Final:
    """What a request cost, with its last delta."""

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    drafts: int = 0
    accepted: int = 0
    key_rows_read: int = 0
    rows_held: int = 0
    value_rows_read: int = 0
    bytes_read: int = 0
    bytes_held: int = 0
    missing: float | None = None
    error: str | None = None
    error_code: str | None = None


@dataclass(frozen=True)
class Delta:
    """What a step gave one sample."""

    id: str
    sample: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    final: Final | None = None


@dataclass(frozen=True)
class EngineStats:
    """Counts of the engine."""

    running: int = 0
    waiting: int = 0
    kv_bytes_used: int = 0
    kv_bytes_limit: int = 0
    prefix_bytes: int = 0
    prefix_entries: int = 0
    prefix_hits: int = 0
    prefix_queries: int = 0
    preemptions: int = 0
    steps: int = 0
    last_step_at: float = 0.0


class Engine(Protocol):
    """An engine, used from any thread."""

    def submit(self, work: Work, on_delta: Callable[[Delta], None]) -> None: ...
    def cancel(self, id: str) -> bool: ...
    def stats(self) -> EngineStats: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...
