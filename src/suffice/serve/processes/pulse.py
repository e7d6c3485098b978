"""Whether an engine goes on: how long it has said nothing, or has had work and made no step.

One that loads says nothing until it is ready. It goes on while its process computes or reads.

Seconds are counted in short turns of the server's own. Time in which the server did not run either,
because somebody stopped it or the machine slept, says nothing about an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from suffice.serve.settings import Settings

TURN_SECONDS = 0.25


class Pulse:
    """What the server knows of one engine's going on.

    Attributes:
        idle: Seconds since it last computed or read, while it loads.
        silent: Seconds since its last message, once it has loaded.
        stuck: Seconds with work since its last step.
    """

    def __init__(self) -> None:
        self.idle = self.silent = self.stuck = 0.0
        self._spent: tuple[int, ...] = ()

    def heard(self, *, step: bool) -> None:
        """Note a message, and whether it tells of a step."""
        self.idle = self.silent = 0.0
        if step:
            self.stuck = 0.0

    def passed(self, seconds: float, *, busy: bool) -> None:
        """Note that time has passed, and whether the engine has work."""
        self.silent += seconds
        self.stuck = self.stuck + seconds if busy else 0.0

    def loads(self, seconds: float, *, spent: tuple[int, ...]) -> None:
        """Note that time has passed while it loads; `spent` grows if it computes or reads."""
        self.idle = self.idle + seconds if spent == self._spent else 0.0
        self._spent = spent

    def ailment(self, settings: Settings) -> str | None:
        """Return why the engine is not healthy, in a line; None if it is."""
        if self.silent > settings.heartbeat_seconds:
            return f"the engine has said nothing for {self.silent:.0f} seconds"
        if self.stuck > settings.step_seconds:
            return f"the engine has work and made no step for {self.stuck:.0f} seconds"
        return None

    def hangs(self, settings: Settings) -> str | None:
        """Return why the engine is to be replaced, in a line; None if it is not."""
        if self.idle > settings.hang_seconds:
            return f"it loads the model and has done nothing for {self.idle:.0f} seconds"
        if self.silent > settings.hang_seconds:
            return f"it has said nothing for {self.silent:.0f} seconds"
        if self.stuck > settings.hang_seconds:
            return f"it has work and made no step for {self.stuck:.0f} seconds"
        return None


async def turns() -> AsyncIterator[float]:
    """Yield the seconds of each turn; of one that came late, no more than two turns take."""
    loop = asyncio.get_running_loop()
    before = loop.time()
    while True:
        await asyncio.sleep(TURN_SECONDS)
        now = loop.time()
        yield min(now - before, 2 * TURN_SECONDS)
        before = now
