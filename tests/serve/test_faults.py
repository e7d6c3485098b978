"""Faults of engines and clients: instances.py, life.py, front.py, pending.py, engine_process.py."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from scripted_engine import FATAL, LENGTH
from serving import Served, events, until
from suffice.errors import InputError
from suffice.serve.processes import deaths, instances, life

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the next engine at once."""
    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.01)


def running(server: Served) -> int:
    return int(server.front.instance.stats.get("running", 0))


def kill(server: Served) -> None:
    pid = server.front.instance.members[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def idle(server: Served) -> bool:
    """Whether nothing is left of any request."""
    front = server.front
    return not (front.jobs or front.instance.tickets or running(server))


@pytest.mark.parametrize("stream", [False, True])
def test_a_killed_engine_changes_no_text(
    serving: Callable[..., Any], tmp_path: Path, stream: bool
) -> None:
    hold = tmp_path / "hold"
    with serving(options={"hold": str(hold)}) as server:
        fields = {"seed": 5, "n": 2, "max_tokens": 60, "logprobs": True}

        def text() -> list[Any]:
            answer = server.chat(stream=stream, **fields)
            if not stream:
                return [choice["message"]["content"] for choice in answer.json()["choices"]]
            parts = ["", ""]
            for each in events(answer)[:-1]:
                for choice in each["choices"]:
                    parts[choice["index"]] += choice["delta"].get("content") or ""
            return parts

        alone = text()
        hold.write_text("20")
        with ThreadPoolExecutor() as pool:
            under_way = pool.submit(text)
            until(lambda: any(t.generated > 10 for t in server.front.instance.tickets.values()))
            kill(server)
            hold.unlink()
            assert under_way.result() == alone
        assert server.front.instance.restarts == 1 and server.front.instance.failovers == 1
        page = server.client.get("/metrics").text
        assert 'suffice:failovers_total{engine="0",model_name="scripted"} 1.0' in page


def test_a_request_that_kills_engines_is_given_up(
    serving: Callable[..., Any], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with serving(options={"hold": str(hold)}) as server, ThreadPoolExecutor() as pool:
        under_way = pool.submit(server.chat)
        (instance,) = server.front.instance.members
        for count in range(1, 4):
            until(lambda: instance.ready and running(server))
            kill(server)
            until(lambda count=count: instance.restarts == count)  # type: ignore[misc]
            instance.stats = {}
        answer = under_way.result()
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "engine_lost"
        assert answer.headers["x-should-retry"] == "true"
        hold.unlink()
        assert server.chat().status_code == 200, "the next engine serves"


def test_killed_engines_cost_no_answer(serving: Callable[..., Any], tmp_path: Path) -> None:
    """However often they die before the first token: nobody is to blame three times."""
    hold = tmp_path / "hold"
    with serving(options={"hold": str(hold)}) as server, ThreadPoolExecutor(24) as pool:
        alone = [*pool.map(lambda seed: server.chat(seed=seed).json()["choices"], range(24))]
        hold.touch()
        asks = [pool.submit(server.chat, seed=seed) for seed in range(24)]
        (instance,) = server.front.instance.members
        until(lambda: len(instance.tickets) == 24)
        for count in range(1, 13):
            until(lambda: instance.ready)
            kill(server)
            until(lambda count=count: instance.restarts == count)  # type: ignore[misc]
        hold.unlink()
        answers = [ask.result() for ask in asks]
        assert [answer.status_code for answer in answers] == [200] * 24
        assert [answer.json()["choices"] for answer in answers] == alone


@pytest.mark.parametrize("place", [0, 4, 8])
def test_the_request_that_kills_engines_is_found_among_others(
    serving: Callable[..., Any], tmp_path: Path, place: int
) -> None:
    hold = tmp_path / "hold"
    seeds = [*range(place), FATAL, *range(place, 8)]
    with serving(options={"hold": str(hold)}) as server, ThreadPoolExecutor(9) as pool:
        alone = [*pool.map(lambda seed: server.chat(seed=seed).json()["choices"], range(8))]
        (instance,) = server.front.instance.members
        hold.touch()
        asks = []
        for count, seed in enumerate(seeds):
            asks.append(pool.submit(server.chat, seed=seed))
            until(lambda count=count: len(server.front.jobs) > count)  # type: ignore[misc]
        hold.unlink()
        answers = [ask.result() for ask in asks]
        lost = answers.pop(place)
        assert lost.status_code == 500 and "alone was to blame" in lost.text
        assert [answer.json()["choices"] for answer in answers] == alone
        assert 3 <= instance.restarts <= 8


def test_a_stopped_engine_is_unhealthy(serving: Callable[..., Any]) -> None:
    with serving(heartbeat_seconds=1.2) as server:
        pid = server.front.instance.members[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        until(lambda: server.client.get("/health").status_code == 503)
        assert "said nothing" in server.client.get("/health").json()["reason"]
        ready = server.client.get("/ready")
        assert ready.status_code == 503 and ready.json()["error"]["code"] == "unhealthy"
        assert "said nothing" in ready.json()["error"]["message"]
        os.kill(pid, signal.SIGCONT)
        until(lambda: server.client.get("/health").status_code == 200)
        assert server.client.get("/ready").status_code == 200


def test_an_engine_that_makes_no_step_is_unhealthy(
    serving: Callable[..., Any], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    with serving(options={"hold": str(hold)}, step_seconds=0.3) as server:
        assert server.chat(max_tokens=1).status_code == 200
        hold.touch()
        with ThreadPoolExecutor() as pool:
            under_way = pool.submit(server.chat)
            until(lambda: server.client.get("/health").status_code == 503)
            assert "made no step" in server.client.get("/health").json()["reason"]
            hold.unlink()
            assert under_way.result().status_code == 200
        until(lambda: server.client.get("/health").status_code == 200)


@pytest.mark.parametrize("phase", ["held", "streaming", "whole"])
def test_clients_that_leave(serving: Callable[..., Any], tmp_path: Path, phase: str) -> None:
    hold = tmp_path / "hold"
    with serving(options={"hold": str(hold), "step_seconds": 0.01}) as server:
        if phase == "held":
            hold.touch()
        body = {"messages": HELLO, "max_tokens": 400, "stream": phase != "whole"}
        data = json.dumps(body).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        whole = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        port = int(server.url.rpartition(":")[2])
        links = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        for link in links:
            link.sendall(whole)
        until(lambda: running(server) == 5)
        if phase == "streaming":
            assert all(link.recv(1000) for link in links)
        for link in links:
            link.close()
        until(lambda: not server.front.jobs, 5)
        hold.unlink(missing_ok=True)
        until(lambda: idle(server), 5)


def test_a_client_that_leaves_before_its_body_is_whole(server: Served) -> None:
    port = int(server.url.rpartition(":")[2])
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(head.encode() + b"Content-Length: 100\r\n\r\n{")
    assert server.chat(max_tokens=1).status_code == 200
    until(lambda: idle(server))


def test_a_client_that_reads_nothing_is_given_up(serving: Callable[..., Any]) -> None:
    with serving(stall_seconds=0.3, options={"context": 10**6, "step_seconds": 0}) as server:
        body = {"messages": HELLO, "max_tokens": 500_000, "stream": True, "n": 8, "logprobs": True}
        data = json.dumps({**body, "top_logprobs": 20}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        port = int(server.url.rpartition(":")[2])
        with socket.socket() as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.connect(("127.0.0.1", port))
            link.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            until(lambda: running(server) == 1)
            until(lambda: idle(server))
        assert server.chat(max_tokens=1).status_code == 200


def test_a_deadline(serving: Callable[..., Any], tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    with serving(request_seconds=0.3, options={"hold": str(hold)}) as server:
        hold.touch()
        answer = server.chat()
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "deadline"
        hold.unlink()
        until(lambda: idle(server))


def test_a_deadline_in_a_stream_is_an_event(serving: Callable[..., Any], tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.write_text("20")
    options = {"hold": str(hold)}
    with serving(request_seconds=60.0, options=options) as server, ThreadPoolExecutor() as pool:
        ask = pool.submit(server.chat, stream=True, max_tokens=400)
        until(lambda: any(t.generated == 20 for t in [*server.front.instance.tickets.values()]))
        server.front.settings = dataclasses.replace(server.front.settings, request_seconds=0.1)
        found = events(ask.result())
        assert found[-2]["error"]["code"] == "deadline" and found[-1] == "[DONE]"
        assert len(found) > 4, "the tokens until then are kept"


def test_the_queue_has_an_end(serving: Callable[..., Any], tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    limits = {"max_queue": 2, "max_num_seqs": 1, "max_per_key": 2}
    with serving(options={"hold": str(hold)}, **limits) as server, ThreadPoolExecutor() as pool:
        hold.touch()

        def ask_as(key: str) -> httpx2.Response:
            headers = {"authorization": f"Bearer {key}"}
            return server.post(CHAT, {"messages": HELLO, "max_tokens": 1}, headers=headers)

        first = [pool.submit(ask_as, "one") for _ in range(2)]
        until(lambda: len(server.front.jobs) == 2)
        refused = ask_as("one")
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        first.append(pool.submit(ask_as, "two"))
        until(lambda: len(server.front.jobs) == 3)
        refused = ask_as("three")
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        assert server.client.get("/ready").status_code == 503
        hold.unlink()
        assert [each.result().status_code for each in first] == [200] * 3
    assert server.front._keys == {}, "nothing is left of keys"


def test_an_engine_that_is_busy(serving: Callable[..., Any]) -> None:
    with serving(options={"max_waiting": 0}) as server:
        answer = server.chat()
        assert answer.status_code == 503 and answer.headers["retry-after"] == "2"


@pytest.mark.parametrize("ident", ["mine", "a/b", "/a//b/", "50%2F?#"])
def test_a_request_is_cancelled_by_its_id(server: Served, ident: str) -> None:
    with ThreadPoolExecutor() as pool:
        ask = pool.submit(server.chat, max_tokens=400, request_id=ident, stream=True)
        until(lambda: ident in server.front.jobs)
        again = server.chat(request_id=ident)
        assert again.status_code == 400 and "in use" in again.json()["error"]["message"]
        assert server.client.delete(f"/v1/requests/{quote(ident, safe='')}").json()["cancelled"]
        assert "cancelled" in ask.result().text
    until(lambda: idle(server))


def test_silence_is_filled(serving: Callable[..., Any], tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    options = {"hold": str(hold)}
    with serving(options=options, keep_alive_seconds=0.1) as server:
        hold.touch()
        body = {"messages": HELLO, "stream": True, "max_tokens": 1}
        with server.client.stream("POST", CHAT, json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines) == ": keep-alive"
            hold.unlink()
            assert list(lines)[-2:] == ["data: [DONE]", ""]


def test_an_engine_that_does_not_start(serving: Callable[..., Any]) -> None:
    bad = serving(options={"fail": "x"})
    with pytest.raises(InputError, match="the model 'x' cannot be used"), bad:
        pass


def test_a_failed_thread_takes_the_engine_with_it(
    serving: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Or its requests would wait for ever: nobody else would notice."""
    with serving() as server:
        server.chat(max_tokens=1)
        answer = server.chat(max_tokens=5, seed=FATAL)
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "engine_lost"
        assert server.front.instance.restarts == 3
        assert server.chat(max_tokens=1).status_code == 200
    assert "a fault of the engine" in capfd.readouterr().err


def test_many_at_once(serving: Callable[..., Any]) -> None:
    with serving() as server, ThreadPoolExecutor(32) as pool:
        alone = {seed: server.chat(seed=seed).json()["choices"] for seed in range(4)}
        asks = [pool.submit(server.chat, seed=at % 4) for at in range(100)]
        for at, ask in enumerate(asks):
            body = ask.result().json()
            assert body["choices"] == alone[at % 4]
            assert body["usage"]["completion_tokens"] == LENGTH
        until(lambda: idle(server))


def test_engines_that_die_at_once_are_given_up(serving: Callable[..., Any], tmp_path: Path) -> None:
    dies, hold, told = tmp_path / "dies", tmp_path / "hold", list[str]()
    with serving(options={"dies": str(dies), "hold": str(hold)}) as server:
        (instance,) = server.front.instance.members
        server.models.lost = told.append
        for _ in range(deaths.MOST_FAILED + 1):  # those that had work do not count
            before = instance.restarts
            hold.write_text("20")
            with ThreadPoolExecutor() as pool:
                answer = pool.submit(server.chat, max_tokens=40, seed=1)
                until(lambda: any(each.generated > 2 for each in [*instance.tickets.values()]))
                kill(server)
                hold.unlink()
                assert answer.result().status_code == 200
            assert instance.restarts == before + 1
        assert not told and server.client.get("/health").status_code == 200
        dies.touch()
        with ThreadPoolExecutor() as pool:
            kill(server)
            until(lambda: instance.restarts > before + 1)
            answer = pool.submit(server.chat)
            until(lambda: told)
            assert answer.result().json()["error"]["code"] == "engine_lost"
        assert told == ["5 engines in a row died at once (exit code 70): see the lines above"]
        assert server.client.get("/health").status_code == 503


def test_a_server_that_stops_while_an_engine_starts_leaves_no_process(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's process is there before anybody knows it."""
    begun: list[Any] = []
    start = life.started

    def slow(*given: Any) -> Any:
        begun.append(start(*given))
        time.sleep(0.3)
        return begun[-1]

    with serving() as server:
        monkeypatch.setattr(life, "started", slow)
        kill(server)
        until(lambda: begun)
    assert [process.poll() is not None for process in begun] == [True]
