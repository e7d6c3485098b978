"""Bodies that drip, descriptors that run out, clocks that step, a real engine that is stopped."""

from __future__ import annotations

import datetime
import gc
import json
import os
import resource
import signal
import socket
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from serving import Served, events, real
from suffice.serve.processes.pending import Ticket

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def link_to(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), 20)


def test_a_body_that_comes_byte_by_byte_has_its_time(serving: Callable[..., Any]) -> None:
    with serving(body_seconds=0.5) as server, link_to(server) as link:
        link.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        link.settimeout(0.05)
        found, began = b"", time.monotonic()
        while not found and time.monotonic() - began < 20:
            try:
                link.sendall(b" ")
                found = link.recv(4096)
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert b" 408 " in found.splitlines()[0]


@pytest.mark.parametrize(
    "text", ["\ud800", "a\udfffb", "\0", "\ufffe", "x" * 200_000, "\u202e", "\ud83d\ude00"]
)
def test_odd_texts_are_answered_or_refused(server: Served, text: str) -> None:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2, "stop": [text[:9]]}
    data = json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    found = server.client.post("/v1/chat/completions", content=data, headers=headers)
    assert found.status_code in (200, 400) and len(found.content) <= 4096


def test_descriptors_that_run_out_come_back(serving: Callable[..., Any]) -> None:
    """The server shares this process, so links are opened until nobody gets one."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving() as server:
        assert server.chat(max_tokens=1).status_code == 200
        most = len(list(Path("/proc/self/fd").iterdir())) + 21
        links: list[socket.socket] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                for _ in range(100):
                    links.append(link_to(server))
            time.sleep(0.3)  # the server meets the limit, too
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for link in links:
                link.close()
        end = time.monotonic() + 20
        while server.chat(max_tokens=1).status_code != 200:
            assert time.monotonic() < end
        assert server.front.instance.restarts == 0


@pytest.mark.parametrize("hours", [-24, 24])
def test_a_clock_that_steps_changes_nothing(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    options = {"step_seconds": 0.01}
    settings = {"request_seconds": 20.0, "heartbeat_seconds": 20.0, "stall_seconds": 20.0}
    with serving(options=options, **settings) as server, ThreadPoolExecutor() as pool:
        under_way = pool.submit(server.chat, stream=True, max_tokens=60)
        now = time.time
        step = datetime.timedelta(hours=hours).total_seconds()
        monkeypatch.setattr(time, "time", lambda: now() + step)
        found = events(under_way.result())
        assert found[-1] == "[DONE]" and found[-2]["choices"][0]["finish_reason"] == "length"
        assert server.client.get("/health").status_code == 200


def cycles() -> list[RequestResponseCycle]:
    return [each for each in gc.get_objects() if type(each) is RequestResponseCycle]


def test_what_has_ended_is_freed_without_the_garbage_collector(server: Served) -> None:
    kept: list[weakref.ref[Ticket]] = []
    finished = server.front.metrics.finished

    def noted(ticket: Ticket) -> None:
        kept.append(weakref.ref(ticket))
        finished(ticket)

    gc.collect()
    gc.disable()
    earlier = cycles()  # each idle link that another test opened keeps its last one
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server.front.metrics, "finished", noted)
            for at in range(12):
                assert server.chat(max_tokens=3, stream=at % 2 == 0).status_code == 200
                assert server.post("/v1/completions", {"prompt": ["a", "b"]}).status_code == 200
                assert server.chat(temperature=-1).status_code == 400
            assert len(kept) == 36
            end = time.monotonic() + 20
            while sum(each() is not None for each in kept) > 2:  # those that the sweep saw last
                assert time.monotonic() < end, "requests are kept"
                time.sleep(0.01)
        while sum(all(each is not old for old in earlier) for each in cycles()) > 2:
            assert time.monotonic() < end, "more than the last one of each link is kept"
            time.sleep(0.1)
    finally:
        gc.enable()


def test_a_real_engine_that_is_stopped_goes_on(words: Path) -> None:
    fields = {"seed": 1, "max_tokens": 400, "ignore_eos": True}
    with real(words) as server, ThreadPoolExecutor() as pool:
        alone = server.chat(**fields).json()["choices"]
        under_way = pool.submit(server.chat, **fields)
        end = time.monotonic() + 20
        while not any(each.generated for each in list(server.front.instance.tickets.values())):
            assert time.monotonic() < end
        pid = server.front.instance.members[0].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            while server.client.get("/health").status_code == 200:
                assert time.monotonic() < end
        finally:
            os.kill(pid, signal.SIGCONT)
        assert under_way.result().json()["choices"] == alone
        assert server.front.instance.restarts == 0


def test_little_memory_parks_requests_and_refuses_what_never_fits(words: Path) -> None:
    fields = {"max_tokens": 250, "ignore_eos": True}
    with real(words) as server:
        alone = [server.chat(seed=at, **fields).json()["choices"] for at in range(6)]
        used = server.run(lambda: dict(server.front.instance.stats))
        assert used["preemptions"] == 0
    with real(words, kv_cache_bytes="384KiB") as server, ThreadPoolExecutor() as pool:
        asks = [pool.submit(server.chat, seed=at, **fields) for at in range(6)]
        found = [ask.result() for ask in asks]
        assert [each.status_code for each in found] == [200] * 6, [e.text for e in found]
        assert [each.json()["choices"] for each in found] == alone
        end = time.monotonic() + 10
        while not server.front.instance.stats["preemptions"]:
            assert time.monotonic() < end, "some are parked"
            time.sleep(0.05)
    with real(words, kv_cache_bytes="12KiB") as server:  # a block of 16 tokens
        assert server.chat("a", max_tokens=4).status_code == 200
        refused = server.chat("hello " * 30, **fields)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["code"] == "too_large_for_memory"
        assert server.client.get("/health").status_code == 200
