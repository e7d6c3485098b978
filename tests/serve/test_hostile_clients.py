"""Clients that mean harm, and a machine that runs out: guard.py, fields.py, instances.py."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchmarks.serve.servers import memory_bytes
from serving import Served, served, until
from suffice.cli.options import ModelFlags
from suffice.cli.serve import engine_options
from suffice.engine.options import EngineOptions
from suffice.serve.settings import ENGINE

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
DEEP = 10**5
GIB = 1 << 30


def connected(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=20)


def head(*lines: str) -> bytes:
    first = (f"POST {CHAT} HTTP/1.1", "Host: x", "Content-Type: application/json")
    return "\r\n".join([*first, *lines, "", ""]).encode()


def read_all(link: socket.socket) -> bytes:
    found = b""
    while part := link.recv(65536):
        found += part
    return found


def raw(server: Served, body: bytes) -> httpx2.Response:
    headers = {"content-type": "application/json"}
    return server.client.post(CHAT, content=body, headers=headers)


def test_a_gigabyte_is_refused_before_it_comes(server: Served) -> None:
    with connected(server) as link:
        link.sendall(head(f"Content-Length: {GIB}"))
        answer = read_all(link)
    assert answer.startswith(b"HTTP/1.1 413") and b'"too_large"' in answer


def test_a_gigabyte_of_unknown_length_is_refused_and_not_kept(server: Served) -> None:
    part = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    before, most = memory_bytes(os.getpid()), 0
    with connected(server) as link:
        link.sendall(head("Transfer-Encoding: chunked"))
        with pytest.raises(OSError):  # the server ends the connection
            for _ in range(64 * GIB >> 20):
                link.sendall(part)
                most = max(most, memory_bytes(os.getpid()))
        answer = link.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413") and b'"too_large"' in answer
    assert b"connection: close" in answer.lower()
    assert most - before < 8 * server.front.settings.max_body_bytes
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP + b"]" * DEEP,
        b"[" * DEEP,
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        b'{"messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"messages":[],"tools":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
        b'{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema",'
        b'"json_schema":{"name":"a","schema":' + b'{"items":' * DEEP + b"{}" + b"}" * DEEP + b"}}}",
    ],
    ids=["lists", "open", "objects", "messages", "tools", "schema"],
)
def test_a_deep_body_is_refused(server: Served, body: bytes) -> None:
    answer = raw(server, body)
    assert answer.status_code == 400 and len(answer.content) <= 4096
    assert "\n" not in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["words", "version", "tls", "header", "length", "chunk"],
)
def test_what_is_not_http_is_answered_with_json(server: Served, sent: bytes) -> None:
    with connected(server) as link:
        link.sendall(sent)
        above, _, below = read_all(link).partition(b"\r\n\r\n")
    assert above.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"application/json" in above
    assert json.loads(below)["error"]["code"] == "invalid_http"
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5000])
@pytest.mark.parametrize("field", ["temperature", "top_p", "max_tokens", "seed"])
def test_numbers_that_are_none(server: Served, field: str, value: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "a"}}], "{field}": {value}}}'
    answer = raw(server, body.encode())
    assert answer.status_code == 400 and len(answer.content) <= 4096


@pytest.mark.parametrize(
    "text", [b'"\\ud800"', b'"a\\udfffb"', b'"\xed\xa0\x80"', b'"\xff\xfe"', b'"\\u0000"']
)
def test_texts_that_are_none(server: Served, text: bytes) -> None:
    """A lone surrogate or bytes that are no UTF-8 are refused or replaced, and never a fault."""
    content = b'{"messages": [{"role": "user", "content": %b}], "max_tokens": 2}' % text
    for field in (content, content[:-1] + b', "stop": [%b]}' % text):
        answer = raw(server, field)
        assert answer.status_code in (200, 400) and len(answer.content) <= 4096
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize("sent", [b"no http\r\n\r\n", head(f"Content-Length: {GIB}")])
def test_who_sends_on_after_a_refusal_reads_the_answer(server: Served, sent: bytes) -> None:
    with connected(server) as link:
        link.sendall(sent)
        link.recv(1)  # the answer is on its way
        for _ in range(5):
            link.sendall(b" " * 1000)
            time.sleep(0.01)
        assert b"connection: close" in read_all(link).lower()


def test_what_came_before_bad_http_is_answered(server: Served) -> None:
    body = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":3}'
    good = head(f"Content-Length: {len(body)}") + body
    for sent in (good, head("Content-Length: 5") + b"{bad}"):
        with connected(server) as link:
            link.sendall(sent + b"\r\n\r\nxx yy zz\r\n")
            answer = read_all(link)
        status = b"200" if sent is good else b"400"
        assert answer.startswith(b"HTTP/1.1 " + status) and answer.count(b"HTTP/1.1") == 1
        assert b"invalid_http" not in answer


def test_bad_http_in_a_stream_does_not_show_in_it(server: Served, logged: list[str]) -> None:
    body = (
        b'{"messages":[{"role":"user","content":"a"}],"max_tokens":20,"stream":true,'
        b'"ignore_eos":true}'
    )
    with connected(server) as link:
        link.sendall(head(f"Content-Length: {len(body)}") + body)
        answer = link.recv(1000)
        link.sendall(b"garbage\r\n\r\n")
        answer += read_all(link)
    assert answer.count(b"HTTP/1.1") == 1 and answer.endswith(b"0\r\n\r\n")
    assert b"[DONE]" in answer and logged == []


def test_long_heads_with_more_behind_have_one_answer(server: Served, logged: list[str]) -> None:
    with connected(server) as link:
        link.sendall(head("Content-Length: 5", "long: " + "y" * 100_000) + b"xxxxx yyy\r\n\r\n")
        answer = read_all(link)
    assert answer.startswith(b"HTTP/1.1 431 ") and answer.count(b"HTTP/1.1") == 1
    assert logged == []


def test_who_goes_on_sending_is_cut_off(server: Served) -> None:
    with connected(server) as link:
        link.sendall(b"no http\r\n\r\n")
        end = time.monotonic() + 20
        with pytest.raises(OSError):
            while time.monotonic() < end:
                link.sendall(b" " * 1000)
                time.sleep(0.01)


def test_a_body_of_a_byte_now_and_then_has_an_end(serving: Callable[..., Any]) -> None:
    with serving(body_seconds=0.5) as server, connected(server) as link:
        link.sendall(head("Content-Length: 1000"))
        answer = b""
        link.settimeout(0.1)
        end = time.monotonic() + 20
        while not answer:
            assert time.monotonic() < end, "there is no answer"
            try:
                link.sendall(b" ")
                answer = link.recv(4096)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408") and b"connection: close" in answer.lower()
        link.settimeout(20)
        assert read_all(link) == b""  # the server has closed
        assert server.chat(max_tokens=1).status_code == 200


def test_a_client_that_leaves_in_its_body_is_no_error(server: Served, logged: list[str]) -> None:
    with connected(server) as link:
        link.sendall(head("Content-Length: 1000") + b"{")
    assert server.chat(max_tokens=1).status_code == 200
    assert logged == []


def test_heads_of_a_byte_now_and_then_hold_up_nobody(server: Served) -> None:
    links = [connected(server) for _ in range(30)]
    for at, byte in enumerate(head("Content-Length: 2")[:40]):
        for link in links:
            link.sendall(bytes([byte]))
        if at % 10 == 0:
            assert server.chat(max_tokens=1).status_code == 200
    for link in links:
        link.close()
    until(lambda: not server.front.jobs)


def test_clock_steps_change_nothing(serving: Callable[..., Any], monkeypatch: Any) -> None:
    with serving(request_seconds=60.0, options={"step_seconds": 0.01}) as server:
        alone = server.chat(seed=1).json()["choices"]
        now = time.time
        for step in (1e6, -1e6):
            with ThreadPoolExecutor() as pool:
                under_way = pool.submit(server.chat, seed=1)
                until(lambda: server.front.jobs)
                monkeypatch.setattr(time, "time", lambda step=step: now() + step)
                assert under_way.result().json()["choices"] == alone
        assert server.client.get("/health").status_code == 200
        assert server.front.instance.restarts == 0


@pytest.fixture
def few_files() -> Iterator[Callable[[], None]]:
    """Leave this process, which is the server's too, no file descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def take() -> None:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, before[1])
        )
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass

    yield take
    for each in taken:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_engine_is_started_again_once_there_are_files(
    serving: Callable[..., Any], few_files: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from suffice.serve.processes import instances

    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.05)
    with serving() as server:
        (instance,) = server.front.instance.members
        assert server.chat(max_tokens=1).status_code == 200
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)
        few_files()
        assert instance.pid is not None
        os.kill(instance.pid, signal.SIGKILL)
        until(lambda: instance.restarts >= 3)
        assert not instance.ready
        resource.setrlimit(resource.RLIMIT_NOFILE, soft)
        until(lambda: instance.ready)
        assert server.chat(max_tokens=1).status_code == 200


