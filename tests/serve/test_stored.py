"""Kept answers: http/stored.py, and the Responses API's state."""

from __future__ import annotations

import contextlib
import multiprocessing
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving import Served, events
from suffice.serve.http.stored import Responses, Stored

DAY = 86_400.0


def answer(number: int, previous: str | None = None, size: int = 1) -> Stored:
    output = [{"type": "message", "role": "assistant", "content": f"a{number}"}]
    return Stored({"id": f"r{number}", "output": output}, [f"q{number}" * size], previous)


def store(folder: Path, most: int = 1 << 20, age: float = DAY) -> Responses:
    return Responses(folder / "x" / "responses.sqlite", most, age)


def test_an_answer_is_there_for_its_key_alone(tmp_path: Path) -> None:
    kept = store(tmp_path)
    assert kept.get("r1", "a") is None and not kept.delete("r1", "a")
    kept.put("r1", "a", answer(1))
    assert store(tmp_path).get("r1", "a") == answer(1)
    assert kept.get("r1", "b") is None and not kept.delete("r1", "b")
    kept.put("r1", "b", answer(2))
    assert kept.get("r1", "a") == answer(1), "another key's answer of that name replaces nothing"
    assert kept.delete("r1", "a") and kept.get("r1", "a") is None
    assert (tmp_path / "x" / "responses.sqlite").stat().st_mode & 0o077 == 0
    assert b"secret-key" not in (tmp_path / "x" / "responses.sqlite").read_bytes()


def test_a_conversation(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for number in range(1, 4):
        kept.put(f"r{number}", "", answer(number, f"r{number - 1}" if number > 1 else None))
    talk = kept.talk("r3", "")
    assert talk is not None
    assert [each if isinstance(each, str) else each["content"] for each in talk] == [
        *("q1", "a1", "q2", "a2", "q3", "a3")
    ]
    kept.delete("r2", "")
    assert kept.talk("r3", "") is None and kept.talk("r1", "") is not None


def test_old_and_many_go(tmp_path: Path) -> None:
    kept = store(tmp_path, most=3000)
    for number in range(9):
        kept.put(f"r{number}", "", answer(number, size=400))
    there = [number for number in range(9) if kept.get(f"r{number}", "") is not None]
    assert there == list(range(9))[-len(there) :] and 1 <= len(there) <= 4
    aged = store(tmp_path, age=-1.0)
    assert aged.get("r8", "") is None
    aged.put("r9", "", answer(9))
    assert store(tmp_path).get("r8", "") is None, "too old ones are removed"


def test_a_damaged_file_fails_nothing(tmp_path: Path, logged: list[str]) -> None:
    kept = store(tmp_path)
    kept.put("r1", "", answer(1))
    kept.close()
    path = tmp_path / "x" / "responses.sqlite"
    path.write_bytes(b"no database" * 1000)
    assert kept.get("r1", "") is None
    kept.put("r1", "", answer(1))
    assert kept.talk("r1", "") is None and not kept.delete("r1", "")
    assert len(logged) == 4 and all("is not a database" in line for line in logged)
    for each in path.parent.iterdir():
        each.unlink()
    kept.put("r1", "", answer(1))
    assert kept.get("r1", "") == answer(1), "a removed file is made again"


def test_a_folder_that_cannot_be_made_fails_nothing(tmp_path: Path, logged: list[str]) -> None:
    (tmp_path / "x").write_text("a file")
    kept = store(tmp_path)
    kept.put("r1", "", answer(1))
    assert kept.get("r1", "") is None and "is not kept" in logged[0]


def write(folder: Path, first: int) -> None:
    kept = store(folder)
    for number in range(first, first + 25):
        kept.put(f"r{number}", "", answer(number))


def test_processes_share_a_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write, args=(tmp_path, first)) for first in (0, 100)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    path = tmp_path / "x" / "responses.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM responses").fetchone() == (50,)


