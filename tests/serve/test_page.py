"""The page's files and its feed, without a browser: page/__init__.py, browser.py, live.py."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_faults import kill
from test_stopping import Process

from scripted_engine import KV_HEADS, LAYERS
from serving import Served, until
from suffice.cli.options import ModelFlags
from suffice.cli.serve import ServerFlags, settings
from suffice.engine.options import EngineOptions
from suffice.engine.work import EngineStats, Look
from suffice.serve.page import FILES
from suffice.serve.processes.live import Live
from suffice.serve.processes.lookout import Lookout

MOST_BYTES = 200_000
SHARE = re.compile(r"""(?:src|href)="([^"]*)"|(?:from|import)\s*"([^"]*)"|url\(([^)]*)\)""")


def frames(server: Served, count: int, **more: Any) -> list[dict[str, Any]]:
    """Return the first frames of the feed."""
    found: list[dict[str, Any]] = []
    with server.client.stream("GET", "/live", **more) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == count:
                break
    return found


def test_the_page_is_small_and_asks_for_nothing_else() -> None:
    assert sum(len(file.body) for file in FILES.values()) <= MOST_BYTES
    for path, file in FILES.items():
        text = file.body.decode()
        assert len(text.splitlines()) <= 400, path
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), path
        for found in SHARE.finditer(text):
            name = next(part for part in found.groups() if part is not None)
            here = name.removeprefix("page/").removeprefix("./")
            assert f"/page/{here}" in FILES or name.startswith("#"), f"{path} asks for {name}"


def test_the_page_has_no_script_or_style_of_its_own() -> None:
    text = FILES["/"].body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)


@pytest.mark.parametrize("path", sorted(FILES))
def test_files(server: Served, path: str) -> None:
    answer = server.client.get(path)
    assert answer.status_code == 200 and answer.content == FILES[path].body
    policy = answer.headers["content-security-policy"]
    for part in ("default-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"):
        assert part in policy
    assert "unsafe" not in policy and answer.headers["x-content-type-options"] == "nosniff"
    again = server.client.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    head = server.client.head(path)
    assert head.status_code == 200 and head.headers["etag"] == answer.headers["etag"]


@pytest.mark.parametrize(
    "path", ["/page", "/page/", "/page/none.js", "/page/../app.py", "/page/__init__.py"]
)
def test_other_files_are_not_there(server: Served, path: str) -> None:
    answer = server.client.get(path)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


def test_what_the_page_shows_of_the_server(serving: Callable[..., Any]) -> None:
    options = {
        "limits": {"attentions": ["certified:eps=0.1"]},
        "default_sampling": {"temperature": 0.3, "top_k": 20, "repetition_penalty": 1.1},
    }
    with serving(**options) as server:
        found = server.client.get("/page/server").json()
    assert found["model"] == "scripted" and found["max_model_len"] == 512
    assert found["sampling"] == {"temperature": 0.3, "top_k": 20}
    assert found["attentions"] == ["exact", "certified:eps=0.1"]


def test_keys_guard_the_feed_and_not_the_files(serving: Callable[..., Any]) -> None:
    with serving(api_keys=("secret",)) as server:
        for path in FILES:
            assert server.client.get(path).status_code == 200
        for path in ("/live", "/page/server"):
            assert server.client.get(path).status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert server.client.get("/page/server", headers=headers).status_code == 200
        assert len(frames(server, 1, headers=headers)) == 1


def test_a_server_may_have_no_page(serving: Callable[..., Any]) -> None:
    with serving(page=False, api_keys=("secret",)) as server:
        headers = {"authorization": "Bearer secret"}
        for path in (*FILES, "/live", "/page/server"):
            assert server.client.get(path).status_code == 401
            assert server.client.get(path, headers=headers).status_code == 404


def test_the_flag_for_no_page(checkpoint: Path) -> None:
    model = ModelFlags(options=EngineOptions(model=str(checkpoint)))
    assert settings(ServerFlags(), model).page
    assert not settings(ServerFlags(no_page=True), model).page


def test_the_page_under_the_path_of_a_proxy(serving: Callable[..., Any]) -> None:
    with serving(root_path="/models/a", api_keys=("secret",)) as server:
        for prefix in ("", "/models/a"):
            for path in FILES:
                assert server.client.get(prefix + path).content == FILES[path].body
            assert server.client.get(prefix + "/health").status_code == 200
            assert server.client.get(prefix + "/live").status_code == 401


def test_frames(serving: Callable[..., Any]) -> None:
    with serving(options={"step_seconds": 0.005}) as server:
        ask = threading.Thread(target=lambda: server.chat(max_tokens=480))
        ask.start()
        found = frames(server, 8)
        ask.join()
        last = found[-1]
        assert last["ailment"] is None and last["restarts"] == 0
        for name in ("key_rows", "value_rows", "rows_held"):
            assert len(last[name]) == LAYERS and {len(row) for row in last[name]} == {KV_HEADS}
        held = last["rows_held"][0][0]
        assert held > 0 and abs(last["key_rows"][0][1] - held // 2) <= 1
        assert last["value_rows"][2][1] < last["key_rows"][2][1] < held
        assert last["generated_tokens"] > 0 and last["kv_bytes_read"] > 0
        assert 0.2 < last["seconds"] < 3 and (last["guarantee"], last["missing"]) == (
            "estimate",
            0.004,
        )
        assert last["gap_seconds"][0] <= last["gap_seconds"][1]
        totals = last["since_start"]
        assert 0 < totals["key_rows_read"] < totals["rows_held"]


def test_a_frame_leaves_out_what_was_read_before() -> None:
    engine: Any = SimpleNamespace(ailment=lambda: None, ready=True, restarts=0)
    live = Live(engine)
    live.watchers = 1
    for steps, read in ((1, 100), (2, 130)):
        stats = EngineStats(steps=steps, generated_tokens=read)
        live.saw(Look(stats, [[read, 0]], [[read + 1, 0]], [[2 * read, 5]]))
    frame = live.frame()
    found = [frame[name] for name in ("key_rows", "value_rows", "rows_held")]
    assert found == [[[30, 0]], [[30, 0]], [[60, 0]]]
    assert frame["generated_tokens"] == 30 and frame["steps"] == 1


def test_a_frame_has_the_first_tokens_of_the_last_second(serving: Callable[..., Any]) -> None:
    with serving() as server:
        seen: list[float] = []
        for frame in streamed(server):
            if not seen:
                server.chat(max_tokens=2)
            seen += frame["first_seconds"]
            if seen:
                break
        assert seen[0] > 0


def streamed(server: Served) -> Iterator[dict[str, Any]]:
    with server.client.stream("GET", "/live") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def test_at_most_four_frames_a_second(server: Served) -> None:
    began = time.monotonic()
    count = len(frames(server, 6))
    assert time.monotonic() - began > 0.24 * (count - 1)


def test_nothing_is_sent_or_kept_without_a_watcher(server: Served) -> None:
    live = server.front.live
    seen: list[Any] = []
    take = server.front.instance.seen
    server.front.instance.seen = lambda look: (seen.append(look), take(look))
    try:
        frames(server, 3)
        until(lambda: not live.watchers)
        time.sleep(0.3)  # for a look that is under way
        count = len(seen)
        assert count >= 2
        server.chat(max_tokens=5)
        time.sleep(0.6)
        assert len(seen) == count and live.frame().keys() == {
            *(
                "ailment",
                "restarts",
                "first_tokens",
                "first_seconds",
                "gap_seconds",
                "guarantee",
                "missing",
            )
        }
    finally:
        server.front.instance.seen = take


def test_two_watch_and_one_leaves(server: Served) -> None:
    other = streamed(server)
    next(other)
    assert len(frames(server, 3)) == 3
    assert [len(next(other)["key_rows"]) for _ in range(3)] == [LAYERS] * 3
    other.close()
    until(lambda: not server.front.live.watchers)


def test_watchers_are_limited(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suffice.serve.page.browser.MOST_WATCHERS", 1)
    first = streamed(server)
    next(first)
    refused = server.client.get("/live")
    first.close()
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "queue_full"
    assert "retry-after" in refused.headers


def test_the_next_engine_is_watched_too(serving: Callable[..., Any]) -> None:
    with serving() as server:
        feed = streamed(server)
        until(lambda: "key_rows" in next(feed))
        server.chat(max_tokens=5)
        until(lambda: next(feed)["since_start"]["rows_held"] > 0)
        kill(server)

        def back() -> bool:
            frame = next(feed)
            return frame["restarts"] == 1 and frame["ailment"] is None and "since_start" in frame

        until(back)
        until(lambda: next(feed)["since_start"]["rows_held"] == 0)
        frame = next(feed)
        assert all(value >= 0 for row in frame["key_rows"] for value in row)
        feed.close()


def test_a_silent_engine_is_told_of(serving: Callable[..., Any]) -> None:
    with serving(heartbeat_seconds=0.2) as server:
        feed = streamed(server)
        pid = server.front.instance.members[0].pid
        os.kill(pid, signal.SIGSTOP)
        until(lambda: "has said nothing" in (next(feed)["ailment"] or ""))
        until(lambda: "key_rows" not in next(feed))
        os.kill(pid, signal.SIGCONT)
        until(lambda: next(feed)["ailment"] is None)
        feed.close()


def test_the_feed_ends_when_the_server_stops(serving: Callable[..., Any]) -> None:
    with serving() as server:
        feed = streamed(server)
        next(feed)
        server.models.draining = True
        began = time.monotonic()
        assert len(list(feed)) <= 2 and time.monotonic() - began < 10
        assert server.client.get("/live").status_code == 503
        assert server.client.get("/").status_code == 200


def test_a_lookout_looks_while_it_is_told_to() -> None:
    looks: list[Any] = []
    lookout = Lookout(lambda: len(looks), looks.append, 0.01)  # type: ignore[arg-type,return-value]
    assert not looks
    lookout.watch(True)
    lookout.watch(True)
    until(lambda: len(looks) > 3)
    lookout.close()
    time.sleep(0.05)
    count = len(looks)
    time.sleep(0.1)
    assert len(looks) == count
    lookout.watch(True)
    until(lambda: len(looks) > count)
    lookout.close()


def test_a_watched_server_stops_at_a_signal(words: Path) -> None:
    process = Process(words)
    try:
        with process.client.stream("GET", "/live") as answer:
            lines = answer.iter_lines()
            next(lines)
            process.process.send_signal(signal.SIGTERM)
            for _ in lines:  # until its end, which is clean
                pass
        assert process.process.wait(10) == 0
    finally:
        process.close()
