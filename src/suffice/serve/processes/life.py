"""One life of an engine: its process, the link to it, and its turn to load the model."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from suffice.cache.block_folder import BlockFolder
from suffice.decoder import shelf
from suffice.engine.config import Config
from suffice.engine.options import ON_DISK, EngineOptions
from suffice.errors import InputError
from suffice.serve.processes import wire
from suffice.serve.processes.gathering import Gathering
from suffice.serve.processes.link import Link
from suffice.serve.processes.pulse import Pulse

LOG = logging.getLogger("suffice.serve")
LONGEST_END = 5.0  # seconds that an engine has to end by itself
_SPENT = (10, 12, 14, 15)  # of /proc/PID/stat: minor and major faults, user and system time
SPARE_BYTES = 512 << 20  # beyond an engine's weights, for its keys and values


class Life:
    """A process and the link to it.

    Attributes:
        pulse: Whether it goes on.
        ready: Whether it ever took requests.
        welcomed: Is done when it does.
        loads: Whether it has been told to load, or will be at once.
        watching: What ends it if it hangs.
    """

    process: subprocess.Popen[bytes]
    link: Link
    writer: Gathering

    def __init__(self) -> None:
        self.pulse = Pulse()
        self.ready = self.loads = False
        self.watching: asyncio.Task[None] | None = None
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def load(self) -> None:
        """Let it load the model."""
        self.loads = True
        self.tell(wire.Load())

    def spent(self) -> tuple[int, ...]:
        """Return its page faults and its ticks of CPU time: some number grows while it goes on."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        except OSError:  # it has ended
            return ()
        fields = stat.rpartition(")")[2].split()  # from the third on: names may have blanks
        return tuple(int(fields[at - 3]) for at in _SPENT)

    def tell(self, message: wire.Down) -> None:
        """Send a message, unless the link has just ended: the next engine gets all that is open."""
        if not self.writer.is_closing():
            self.writer.write(wire.frame(message))

    async def settled(self) -> bool:
        """Wait until it takes requests, or has ended; return whether it takes them."""
        await first_of(self.welcomed, self.link.ended)
        return not self.link.ended.done()

    async def end(self) -> None:
        """Close the link, and return when the process is gone."""
        if self.watching is not None:
            self.watching.cancel()
        self.writer.close()
        gone = asyncio.ensure_future(asyncio.to_thread(self.process.wait))
        try:  # `wait_for` may lose a cancellation in Python 3.11
            await asyncio.wait({gone}, timeout=LONGEST_END)
        finally:
            if not gone.done():
                self.process.kill()
        await gone


class Weights:
    """The packed weights of the engines of a NUMA node, in memory that they share.

    The server's process owns the memory, so that it outlives every engine. The first engine packs;
    others wait until it has, or has died.
    """

    def __init__(self) -> None:
        self.memory = shelf.new_memory()
        self._packing = asyncio.Lock()

    @property
    def packed(self) -> bool:
        """Whether engines find the weights there."""
        return shelf.is_closed(self.memory)

    async def load(self, life: Life) -> None:
        """Let an engine load in its turn: at once if it has nothing to pack."""
        if self.packed:
            life.load()
            return
        async with self._packing:
            life.load()
            if not self.packed:
                await life.settled()

    def close(self) -> None:
        """Give the memory up; the engines that have it keep it."""
        os.close(self.memory)


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def sharing(asked: bool | None, instances: int) -> bool:
    """Return whether engines share their weights, if nothing is asked for: if that costs nothing.

    Several share them anyway; one does if shared memory can have huge pages.

    Raises:
        InputError: It is asked for, and this system cannot.
    """
    if asked and not shelf.can_share():
        raise InputError("--share-weights: this system has no memory to share; leave it out")
    if asked is not None or not shelf.can_share():
        return bool(asked)
    return instances > 1 or shelf.has_huge_pages()


def room_for(weights: int) -> bool:
    """Return whether one more engine with these bytes of weights fits into memory now."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / f"memory.{name}").read_text() for name in ("max", "current"))
        found.append(int(limit) - int(used))
    return not found or min(found) > weights + SPARE_BYTES


@functools.cache
def starter() -> ThreadPoolExecutor:
    """Return the thread that starts all engines: a process inherits its thread's priority."""
    found = ThreadPoolExecutor(1, thread_name_prefix="starter")
    found.submit(int).result()
    return found


async def launched(
    take: Callable[[Life, wire.Up], None],
    first: wire.Start,
    weights: Weights | None,
    *,
    again: bool = False,
) -> Life:
    """Start an engine's process and send it a first message; `take` gets what it says.

    `again`: an engine with these options has loaded before.

    Raises:
        OSError: No descriptor, or no memory for a process, is left.
    """
    life = Life()
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    memory = None if weights is None else weights.memory
    starting = loop.run_in_executor(starter(), started, theirs.fileno(), memory)
    try:
        life.process = await asyncio.shield(starting)
        make = partial(Link, partial(take, life))
        transport, life.link = await loop.create_connection(make, sock=ours)
        life.writer = Gathering(transport)
    except BaseException:  # also if the server stops meanwhile: no process may be left
        ours.close()
        with contextlib.suppress(OSError):
            process = await starting
            process.kill()
            await asyncio.to_thread(process.wait)
        raise
    finally:
        theirs.close()
    if again:
        first = msgspec.structs.replace(first, options=lasting(first.options))
    life.tell(first)
    return life


def started(link: int, memory: int | None) -> subprocess.Popen[bytes]:
    """Start an engine's process with its end of the link, and the memory of the weights."""
    given = [link] if memory is None else [link, memory]
    return subprocess.Popen(
        [sys.executable, "-m", "suffice.serve.processes.engine_process", *map(str, given)],
        pass_fds=given,
        stdin=subprocess.DEVNULL,
    )


def lasting(options: dict[str, Any]) -> dict[str, Any]:
    """Return those of an engine's options that one in its place can have.

    A folder of prompts only saves time: if it can no longer be opened, the engine goes without.
    """
    if options.get("prefix_dir") is None:
        return options
    config = Config.built(EngineOptions(**options))
    assert config.prefix_dir is not None, "it was given"
    try:
        BlockFolder(config.prefix_dir, secret=config.prefix_secret)
    except InputError as error:
        LOG.error("a new engine keeps no prompts on disk: %s", error)
        return {name: value for name, value in options.items() if name not in ON_DISK}
    return options
