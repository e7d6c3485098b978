"""What the engine reads now, a few times a second, while somebody watches it at `GET /live`."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from suffice.attention.rule import Guarantee, weakest
from suffice.engine.work import Delta, EngineStats, Look

if TYPE_CHECKING:
    from suffice.serve.processes.fleet import Fleet
    from suffice.serve.processes.pending import Ticket

FRAME_SECONDS = 0.25  # between two frames, at least
SILENT_SECONDS = 1.0  # a frame is sent although the engine says nothing
WINDOW_SECONDS = 1.0  # that a frame sums up
OLD_SECONDS = 3.0  # a look that is older is shown no more


class Live:
    """Keeps the last second of looks at the engine, for those who watch.

    Attributes:
        watchers: How many watch; without any, the engine sends nothing and nothing is kept.
    """

    def __init__(self, instance: Fleet) -> None:
        self.watchers = 0
        self._instance = instance
        self._instance.seen = self.saw
        self._looks: deque[tuple[float, Look]] = deque()
        self._gaps: deque[tuple[float, float]] = deque()
        self._firsts: deque[tuple[float, float]] = deque()
        self._known: deque[tuple[float, tuple[Guarantee, float]]] = deque()
        self._first_tokens = 0
        self._news = asyncio.Event()

    def saw(self, look: Look) -> None:
        """Take a look at the engine; nobody waits for one that was under way at the end."""
        if not self.watchers:
            return
        now = time.monotonic()
        if self._looks and look.stats.steps < self._looks[-1][1].stats.steps:
            self._looks.clear()  # of an engine that died
        self._looks.append((now, look))
        if look.guarantee is not None:
            self._known.append((now, (look.guarantee, look.missing)))
        while len(self._looks) > 2 and now - self._looks[1][0] >= WINDOW_SECONDS:
            self._looks.popleft()
        self._news.set()
        self._news = asyncio.Event()

    def delta(self, ticket: Ticket, delta: Delta) -> None:
        """Note the time to a request's first token or since its last one, and what it left out."""
        now = time.monotonic()
        if (final := delta.final) is not None:
            self._known.append((now, (final.guarantee, final.missing or 0.0)))
        if not delta.tokens:
            return
        if ticket.first_at is None:
            self._first_tokens += 1
            self._firsts.append((now, now - ticket.created))
        else:
            self._gaps.append((now, now - ticket.last_at))

    @property
    def _last(self) -> Look | None:
        return self._looks[-1][1] if self._looks else None

    async def frames(self, over: Callable[[], bool]) -> AsyncIterator[dict[str, Any]]:
        """Yield a frame for each look, at least every second, until `over`."""
        if not self.watchers:
            self._instance.watch(True)
        self.watchers += 1
        try:
            while not over():
                shown = self._last
                yield self.frame()
                await asyncio.sleep(FRAME_SECONDS)
                if shown is self._last:
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._news.wait(), SILENT_SECONDS - FRAME_SECONDS)
        finally:
            self.watchers -= 1
            if not self.watchers:
                self._instance.watch(False)
                for each in (self._looks, self._gaps, self._firsts, self._known):
                    each.clear()

    def frame(self) -> dict[str, Any]:
        """Return the state now, and the sums of the last second."""
        now = time.monotonic()
        for times in (self._gaps, self._firsts, self._known):
            while times and now - times[0][0] > WINDOW_SECONDS:
                times.popleft()
        if self._looks and now - self._looks[-1][0] > OLD_SECONDS:
            self._looks.clear()
        gaps = [gap for _, gap in self._gaps]
        ailment = self._instance.ailment()
        if ailment is None and not self._instance.ready:
            ailment = "the engine is being started"
        return {
            "ailment": ailment,
            "restarts": self._instance.restarts,
            "first_tokens": self._first_tokens,  # by which a reader knows those that are new
            "first_seconds": [seconds for _, seconds in self._firsts],
            "guarantee": weakest({guarantee for _, (guarantee, _) in self._known}),
            "missing": max((missing for _, (_, missing) in self._known), default=0.0),
            "gap_seconds": [statistics.median(gaps), max(gaps)] if gaps else None,
            **(_of_looks(*self._looks[0], *self._looks[-1]) if self._looks else {}),
        }


def _of_looks(began: float, first: Look, ended: float, last: Look) -> dict[str, Any]:
    """Return the fields of a frame that are between two looks, or of the last one."""
    stats = last.stats
    return {
        "seconds": ended - began,
        "key_rows": _between(first.key_rows, last.key_rows),
        "value_rows": _between(first.value_rows, last.value_rows),
        "rows_held": _between(first.rows_held, last.rows_held),
        **{name: getattr(stats, name) - getattr(first.stats, name) for name in _SUMS},
        **{name: getattr(stats, name) for name in _STATES},
        "since_start": {name: getattr(stats, name) for name in _TOTALS},
        "audit": last.audit,
    }


def _between(first: list[list[int]], last: list[list[int]]) -> list[list[int]]:
    return [
        [after - before for before, after in zip(*rows, strict=True)]
        for rows in zip(first, last, strict=True)
    ]


_STATES = (
    *("running", "waiting", "kv_bytes_used", "kv_bytes_limit"),
    *("prefix_bytes", "prefix_entries", "preemptions"),
)
_SUMS = (
    *("generated_tokens", "prompt_tokens", "drafts", "accepted", "steps"),
    *("kv_bytes_read", "kv_bytes_held", "weight_bytes_read", "state_bytes_moved"),
)
_TOTALS = ("key_rows_read", "value_rows_read", "rows_held", "kv_bytes_read", "kv_bytes_held")
assert set(_STATES + _SUMS + _TOTALS) <= set(EngineStats.__dataclass_fields__)
