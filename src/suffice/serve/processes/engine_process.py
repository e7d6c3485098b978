"""The engine's process: takes works from a socket, and sends what its engine gives.

Three threads: the reader, which submits and cancels, one that compiles grammars, for which no other
request waits, and the writer, which sends what has come since its last message as one `Step`. The
engine steps in a thread of its own.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from suffice.engine.work import Delta, Final, Grammar, Work
from suffice.errors import Busy, Closed, InputError, one_line
from suffice.sampling_params import SamplingParams
from suffice.serve.processes import wire
from suffice.serve.processes.hosted import Engine, Opened
from suffice.serve.processes.lookout import Lookout
from suffice.warned import as_lines

BEAT_SECONDS = 0.5
DIED = 70  # exit code


class Outbox:
    """What is to be sent. The engine's thread only appends; one thread sends."""

    def __init__(self, link: socket.socket, engine: Engine) -> None:
        self._link = link
        self._engine = engine
        self._deltas: collections.deque[Delta] = collections.deque()
        self._others: collections.deque[wire.Up] = collections.deque()
        self._wake = threading.Event()
        self._closed = False

    def delta(self, delta: Delta) -> None:
        """Send what a step gave one sample."""
        self._deltas.append(delta)
        if not self._wake.is_set():
            self._wake.set()

    def send(self, message: wire.Up) -> None:
        """Send another message."""
        self._others.append(message)
        self._wake.set()

    def close(self) -> None:
        """End `run`."""
        self._closed = True
        self._wake.set()

    def run(self) -> None:
        """Send until `close`, or until nobody reads."""
        last_beat = 0.0
        while not self._closed:
            self._wake.wait(BEAT_SECONDS)
            self._wake.clear()
            now = time.monotonic()
            if now - last_beat >= BEAT_SECONDS:
                last_beat = now
                self._others.append(self._beat())
            try:
                self._flush()
            except OSError:
                return

    def _flush(self) -> None:
        while self._others:
            self._link.sendall(wire.frame(self._others.popleft()))
        deltas = [self._deltas.popleft() for _ in range(len(self._deltas))]
        if deltas:
            self._link.sendall(wire.frame(wire.Step(deltas)))

    def _beat(self) -> wire.Beat:
        stats = dataclasses.asdict(self._engine.stats())
        return wire.Beat(stats, self._engine.step_tokens())


def serve(link: socket.socket, opened: Opened) -> None:
    """Serve an engine over a socket until the other side closes it; then close the engine."""
    engine = opened.engine
    outbox = Outbox(link, engine)
    writer = threading.Thread(target=outbox.run, name="engine-writer", daemon=True)
    writer.start()
    lookout = Lookout(engine.look, lambda look: outbox.send(wire.Seen(look)))
    compiling = Compiling(opened, outbox)
    try:
        while (body := received(link)) is not None:
            message = wire.read_down(body)
            if isinstance(message, wire.Submit) and message.grammar is not None:
                compiling.add(message)
            elif isinstance(message, wire.Submit):
                _submit(opened, message, outbox)
            elif isinstance(message, wire.Cancel) and not compiling.cancel(message.id):
                engine.cancel(message.id)
            elif isinstance(message, wire.Watch):
                lookout.watch(message.on)
    finally:
        lookout.close()
        compiling.close()
        outbox.close()
        engine.close()
        writer.join(timeout=2 * BEAT_SECONDS)


