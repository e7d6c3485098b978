"""Places by llama.cpp's API: what they end with is saved, had back and forgotten.

Also tests slot_files.py and rows_files.py.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from serving import Served, real, until
from suffice.paths import private_folder_fault
from suffice.serve.http.slots import Slots, common
from suffice.serve.processes import wire
from suffice.serve.processes.pending import Mailbox, Ticket

TEXT = "To be, or not to be, that is the question: whether it is nobler. " * 4
KEYS = ("one", "two")


def ask(server: Served, prompt: Any, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 6, "seed": 5, "return_tokens": True, "ignore_eos": True}
    answer = server.post("/completion", {**body, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def act(server: Served, place: object, action: str, key: str = "", **body: Any) -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return server.post(f"/slots/{place}?action={action}", body, headers=headers)


def done(server: Served, place: int, action: str, **body: Any) -> dict[str, Any]:
    answer = act(server, place, action, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def fault(answer: Any, status: int) -> str:
    """The message of an error with this status, which has one line; else only what differs."""
    if answer.status_code != status:
        return f"status {answer.status_code}"
    message: str = answer.json()["error"]["message"]
    return "several lines" if "\n" in message else message


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots") / "kept"


@pytest.fixture(scope="module")
def server(words: Path, folder: Path) -> Iterator[Served]:
    with real(words, places=3, api_keys=KEYS, slot_save_path=str(folder)) as found:
        found.client.headers["authorization"] = "Bearer one"
        yield found


def saved(server: Served, name: str, place: int = 1) -> list[int]:
    """Save a text of a place; return its tokens."""
    tokens = server.post("/tokenize", {"content": TEXT + name, "add_special": True})
    prompt: list[int] = tokens.json()["tokens"]
    answer = ask(server, prompt, id_slot=place)
    assert answer["id_slot"] == place
    text = [*prompt, *answer["tokens"]]
    assert done(server, place, "save", filename=name)["n_saved"] == len(text)
    return text


def test_a_text_is_had_back_by_another_server(server: Served, words: Path, folder: Path) -> None:
    text = saved(server, "a.bin")
    (path,) = folder.glob("*/a.bin")
    found = done(server, 1, "save", filename="a.bin")
    assert found.pop("timings")["save_ms"] > 0
    size = path.stat().st_size
    assert found == {
        "id_slot": 1,
        "filename": "a.bin",
        "n_saved": len(text),
        "n_written": size,
    }
    wanted = ask(server, [*text, 7, 8], cache_prompt=False)
    assert wanted["tokens_cached"] == 0
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, folder)]
    assert modes == [0o600, 0o700, 0o700], "rows tell what was asked"
    with real(words, api_keys=KEYS, slot_save_path=str(folder)) as other:
        other.client.headers["authorization"] = "Bearer one"
        found = done(other, 5, "restore", filename="a.bin")
        assert found.pop("timings")["restore_ms"] > 0
        assert found == {
            "id_slot": 5,
            "filename": "a.bin",
            "n_restored": len(text),
            "n_read": size,
        }
        again = ask(other, [*text, 7, 8])
        assert again["tokens_cached"] == len(text)
        assert again["tokens"] == wanted["tokens"]
        assert again["id_slot"] == 5, "its text begins so"
        assert done(other, 5, "erase")["n_erased"] == len(text) + 2 + 6
        assert done(other, 5, "erase") == {"id_slot": 5, "n_erased": 0}


def test_what_is_saved_need_not_be_in_memory_any_more(words: Path, tmp_path: Path) -> None:
    with real(words, slot_save_path=str(tmp_path), instances=2) as server:
        text = saved(server, "b.bin")
        for engine in server.front.instance.members:
            pid = engine.pid
            engine._life.process.kill()
            until(lambda engine=engine, pid=pid: engine.ready and engine.pid != pid)
        assert done(server, 1, "save", filename="c.bin")["n_saved"] == len(text)
    first, second = ((tmp_path / name).read_bytes() for name in ("b.bin", "c.bin"))
    assert first == second, "rows that are computed again are the same"


def test_states_are_had_back(tmp_path: Path) -> None:
    given = {"tokenizer": True, "max_position_embeddings": 1024}
    model = tiny.make(tmp_path / "model", "qwen3.5", **given)
    with real(model, slot_save_path=str(tmp_path)) as server:
        text = saved(server, "s.bin")
        wanted = ask(server, [*text, 7], cache_prompt=False)
    with real(model, slot_save_path=str(tmp_path)) as server:
        assert done(server, 0, "restore", filename="s.bin")["n_restored"] == len(text)
        again = ask(server, [*text, 7])
    assert again["tokens_cached"] == len(text) and again["tokens"] == wanted["tokens"]


def test_another_key_finds_no_text_and_no_file(server: Served, folder: Path) -> None:
    saved(server, "mine.bin", place=2)
    assert "has no text of yours" in fault(act(server, 2, "save", "two", filename="x.bin"), 400)
    assert "no saved slot 'mine.bin'" in fault(
        act(server, 0, "restore", "two", filename="mine.bin"), 404
    )
    assert "has no text of yours" in fault(
        act(server, 2, "save", filename="x.bin", cache_salt="s"), 400
    )
    assert act(server, 2, "erase", "two").json() == {"id_slot": 2, "n_erased": 0}
    before = (next(folder.glob("*/mine.bin"))).read_bytes()
    server.client.headers["authorization"] = "Bearer two"
    try:
        ask(server, TEXT + "other", id_slot=0)
        assert act(server, 0, "save", "two", filename="mine.bin").status_code == 200
    finally:
        server.client.headers["authorization"] = "Bearer one"
    assert sorted(each.read_bytes() == before for each in folder.glob("*/mine.bin")) == [
        False,
        True,
    ]
    assert done(server, 2, "restore", filename="mine.bin")["n_restored"] > 64
    assert not list(folder.glob("*/x.bin"))


@pytest.mark.parametrize(
    ("place", "action", "body", "status", "text"),
    [
        (3, "save", {"filename": "x"}, 400, "slot '3': must be 0 to 2"),
        ("-1", "save", {"filename": "x"}, 400, "must be 0 to 2"),
        ("x", "erase", {}, 400, "must be 0 to 2"),
        (0, "drop", {}, 400, "must be save, restore, erase"),
        (0, "", {}, 400, "must be save, restore, erase"),
        (0, "save", {}, 400, "filename=None: must be a plain name"),
        (0, "save", {"filename": "../x"}, 400, "must be a plain name"),
        (0, "save", {"filename": ".."}, 400, "must be a plain name"),
        (0, "restore", {"filename": "a\\b"}, 400, "must be a plain name"),
        (0, "restore", {"filename": "a\0"}, 400, "must be a plain name"),
        (0, "save", {"filename": "n" * 201}, 400, "must be a plain name"),
        (0, "save", {"filename": 1}, 400, "filename"),
        (0, "save", {"filename": "x", "colour": 1}, 400, "unknown field 'colour'"),
        (0, "restore", {"filename": "gone.bin"}, 404, "no saved slot 'gone.bin'"),
    ],
)
def test_what_is_refused(
    server: Served, place: object, action: str, body: Any, status: int, text: str
) -> None:
    assert text in fault(act(server, place, action, **body), status)


def test_places_are_asked_for(server: Served) -> None:
    answer = server.post("/completion", {"prompt": "a", "id_slot": 3})
    assert "id_slot=3: must be less than 3" in fault(answer, 400)
    chat = server.chat("hello", max_tokens=2, id_slot=2)
    assert chat.status_code == 200 and done(server, 2, "erase")["n_erased"] > 2


def test_a_server_without_a_folder_has_none(words: Path) -> None:
    with real(words) as server:
        ask(server, "a", id_slot=3)
        assert "start it with --slot-save-path DIR" in fault(
            act(server, 0, "save", filename="x"), 501
        )


def test_damaged_and_foreign_files(server: Served, folder: Path) -> None:
    text = saved(server, "good.bin")
    good = next(folder.glob("*/good.bin"))
    whole, bad = good.read_bytes(), good.with_name("bad.bin")
    for damaged in (whole[:-9], whole[: len(whole) // 2], whole[:40], whole + b"x"):
        bad.write_bytes(damaged)
        assert "bad.bin is damaged" in fault(act(server, 0, "restore", filename="bad.bin"), 400)
    flipped = bytearray(whole)
    flipped[-99] ^= 4
    bad.write_bytes(flipped)
    assert "bad.bin is damaged" in fault(act(server, 0, "restore", filename="bad.bin"), 400)
    bad.write_bytes(b"something else")
    assert "bad.bin is no file of saved rows" in fault(
        act(server, 0, "restore", filename="bad.bin"), 400
    )
    assert "give another name" in fault(act(server, 1, "save", filename="bad.bin"), 400)
    assert bad.read_bytes() == b"something else"
    bad.unlink()
    bad.mkdir()
    assert "no saved slot" in fault(act(server, 0, "restore", filename="bad.bin"), 404)
    assert "bad.bin" in fault(act(server, 1, "save", filename="bad.bin"), 400)
    assert not list(folder.glob("*/*.part")), "nothing half-written is left"
    assert done(server, 0, "restore", filename="good.bin")["n_restored"] == len(text)


def test_a_file_of_another_model(server: Served, words: Path, folder: Path) -> None:
    saved(server, "types.bin")
    with real(words, api_keys=KEYS, slot_save_path=str(folder), kv_cache_dtype="int8") as other:
        other.client.headers["authorization"] = "Bearer one"
        told = fault(act(other, 0, "restore", filename="types.bin"), 400)
        assert "was saved with kv_cache_dtype float32 (here int8): give the same" in told
        assert str(folder) not in act(other, 0, "restore", filename="types.bin").text


def test_rows_that_the_store_has_no_room_for(server: Served, words: Path, folder: Path) -> None:
    saved(server, "large.bin")
    limits = {"prefix_bytes": 1}
    with real(words, api_keys=KEYS, slot_save_path=str(folder), limits=limits) as other:
        other.client.headers["authorization"] = "Bearer one"
        answer = act(other, 0, "restore", filename="large.bin")
        assert "more than the engine keeps" in fault(answer, 400)


def test_a_model_that_is_not_served(server: Served) -> None:
    assert "the model 'none' is not served here" in fault(
        act(server, 0, "erase", model="none"), 404
    )
    answer = server.post("/slots/0?action=erase&model=none", {})
    assert "the model 'none' is not served here" in fault(answer, 404)


def test_a_folder_that_others_can_open_must_be_empty(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    assert private_folder_fault(str(folder)) is None
    (folder / "kept.bin").touch()
    assert "that only you can open (chmod 700)" in (private_folder_fault(str(folder)) or "")
    folder.chmod(0o700)
    assert private_folder_fault(str(folder)) is None


def ticket(prompt: list[int], group: str = "") -> Ticket:
    return Ticket(wire.Submit("", prompt, {}, group=group), 1, 0, Mailbox())


def through(slots: Slots, prompt: list[int], group: str = "", asked: int = -1) -> int:
    """A request that runs alone and gives a token: its place."""
    one = ticket(prompt, group)
    slots.take(one, asked)
    one.first_at, one.emitted = 1.0, [[9]]
    slots.leave(one)
    return one.place


def test_which_place_a_request_takes() -> None:
    slots = Slots(3)
    assert through(slots, [1, 2, 3]) == 0
    assert through(slots, [4, 5, 6], asked=2) == 2
    assert through(slots, [4, 5, 7]) == 2, "its text begins so"
    assert through(slots, [8]) == 0, "the first"
    assert [slots.text(at, "") and slots.text(at, "").prompt for at in range(3)] == [
        *([8, 9], None, [4, 5, 7, 9]),
    ]
    assert through(slots, [4, 5, 7], group="another") == 0, "nobody learns where others are"
    assert slots.text(2, "another") is None
    first, second = ticket([4, 5]), ticket([4, 5])
    slots.take(first, -1)
    slots.take(second, -1)
    assert (first.place, second.place) == (2, 0), "free places come first"
    assert slots.busy == [True, False, True]
    slots.leave(first)
    assert slots.text(2, "").prompt == [4, 5, 7, 9], "it has given nothing"
    many = [ticket([1]) for _ in range(4)]
    for each in many:
        slots.take(each, -1)
    assert sorted(each.place for each in (second, *many)) == [0, 0, 1, 1, 2]


def test_common_beginnings() -> None:
    assert common([1, 2, 3], [1, 2, 4]) == 2
    assert common([1, 2], [1, 2, 3]) == 2 == common([1, 2, 3], [1, 2])
    assert common([], [1]) == 0 == common([2], [1])
