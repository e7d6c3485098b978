"""Servers that keep prompts on disk: the texts are those of servers that keep none."""

from __future__ import annotations

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving import Served, killing, real, until
from suffice.cache.block_folder import files
from suffice.serve.processes import instances, life

KILLS = int(os.environ.get("SUFFICE_KILLS", "6"))  # of engines under load; 300 is the long run
TEXT = "To be, or not to be, that is the question: whether it is nobler. " * 6


def texts(server: Served, at: int, **more: Any) -> tuple[str, dict[str, int]]:
    """A text of a prompt that many begin alike, and the tokens that were cached."""
    prompt = TEXT * (1 + at % 3) + str(at % 7) + TEXT[: 100 + at % 90]
    body = {"prompt": prompt, "max_tokens": 8, "seed": at, "ignore_eos": True, **more}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]


@pytest.fixture(scope="module")
def wanted(words: Path) -> list[str]:
    with real(words) as server:
        return [texts(server, at)[0] for at in range(21)]


def blocks(folder: Path) -> int:
    return sum(1 for each in files(folder) if each.whole)


def test_a_restarted_server_reads_what_it_had(
    words: Path, tmp_path: Path, wanted: list[str]
) -> None:
    kept = tmp_path / "kept"
    with real(words, prefix_dir=str(kept)) as server:
        first, details = texts(server, 2)
        assert details == {"cached_tokens": 0}
        until(lambda: blocks(kept) >= 5)
    with real(words, prefix_dir=str(kept)) as server:
        second, details = texts(server, 2)
        assert first == second == wanted[2]
        assert details["cached_tokens"] == details["cached_tokens_from_disk"] >= 5 * 64
        third, again = texts(server, 2)
        assert third == wanted[2] and "cached_tokens_from_disk" not in again, "it is in memory now"
        page = until(lambda: _page(server, "suffice:disk_prefix_hits_total"))
        assert page["suffice:disk_prefix_hits_total"] == details["cached_tokens"]
        assert page["suffice:disk_blocks_damaged_total"] == 0
        assert page["suffice:disk_bytes_read_total"] > 0


def test_every_interface_says_what_came_from_disk(words: Path, tmp_path: Path) -> None:
    kept, text = tmp_path / "kept", TEXT * 3
    asked = {
        "/v1/completions": {"prompt": "1" + text, "max_tokens": 2},
        "/completion": {"prompt": "2" + text, "n_predict": 2},
        "/v1/messages": {"messages": [{"role": "user", "content": text}], "max_tokens": 2},
        "/v1/responses": {"input": "4" + text, "max_output_tokens": 2},
    }
    found = []
    for _ in range(2):
        with real(words, prefix_dir=str(kept)) as server:
            answers = {path: server.post(path, body).json() for path, body in asked.items()}
            until(lambda: blocks(kept) >= 4 * 5)
        found.append({path: each["suffice"] for path, each in answers.items()})
    assert not any("cached_tokens_from_disk" in each for each in found[0].values())
    for path, own in found[1].items():
        assert own["cached_tokens_from_disk"] >= 5 * 64, path


def _page(server: Served, name: str) -> dict[str, float] | None:
    """The metrics, once one of them is there."""
    lines = server.client.get("/metrics").text.splitlines()
    both = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    found = {name.partition("{")[0]: float(value) for name, _, value in both}
    return found if found.get(name) else None


def test_another_key_or_salt_finds_nothing(words: Path, tmp_path: Path) -> None:
    for _ in range(2):
        cached = []
        with real(words, prefix_dir=str(tmp_path / "kept"), api_keys=("one", "two")) as server:
            for key, salt in (("one", None), ("two", None), ("one", "salt")):
                server.client.headers["authorization"] = f"Bearer {key}"
                more = {} if salt is None else {"cache_salt": salt}
                cached.append(texts(server, 2, **more)[1]["cached_tokens"])
                least = 5 * len(cached)
                until(lambda least=least: blocks(tmp_path / "kept") >= least)
    assert min(cached) >= 5 * 64, "each finds its own"
    assert cached[0] == cached[1] == cached[2]


def test_the_first_to_ask_finds_nothing_of_others(words: Path, tmp_path: Path) -> None:
    with real(words, prefix_dir=str(tmp_path / "kept"), api_keys=("one", "two")) as server:
        for key in ("one", "two"):
            server.client.headers["authorization"] = f"Bearer {key}"
            assert texts(server, 2)[1]["cached_tokens"] == 0
            until(lambda: blocks(tmp_path / "kept") >= 5)


def test_killed_engines_change_no_text(
    words: Path, tmp_path: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines use one folder and are killed at any moment; blocks get damaged, too."""
    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.05)
    kept, chance, over = tmp_path / "kept", random.Random(1), threading.Event()

    def damage() -> None:
        while not over.wait(0.05):
            for each in list(files(kept)):
                if chance.random() < 0.05:
                    _damage(each.path, chance)

    vandal = threading.Thread(target=damage)
    vandal.start()
    try:
        with (
            real(words, instances=2, prefix_dir=str(kept), prefix_disk_bytes="8MiB") as server,
            killing(server, 0.8) as killed,
            ThreadPoolExecutor(6) as pool,
        ):
            while len(killed) < KILLS:
                order = [chance.randrange(len(wanted)) for _ in range(12)]
                found = list(pool.map(lambda at: texts(server, at)[0], order))
                assert found == [wanted[at] for at in order]
    finally:
        over.set()
        vandal.join()
    with real(words, prefix_dir=str(kept)) as server:
        assert [texts(server, at)[0] for at in range(len(wanted))] == wanted


@pytest.mark.parametrize("lost", ["folder", "secret"])
def test_an_engine_that_cannot_open_the_folder_again_goes_without(
    words: Path, tmp_path: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.05)
    said: list[str] = []
    monkeypatch.setattr(life.LOG, "error", lambda *line: said.append(line[0] % line[1:]))
    kept, secret = tmp_path / "kept", tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    with real(words, prefix_dir=str(kept), prefix_secret=str(secret)) as server:
        assert texts(server, 2)[0] == wanted[2]
        if lost == "folder":
            kept.rename(tmp_path / "gone")
            kept.write_text("a file")
        else:
            secret.unlink()
        (engine,) = server.front.instance.members
        os.kill(engine._current.process.pid, signal.SIGKILL)
        assert [texts(server, at)[0] for at in (2, 3)] == [wanted[2], wanted[3]]
    (line,) = (line for line in said if "on disk" in line)
    assert line.startswith("a new engine keeps no prompts on disk: prefix_")


def _damage(path: Path, chance: random.Random) -> None:
    try:
        whole = bytearray(path.read_bytes())
        at = chance.randrange(len(whole))
        if chance.random() < 0.5:
            whole[at] ^= 1 << chance.randrange(8)
            path.write_bytes(whole)
        else:
            os.truncate(path, at)
    except (OSError, ValueError):  # it has just been removed
        pass
