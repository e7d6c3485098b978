"""Servers for tests: in a thread, with a scripted engine in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from suffice.cli.options import ModelFlags
from suffice.cli.serve import engine_options
from suffice.engine.options import EngineOptions
from suffice.serve.app import build
from suffice.serve.http.front import Front
from suffice.serve.http.heads import Protocol
from suffice.serve.http.models import Models
from suffice.serve.http.text import Text
from suffice.serve.run import listening
from suffice.serve.settings import ENGINE as REAL_ENGINE
from suffice.serve.settings import Settings
from suffice.text.tokenizer import load_tokenizer

ENGINE = "scripted_engine:opened"
SUPPORT = Path(__file__).parent


@dataclass
class Served:
    """A running server; calls of `models` belong into its loop's thread: see `run`."""

    url: str
    client: httpx2.Client
    models: Models
    loop: asyncio.AbstractEventLoop

    @property
    def front(self) -> Front:
        """That of the first model."""
        return self.models.served[0].front

    def run(self, work: Any) -> Any:
        """Return what a function gives in the server's thread."""

        async def call() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(10)

    def post(self, path: str, body: Any, **more: Any) -> httpx2.Response:
        """Send a body as JSON."""
        return self.client.post(path, json=body, **more)

    def chat(self, text: str = "hello", **fields: Any) -> httpx2.Response:
        """Send a chat request of one message."""
        messages = [{"role": "user", "content": text}]
        return self.post("/v1/chat/completions", {"messages": messages, **fields})


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until a condition is true, and return what it gives; fail if it does not come true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.005)
    return found


def events(response: httpx2.Response) -> list[Any]:
    """Return the events of a stream, parsed, with "[DONE]" as it is."""
    found = []
    for part in response.text.split("\n\n"):
        for line in part.split("\n"):  # not at U+2028 or U+0085, which a text may have
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                found.append(data if data == "[DONE]" else json.loads(data))
    return found


@contextlib.contextmanager
def served(folder: Path, **settings: Any) -> Iterator[Served]:
    """Serve the tokenizer of a folder with a scripted engine."""
    chosen = Settings(
        **{"model": "scripted", "engine": ENGINE, "port": 0, "access_log": False, **settings}
    )
    text = Text(load_tokenizer(folder), *chosen.forms)
    with served_models([chosen], text) as server:
        yield server


@contextlib.contextmanager
def served_models(given: Sequence[Settings], text: Text | None = None) -> Iterator[Served]:
    """Serve models, each by its own tokenizer or all by one."""
    with listening(given[0]) as listener:
        port = listener.getsockname()[1]
        models = Models(given, text)
        config = uvicorn.Config(build(models), lifespan="off", log_level="warning", http=Protocol)
        server = uvicorn.Server(config)
        loop = asyncio.new_event_loop()
        failed: list[BaseException] = []

        async def run() -> None:
            try:
                await models.start()
                await server.serve(sockets=[listener])
            except BaseException as error:
                failed.append(error)
            finally:
                await models.close()

        thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                thread.join(0.005)
            if failed:
                raise failed[0]
            url = f"http://127.0.0.1:{port}"
            with httpx2.Client(base_url=url, timeout=60, verify=False) as client:
                yield Served(url, client, models, loop)
        finally:
            models.draining = True  # ends the feeds of pages, as a signal does
            server.should_exit = True
            thread.join(60)
            loop.close()


def real(
    folder: Path,
    instances: int = 1,
    places: int = 8,
    api_keys: tuple[str, ...] = (),
    slot_save_path: str | None = None,
    limits: dict[str, Any] | None = None,
    **options: Any,
) -> contextlib.AbstractContextManager[Served]:
    """Serve a model of a folder with real engines, on one thread each."""
    given = EngineOptions(model=str(folder), threads=1, **options)
    found = engine_options(ModelFlags(options=given), places)
    return served(
        folder,
        engine=REAL_ENGINE,
        instances=instances,
        options=found,
        model="tiny",
        max_num_seqs=places,
        api_keys=api_keys,
        slot_save_path=slot_save_path,
        limits=limits or {},
        heartbeat_seconds=1.2,
    )


@contextlib.contextmanager
def killing(server: Served, seconds: float) -> Iterator[list[int]]:
    """Kill an engine now and then, whatever it does."""
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        chance = random.Random(5)
        while not over.wait(seconds * chance.random()):
            for served in server.models.served:
                life = served.front.instance.members[0]._current
                if life is not None and life.process.pid not in killed:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(life.process.pid, signal.SIGKILL)
                        killed.append(life.process.pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
