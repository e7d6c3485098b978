"""The models at one address: one that is always there, or several that come and go.

Of several, a model is loaded when a request asks for it. It leaves when it has been idle for as
long as `--keep-alive` says, or when another needs its place: its memory, or its part of
`--max-loaded`. Changes are made one after the other, in the order of the requests that need them;
a model that has to leave ends its requests first, and later ones wait for its return.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from suffice.errors import InputError, nearest
from suffice.serve.errors import Problem
from suffice.serve.http.bodies import Bodies, cancelled, stopping
from suffice.serve.http.front import FleetOf, Front
from suffice.serve.http.served import Served
from suffice.serve.http.text import Text
from suffice.serve.http.turns import Turn
from suffice.serve.processes.cores import Leases, lease
from suffice.serve.processes.life import room_for
from suffice.serve.processes.local_fleet import LocalFleet
from suffice.serve.processes.metrics import page_of
from suffice.serve.settings import Settings

LOG = logging.getLogger("suffice.serve")
LOOK_SECONDS = 0.5  # between two looks for models that have been idle for long
MOST_STARTS = 10  # of an engine that dies while it loads, while requests wait for it
LATEST = ":latest"  # ends a name without another version, in Ollama's API


class Models:
    """What is served at an address; the event loop's thread alone uses it.

    Attributes:
        settings: Those of the address: the first model's, which others share.
        lazy: Whether models are loaded when they are asked for.
        served: The models in order.
    """

    def __init__(
        self, given: Sequence[Settings], text: Text | None = None, fleet: FleetOf | None = None
    ) -> None:
        """Prepare models: with the engines that `fleet` makes, or those of this machine.

        Raises:
            InputError: Two models have a name in common, there are fewer cores than engines or
                their threads, or weights cannot be shared.
        """
        self.settings = given[0]
        self.lazy = len(given) > 1 or self.settings.keep_alive is not None
        self.bodies = Bodies(self.settings.max_body_bytes, self.settings.body_seconds)
        self._leases = Leases([])
        if fleet is None:
            self._leases = lease(self.settings.instances, self.settings.options.get("threads"))
            for note in self._leases.notes:
                LOG.warning("%s", note)
            fleet = partial(LocalFleet, self._leases.shares)
        self._text = text
        self.served = [Served(Front(each, fleet, text)) for each in given]
        self._named = _by_name(self.served)
        self._draining = False
        self._queue: list[Served] = []  # that are wanted
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        for each in self.served:
            each.front.lost = partial(self._lost, each)
        # Is told that the only model can be served no more.
        self.lost: Callable[[str], None] = lambda why: None

    # -- The server's life ---------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model, if there is one and it is to stay.

        Raises:
            InputError: The model or an option cannot be used.
            Problem: The engine died before it was ready.
        """
        if self.lazy:
            self._run(self._watch())
            return
        (only,) = self.served
        await only.front.start()
        only.state = "loaded"

    async def close(self) -> None:
        """Stop all engines and end what is left."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.front.close() for each in self.served))
        if self._text is not None:
            self._text.close()
        self._leases.close()

    @property
    def draining(self) -> bool:
        """Whether no more requests are taken."""
        return self._draining

    @draining.setter
    def draining(self, value: bool) -> None:
        self._draining = value
        for each in self.served:
            each.front.draining = value

    @property
    def hurried(self) -> bool:
        """Whether requests do not end by themselves any more."""
        return self.served[0].front.hurried

    @hurried.setter
    def hurried(self, value: bool) -> None:
        for each in self.served:
            each.front.hurried = value

    async def drain(self) -> None:
        """Take no more requests; return when those that run have ended, or their time is up.

        Those whose bodies have not come or whose model is not there are refused at once.
        """
        self.draining = True
        self.bodies.stop()
        for each in self.served:
            each.refuse(stopping())
        await asyncio.gather(*(each.front.drain() for each in self.served))

    def renew(self) -> None:
        """Replace the engines of models that are loaded by new ones."""
        for each in self.served:
            if each.state == "loaded":
                each.front.instance.renew()

    # -- Which model ---------------------------------------------------------------------------

    def find(self, name: Any, *, tagged: bool = False) -> Served:
        """Return the model that a request names; None is the first.

        With `--any-model` this is the first for every name that is not known. `tagged`: a name may
        end with `:latest`.

        Raises:
            Problem: There is none of this name.
        """
        if not isinstance(name, str) or not self.lazy:
            return self.served[0]  # whose front checks the name
        found = self._named.get(name)
        if found is None and tagged:
            found = self._named.get(name.removesuffix(LATEST))
        if found is not None or self.settings.any_model:
            return found or self.served[0]
        near = nearest(name[:200], list(self._named))
        first = ", ".join(each.names[0] for each in self.served[:20])
        message = f"the model '{name[:60]}' is not served here.{near} Served: {first}"
        raise Problem("model_not_found", message, param="model")

    def metrics(self) -> bytes:
        """Return all metrics in Prometheus's text form."""
        return page_of([each.front.metrics for each in self.served])

    def refused(self, reason: str) -> None:
        """Count a request that was refused."""
        self.served[0].front.metrics.refused(reason)

    def cancel(self, ident: str, key: str) -> bool:
        """End a request by its id; return whether there was one of this API key."""
        for each in self.served:
            if (turn := each.waits(ident, key)) is not None:
                turn.over.set_exception(cancelled())
                self._forget(each, turn)
                return True
        return any(each.front.cancel(ident, key) for each in self.served)

    # -- Their use -----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def using(self, served: Served, turn: Turn | None = None) -> AsyncIterator[Front]:
        """Yield a model's front once the model is loaded, and keep it loaded meanwhile.

        `turn` is whose turn it is then.

        Raises:
            Problem: It cannot be loaded, too many wait for it, the client leaves, or the server
                stops.
        """
        if served.state == "loaded":
            served.users += 1
        else:
            await self._wait(served, turn or Turn())
        try:
            yield served.front
        finally:
            self._leave(served)

    def _leave(self, served: Served) -> None:
        served.users -= 1
        served.note()

    async def _wait(self, served: Served, turn: Turn) -> None:
        """Wait until a model is loaded; it counts as used from then on."""
        if self._draining:
            raise stopping()
        if len(served.waiting) >= self.settings.max_queue:
            message = f"{len(served.waiting)} requests wait for this model to be loaded already"
            raise Problem("queue_full", message, wait=5.0)
        self.want(served, turn)
        try:
            await turn.end(self.settings.request_seconds)
        except BaseException:
            if not turn.over.done():
                self._forget(served, turn)
            elif turn.over.exception() is None:
                self._leave(served)
            raise

    def _forget(self, served: Served, turn: Turn) -> None:
        """End a wait: a model that leaves for it alone may stay."""
        served.waiting.remove(turn)
        for each in self.served:
            each.look()

    def want(self, served: Served, turn: Turn) -> None:
        """Have a model loaded; the turn is over when it is, and in use."""
        served.waiting.append(turn)
        if served not in self._queue:
            self._queue.append(served)
            if len(self._queue) == 1:
                self._run(self._load_wanted())

    async def _load_wanted(self) -> None:
        """Load the models that are wanted, one after the other."""
        while self._queue:
            served = self._queue[0]
            async with self._changing:
                try:
                    if served.state != "loaded" and await self._make_room(served):
                        await self._load(served)
                except Problem as problem:
                    LOG.error("%s: %s", served.names[0], problem.message)
                    served.fault = problem.message
                    served.refuse(problem)
            del self._queue[0]
            self._admit(served)

    def _admit(self, served: Served) -> None:
        """Let the requests that wait for a model go on: it is loaded, and all of them use it."""
        for turn in served.waiting:
            served.users += 1
            turn.over.set_result(None)
        served.waiting.clear()

    async def _make_room(self, served: Served) -> bool:
        """Unload the models that were used least recently until another one fits.

        Returns False if nobody waits for that one any more.
        """
        while served.waiting and not self._fits(served):
            there = [each for each in self.served if each.state == "loaded"]
            least = min(there, key=lambda each: (not each.idle, each.used))
            await self._unload(least, lambda: served.waiting)
        return bool(served.waiting)

    def _fits(self, served: Served) -> bool:
        there = sum(each.state == "loaded" for each in self.served)
        most = self.settings.max_loaded
        if not there or (most is not None and there >= most):
            return not there
        return room_for(served.size())

    async def _load(self, served: Served) -> None:
        """Load a model; an engine that dies meanwhile is started again, while requests wait.

        Raises:
            Problem: It cannot be loaded.
        """
        name, tries = served.names[0], 0
        served.state, served.front.draining = "loading", self._draining
        served.front.keep_seconds = None
        LOG.warning("%s is being loaded", name)
        try:
            while True:
                tries += 1
                try:
                    await served.front.start()
                    break
                except Problem as problem:
                    if tries == MOST_STARTS or not served.waiting:
                        message = f"the engine of {name} died at each of {tries} starts"
                        raise Problem(problem.code, message) from None
                    await served.front.close()
            served.state, served.fault = "loaded", None
        except InputError as error:
            raise Problem("load_failed", f"{name} cannot be loaded: {error}") from None
        finally:
            if served.state != "loaded":
                served.state = "unloaded"
                await served.front.close()

    async def _unload(self, served: Served, wanted: Callable[[], object] = lambda: True) -> None:
        """End a model's engine, once its requests have ended; later ones wait for its return.

        The model stays if its end is not `wanted` any more by then.
        """
        served.state = "leaving"
        try:
            if not await served.emptied(wanted):
                served.state = "loaded"
                self._admit(served)
                return
            LOG.warning("%s is unloaded", served.names[0])
            await served.front.close()
        finally:
            if served.state == "leaving":
                served.state = "unloaded"

    async def _watch(self) -> None:
        """Unload models that have been idle for as long as they may be."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for served in self.served:
                if self._is_old(served):
                    async with self._changing:
                        if self._is_old(served):
                            await self._unload(served)

    def _is_old(self, served: Served) -> bool:
        left = served.left(self.settings.kept_seconds)
        return served.state == "loaded" and served.idle and left is not None and left <= 0

    async def drop(self, served: Served) -> None:
        """Unload a model once its requests have ended, if it is loaded."""
        async with self._changing:
            if served.state == "loaded":
                await self._unload(served)

    def load(self, served: Served) -> None:
        """Begin to load a model, unless it is there."""

        async def load() -> None:
            with contextlib.suppress(Problem):  # which `fault` tells
                async with self.using(served):
                    pass

        self._run(load())

    def unload(self, served: Served) -> None:
        """Begin to unload a model.

        Raises:
            Problem: It is the only one, which stays.
        """
        if not self.lazy:
            raise Problem("invalid_value", "the only model of a server stays loaded")
        self._run(self.drop(served))

    def _lost(self, served: Served, why: str) -> None:
        """Unload a model whose engine cannot be kept alive, or give up if it is the only one."""
        served.fault = why
        if self.lazy:
            self._run(self.drop(served))
        else:
            self.lost(why)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something apart from the requests until it ends or the server does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("a model could not be loaded or unloaded", exc_info=error)


def _by_name(served: Sequence[Served]) -> dict[str, Served]:
    """Return models by all their names.

    Raises:
        InputError: Two have a name in common.
    """
    found: dict[str, Served] = {}
    for each in served:
        for name in each.names:
            if name in found:
                raise InputError(
                    f"-m: the models {found[name].front.settings.model} and "
                    f"{each.front.settings.model} have the name '{name}' in common"
                )
            found[name] = each
    return found