def test_an_answer_goes_on_from_another(server: Served) -> None:
    first = server.post("/v1/responses", {"input": "hello", "max_output_tokens": 3}).json()
    assert first["store"] is True and first["previous_response_id"] is None
    assert server.client.get(f"/v1/responses/{first['id']}").json() == first
    body = {"input": "again", "previous_response_id": first["id"], "max_output_tokens": 3}
    second = server.post("/v1/responses", body).json()
    text = first["output"][0]["content"][0]["text"]
    talk = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "again"},
    ]
    whole = server.post("/v1/responses", {"input": talk, "max_output_tokens": 3}).json()
    assert second["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert second["previous_response_id"] == first["id"]
    asked = {**body, "previous_response_id": second["id"]}
    counted = server.post("/v1/responses/input_tokens", asked).json()["input_tokens"]
    found = events(server.post("/v1/responses", {**asked, "stream": True}))[-1]["response"]
    assert found["usage"]["input_tokens"] == counted
    assert server.client.get(f"/v1/responses/{found['id']}").json() == found
    assert server.client.delete(f"/responses/{first['id']}").json()["deleted"] is True
    refused = server.post("/v1/responses", {**body, "previous_response_id": second["id"]})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "previous_response_not_found"
    assert server.client.get(f"/v1/responses/{first['id']}").status_code == 404
    assert server.client.delete(f"/v1/responses/{first['id']}").status_code == 404


def test_the_items_of_an_answer(server: Served) -> None:
    items = [{"role": "user", "content": text} for text in ("a", "b", "c")]
    ident = server.post("/v1/responses", {"input": items, "max_output_tokens": 1}).json()["id"]
    path = f"/v1/responses/{ident}/input_items"
    page = server.client.get(path, params={"limit": 2}).json()
    assert [each["content"] for each in page["data"]] == ["c", "b"] and page["has_more"]
    rest = server.client.get(path, params={"limit": 2, "after": page["last_id"]}).json()
    assert [each["content"] for each in rest["data"]] == ["a"] and not rest["has_more"]
    ahead = server.client.get(path, params={"order": "asc"}).json()
    assert [each["content"] for each in ahead["data"]] == ["a", "b", "c"]
    for bad in ({"limit": 0}, {"limit": "x"}, {"limit": 101}, {"order": "up"}, {"after": "x"}):
        refused = server.client.get(path, params=bad)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == next(iter(bad))


def test_nothing_is_kept_if_nobody_wants_it(server: Served, serving: Callable[..., Any]) -> None:
    body = {"input": "a", "max_output_tokens": 1}
    own = server.post("/v1/responses", {**body, "store": False}).json()
    assert own["store"] is False
    assert server.client.get(f"/v1/responses/{own['id']}").status_code == 404
    with serving(store=False) as other:
        found = other.post("/v1/responses", {**body, "store": True}).json()
        assert found["store"] is False
        assert other.client.get(f"/v1/responses/{found['id']}").status_code == 404
        more = {**body, "previous_response_id": found["id"]}
        assert other.post("/v1/responses", more).status_code == 400


def test_another_key_finds_nothing(serving: Callable[..., Any]) -> None:
    with serving(api_keys=("a", "b")) as server:
        headers = {key: {"Authorization": f"Bearer {key}"} for key in "ab"}
        body = {"input": "a", "max_output_tokens": 1}
        ident = server.post("/v1/responses", body, headers=headers["a"]).json()["id"]
        path = f"/v1/responses/{ident}"
        assert server.client.get(path, headers=headers["a"]).status_code == 200
        assert server.client.get(path, headers=headers["b"]).status_code == 404
        assert server.client.delete(path, headers=headers["b"]).status_code == 404
        assert server.client.get(path).status_code == 401


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"]
)
def test_a_conversation_is_counted(server: Served, path: str) -> None:
    talk = [{"role": "user", "content": "hello"}]
    counted = server.post(path, {"messages": talk}).json()
    answer = server.post("/v1/chat/completions", {"messages": talk, "max_tokens": 1}).json()
    assert counted["input_tokens"] == answer["usage"]["prompt_tokens"]
