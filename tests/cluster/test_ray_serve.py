"""The server on a Ray cluster, with a node killed under load.

Tests ray.py, ray_cluster.py, ray_router.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchmarks.serve.raylets import Raylets
from serving import events

REQUESTS = int(os.environ.get("SUFFICE_TEST_RAY_REQUESTS", "60"))
AT_ONCE = 12
TOKENS = 60


class App:
    """The running application, as a client sees it."""

    def __init__(self, client: httpx2.Client, raylets: Raylets) -> None:
        self.client, self.raylets = client, raylets

    def stream(self, number: int, **headers: str) -> str:
        """Return the text of a streamed answer, drawn by chance; fail if it is not whole."""
        body = {
            "prompt": f"once {number}",
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "seed": number,
            "temperature": 1.0,
            "stream": True,
        }
        answer = self.client.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        found = events(answer)
        assert found[-1] == "[DONE]" and not any("error" in each for each in found[:-1]), found[-2:]
        return "".join(c["text"] for each in found[:-1] for c in each["choices"])

    def count(self, name: str) -> float:
        """Return a counter of the front."""
        lines = self.client.get("/metrics").text.splitlines()
        own = [line for line in lines if line.startswith(f"suffice:{name}{{")]
        return sum(float(line.split()[-1]) for line in own)


def until(condition: Callable[[], Any], seconds: float = 400.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def app(raylets: Raylets, words: Path) -> Iterator[App]:
    import ray
    from ray import serve

    from suffice.serve.ray import build

    ray.init(address=raylets.address, log_to_driver=False, logging_level="error")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    http = {"host": "127.0.0.1", "port": port}
    serve.start(proxy_location="HeadOnly", http_options=http)
    made = build({"model": str(words), "threads": "1", "instances": "2", "alias": "tiny"})
    serve.run(made, name="suffice")
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
        yield App(client, raylets)
    serve.shutdown()


def test_it_is_the_application(app: App) -> None:
    assert app.client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert app.client.get("/ready").json() == {"status": "ready"}
    talk = [{"role": "user", "content": "hello"}]
    answer = app.client.post("/v1/chat/completions", json={"messages": talk, "max_tokens": 4})
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4
    assert len(answer.headers.get_list("x-request-id")) == 1
    bad = app.client.post("/v1/chat/completions", json={"messages": talk, "temprature": 1})
    assert bad.status_code == 400 and "'temperature'" in bad.json()["error"]["message"]
    lost = app.client.post("/v1/completions", json={"prompt": "x", "model": "other"})
    assert lost.status_code == 404


def test_a_session_stays_with_its_engine(app: App) -> None:
    def cached(name: str, **headers: str) -> bool:
        body = {"prompt": f"{name} " * 100, "max_tokens": 1}
        found = app.client.post("/v1/completions", json=body, headers=headers).json()["usage"]
        return bool(found["prompt_tokens_details"]["cached_tokens"] > 0.5 * found["prompt_tokens"])

    names = [f"session {chr(97 + i)}" for i in range(8)]
    assert not any(cached(name, **{"x-session-id": name}) for name in names)
    again = [cached(name, **{"x-session-id": name}) for name in names for _ in range(2)]
    assert all(again), again  # by chance alone: once in 65,536 times


def test_a_killed_node_changes_no_text(app: App) -> None:
    """What the clients get while a node dies is, to the letter, what they got before."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        alone = list(pool.map(app.stream, range(REQUESTS)))
        assert len(set(alone)) == REQUESTS
        under_way = [pool.submit(app.stream, number) for number in range(REQUESTS)]
        until(lambda: sum(each.done() for each in under_way) >= REQUESTS // 5)
        assert (
            app.raylets.kill(next(iter(app.raylets.engines()))) >= 3
        )  # the node, a replica, an engine
        assert [each.result() for each in under_way] == alone
    assert app.count("failovers_total") >= 1
    app.raylets.add()
    until(lambda: len(app.raylets.engines()) == 2)


def test_an_engine_that_hangs_is_replaced(app: App) -> None:
    node, pid = next(iter(app.raylets.engines().items()))
    os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            texts = list(pool.map(app.stream, range(AT_ONCE)))
        assert len(set(texts)) == AT_ONCE
        until(lambda: app.raylets.engines().get(node, pid) != pid)  # by a replica of Ray's
    finally:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)


def test_streams_end_before_the_server_does(app: App) -> None:
    """The last test of the file: it deletes the application."""
    from ray import serve

    body = {"prompt": "once", "max_tokens": 700, "ignore_eos": True, "stream": True}
    begun = threading.Event()

    def read() -> list[Any]:
        found = []
        with app.client.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    found.append(line.removeprefix("data: "))
                    begun.set()
        return found

    with ThreadPoolExecutor() as pool:
        under_way = pool.submit(read)
        assert begun.wait(60)
        serve.delete("suffice")
        found = under_way.result()
    assert found[-1] == "[DONE]"
    assert json.loads(found[-2])["choices"][0]["finish_reason"] == "length"