def test_connections_beyond_the_files_wait(
    serving: Callable[..., Any], few_files: Callable[[], None]
) -> None:
    with serving() as server:
        assert server.chat(max_tokens=1).status_code == 200
        few_files()
        with pytest.raises(OSError, match="Too many open files"):
            connected(server)
        assert server.chat(max_tokens=1).status_code == 200, "over the connection that there is"


@pytest.fixture
def real(words: Path) -> Iterator[Served]:
    given = EngineOptions(model=str(words), threads=1, kv_cache_bytes=1 << 19)
    options = engine_options(ModelFlags(options=given), 8)
    with served(
        words, engine=ENGINE, options=options, model="tiny", max_num_seqs=8, heartbeat_seconds=1.5
    ) as found:
        yield found


def test_a_real_engine_that_is_stopped_is_unhealthy_and_goes_on(real: Served) -> None:
    alone = real.chat(seed=1, max_tokens=200, ignore_eos=True).json()["choices"]
    pid = real.front.instance.members[0].pid
    assert pid is not None
    with ThreadPoolExecutor() as pool:
        under_way = pool.submit(real.chat, seed=1, max_tokens=200, ignore_eos=True)
        until(lambda: real.front.jobs)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: real.client.get("/health").status_code == 503)
        assert "said nothing" in real.client.get("/health").json()["reason"]
        os.kill(pid, signal.SIGCONT)
        assert under_way.result().json()["choices"] == alone
    until(lambda: real.client.get("/health").status_code == 200)


def test_a_request_beyond_the_memory_is_refused_and_others_go_on(real: Served) -> None:
    small = {"prompt": [5, 6, 7], "max_tokens": 60, "ignore_eos": True, "seed": 1}
    alone = real.post(COMPLETION, small).json()["choices"]
    with ThreadPoolExecutor() as pool:
        asks = [pool.submit(real.post, COMPLETION, small) for _ in range(8)]
        large = real.post(COMPLETION, {"prompt": [5] * 900, "max_tokens": 100, "ignore_eos": True})
        assert large.status_code == 400, large.text
        assert large.json()["error"]["code"] == "too_large_for_memory"
        assert all(ask.result().json()["choices"] == alone for ask in asks)
    assert json.loads(real.client.get("/health").text)["status"] == "ok"
