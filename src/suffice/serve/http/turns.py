"""The wait of a request for its model."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import Receive

from suffice.serve.errors import Problem
from suffice.serve.http.bodies import left


@dataclass(eq=False)
class Turn:
    """The wait of a request for its model; it ends when the model is loaded, and in use.

    Attributes:
        ident: The request's id; "" for none.
        key: Its API key.
        receive: What tells whether its client leaves; None if it has none.
        seconds: How long it took, once it is over.
    """

    ident: str = ""
    key: str = ""
    receive: Receive | None = None
    over: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    async def end(self, limit: float | None) -> None:
        """Wait until it is over.

        Raises:
            Problem: The model cannot be loaded, the client left, or `limit` seconds are over.
        """
        never = asyncio.get_running_loop().create_future
        leaves = never() if self.receive is None else asyncio.ensure_future(left(self.receive))
        waits = {self.over, leaves}
        try:
            done, _ = await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaves.cancel()
            self.seconds = time.monotonic() - self.began
        if self.over in done:
            self.over.result()
        elif done:
            raise Problem("cancelled", "the client left")
        else:
            raise Problem("deadline", f"the request took longer than {limit:g} seconds")


TURN: ContextVar[Turn | None] = ContextVar("turn", default=None)  # of the request that is answered