class Compiling:
    """Submits requests with a grammar once it is compiled; a cancelled one ends at once."""

    def __init__(self, opened: Opened, outbox: Outbox) -> None:
        self._opened, self._outbox = opened, outbox
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="engine-grammars")
        self._waiting: dict[str, wire.Submit] = {}
        self._lock = threading.Lock()

    def add(self, message: wire.Submit) -> None:
        """Compile a request's grammar, then submit it."""
        with self._lock:
            self._waiting[message.id] = message
        self._pool.submit(self._run, message)

    def cancel(self, id: str) -> bool:
        """End a request whose grammar is not compiled yet; return whether there was one."""
        with self._lock:
            message = self._waiting.pop(id, None)
        if message is None:
            return False
        final = Final(len(message.prompt), 0, sum(map(len, message.known)))
        self._outbox.delta(Delta(id, 0, "", (), None, "abort", None, final))
        return True

    def close(self) -> None:
        """Compile no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, message: wire.Submit) -> None:
        if message.id not in self._waiting:
            return
        try:
            work = work_of(message, self._opened.compiled)
        except InputError as error:
            with self._lock:
                if self._waiting.pop(message.id, None) is not None:
                    self._outbox.send(wire.Refused(message.id, "input", one_line(error)))
            return
        except BaseException:
            traceback.print_exc()
            os._exit(DIED)  # the pool would hide it, and the request would wait for ever
        with self._lock:  # a cancellation comes before this or finds the request in the engine
            if self._waiting.pop(message.id, None) is not None:
                _hand(self._opened, work, self._outbox)


def _submit(opened: Opened, message: wire.Submit, outbox: Outbox) -> None:
    try:
        work = work_of(message, opened.compiled)
    except InputError as error:
        outbox.send(wire.Refused(message.id, "input", one_line(error)))
        return
    _hand(opened, work, outbox)


def _hand(opened: Opened, work: Work, outbox: Outbox) -> None:
    try:
        opened.engine.submit(work, outbox.delta)
    except InputError as error:
        outbox.send(wire.Refused(work.id, "input", one_line(error)))
    except Busy as error:
        outbox.send(wire.Refused(work.id, "busy", one_line(error), error.wait))
    except Closed as error:
        outbox.send(wire.Refused(work.id, "closed", one_line(error)))


def work_of(message: wire.Submit, compiled: Callable[[str], Grammar]) -> Work:
    """Return the engine's form of a request.

    Raises:
        InputError: A sampling parameter or the grammar is bad.
    """
    return Work(
        id=message.id,
        prompt=tuple(message.prompt),
        params=SamplingParams(**message.params),
        priority=message.priority,
        key=message.key,
        deadline=message.deadline,
        attention=message.attention,
        adapter=message.adapter,
        reuse=message.reuse,
        keeps=message.keeps,
        group=message.group,
        known=tuple(map(tuple, message.known)),
        grammar=None if message.grammar is None else compiled(message.grammar),
        thinking=message.thinking,
        progress=message.progress,
        reading=message.reading,
        file=message.file,
    )


def received(link: socket.socket) -> bytes | None:
    """Return the next message's body; None once the other side has closed."""
    head = _exactly(link, wire.LENGTH.size)
    return None if head is None else _exactly(link, *wire.LENGTH.unpack(head))


def _exactly(link: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = link.recv(min(count - len(parts), 1 << 20))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


def begin(link: socket.socket, memory: int | None = None) -> None:
    """Make the engine that the first message asks for, and serve it.

    `memory` is the descriptor of the memory in which engines share weights; None: they do not.
    """
    body = received(link)
    if body is None:
        return
    start = wire.read_down(body)
    assert isinstance(start, wire.Start), "the first message starts the engine"
    if start.cpus:  # before anything is loaded, so that memory lies next to them
        os.sched_setaffinity(0, start.cpus)
    module, _, name = start.factory.partition(":")
    factory = getattr(importlib.import_module(module), name)  # while another packs
    if received(link) is None:  # `Load`
        return
    try:
        opened: Opened = factory(start.options, start.limits, memory)
    except InputError as error:
        with contextlib.suppress(OSError):  # the server may have found the fault itself, and ended
            link.sendall(wire.frame(wire.Failed.of(error)))
        return
    try:
        link.sendall(wire.frame(opened.facts))
    except OSError:  # the server was stopped meanwhile
        return
    serve(link, opened)


def die(failed: threading.ExceptHookArgs) -> None:
    """End the process with a thread that failed: the server starts another, which goes on."""
    threading.__excepthook__(failed)
    os._exit(DIED)


def main(arguments: list[str]) -> None:
    """Serve on the socket whose number is given, with the memory whose number may follow.

    The server's process handles all signals.
    """
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    threading.excepthook = die
    number, *memory = map(int, arguments)
    link = socket.socket(fileno=number)
    with link, as_lines():
        begin(link, *memory)


if __name__ == "__main__":
    main(sys.argv[1:])
