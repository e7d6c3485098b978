"""Runs the server: listens, waits for signals, drains."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import uvicorn
import uvloop

from suffice.errors import InputError, OptionError
from suffice.serve.app import build
from suffice.serve.errors import Problem
from suffice.serve.http.heads import Protocol
from suffice.serve.http.models import Models
from suffice.serve.http.text import Text
from suffice.serve.settings import Settings

NICE = 5  # below the engine: its cores are the scarce ones
BACKLOG = 2048
LAST_SECONDS = 4.0  # for the ends of answers, once no request generates; uvicorn gives up after 5


class Server(uvicorn.Server):
    """A server that, told to stop, lets its requests end first.

    Told again, it ends them with an error; told a third time, it stops at once.
    """

    def __init__(self, config: uvicorn.Config, models: Models) -> None:
        super().__init__(config)
        self._models = models
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failed = False
        self._terminal = has_terminal()
        models.lost = self.give_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Note the loop, for the signals."""
        self._loop = asyncio.get_running_loop()
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under `nohup`
            self._loop.add_signal_handler(signal.SIGHUP, self.renew)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all connections, also those whose clients read nothing."""
        assert self._loop is not None, "it has started"
        self._loop.call_later(LAST_SECONDS, self._break_off)
        await super().shutdown(sockets)

    def _break_off(self) -> None:
        for connection in list(self.server_state.connections):
            assert isinstance(connection, Protocol), "as configured"
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop, hurry, or stop."""
        if self._models.hurried or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        if self._models.draining:
            self._models.hurried = True
            return
        self._models.draining = True
        self._loop.call_soon_threadsafe(self._begin_to_stop)

    def renew(self) -> None:
        """Replace the engines, or stop if the signal says that the server's terminal is gone."""
        if self._models.draining:
            return
        if self._terminal and not has_terminal():
            self._models.draining = True
            self._begin_to_stop()
        else:
            self._models.renew()

    def give_up(self, why: str) -> None:
        """Stop, since no engine will come; the exit code is 1."""
        print(f"suffice: error: {why}", file=sys.stderr, flush=True)
        self.failed = True
        self._begin_to_stop()

    def _begin_to_stop(self) -> None:
        async def stop() -> None:
            await self._models.drain()
            self.should_exit = True

        self._stopping = asyncio.ensure_future(stop())


def has_terminal() -> bool:
    """Return whether the process has a terminal that has not hung up."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def hold_hangups() -> None:
    """Let SIGHUP end a server that loads only if its terminal is gone: there are no engines yet."""
    terminal = has_terminal()

    def held(signum: int, frame: FrameType | None) -> None:
        if terminal and not has_terminal():
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, held)


def listening(settings: Settings) -> socket.socket:
    """Return the socket to listen on.

    Raises:
        InputError: The address cannot be used.
    """
    if settings.uds is not None:
        return _on_path(Path(settings.uds))
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # A connection whose client reads nothing ends, even with bytes left to send.
    patience = int(2000 * settings.stall_seconds)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
    try:
        found.bind((settings.host, settings.port))
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            raise OptionError(
                "port", settings.port, "is in use: stop the other program, or choose another port"
            ) from None
        where = f"--host {settings.host} --port {settings.port}"
        raise InputError(f"{where}: {error.strerror or error}") from None
    except UnicodeError:
        found.close()
        raise InputError(f"--host {settings.host[:60]}: is no address") from None
    found.listen(BACKLOG)
    return found


def _on_path(path: Path) -> socket.socket:
    if _is_socket(path):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()  # left by a server that was killed
            except OSError:
                pass  # it is not dead: full, slow, or of another user
    found = socket.socket(socket.AF_UNIX)
    try:
        found.bind(str(path))
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            must = (
                "is in use: stop the other program, or choose another path"
                if _is_socket(path)
                else "is there already and is no socket: choose another path"
            )
            raise OptionError("uds", str(path), must) from None
        raise InputError(f"--uds {path}: {error.strerror or error}") from None
    found.listen(BACKLOG)
    return found


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


@contextlib.contextmanager
def removed(settings: Settings) -> Iterator[None]:
    """Remove the file of the socket at the end, unless it is another server's by now."""
    if settings.uds is None:
        yield
        return
    path = Path(settings.uds)
    own = path.stat()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if os.path.samestat(own, path.stat()):
                path.unlink()


def address(settings: Settings, listener: socket.socket) -> str:
    """Return where clients find the server."""
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.ssl_certfile else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def serve(given: Sequence[Settings], text: Text | None = None) -> int:
    """Serve models until a signal; return the exit code. The first one's settings say where.

    Raises:
        InputError: The address, the model or an option cannot be used.
    """
    hold_hangups()
    with listening(given[0]) as listener, removed(given[0]):
        models = Models(given, text)  # starts the thread that starts engines, before `nice`
        os.nice(NICE)
        return uvloop.run(_serve(models, listener))


async def _serve(models: Models, listener: socket.socket) -> int:
    settings = models.settings
    where = address(settings, listener)
    try:
        await models.start()
        gc.collect()
        gc.freeze()  # what lives as long as the server need not be searched for garbage
    except Problem as problem:
        print(f"suffice: error: {problem.message}", file=sys.stderr)
        await models.close()
        return 1
    except BaseException:
        await models.close()
        raise
    config = uvicorn.Config(
        build(models),
        http=Protocol,
        lifespan="off",
        access_log=settings.access_log,
        log_level="info" if settings.access_log else "warning",
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    server = Server(config, models)
    print(f"suffice serves {_shown(models)} at {where}", file=sys.stderr, flush=True)
    try:
        await server.serve(sockets=[listener])
    finally:
        await models.close()
    return int(server.failed)


def _shown(models: Models) -> str:
    """Return how the line of the start names the models."""
    any_name = ", by any name," if models.settings.any_model else ""
    count, first = len(models.served), models.settings.names[0]
    if count > 1:
        return f"{count} models, each loaded when it is asked for{any_name}"
    return f"{first}{', loaded when it is asked for' if models.lazy else ''}{any_name}"
