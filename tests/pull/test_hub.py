"""Pulling from a hub, which these tests serve themselves: what is taken, and every way to fail.

Also tests hub_files.py, lookup.py, names.py, stored.py and transfer.py.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import file_download

from fake_hub import COMMIT, FakeHub, serving
from suffice.errors import InputError
from suffice.pull import HubName, pull, resolve
from suffice.pull.stored import PARTS, entries, find, meant, remove

BIG = os.urandom(3_000_000)
SMALL = b"GGUF small"
FOLDER = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "README.md": b"hello",
    "model.safetensors": b"weights",
    "consolidated.safetensors": b"the same weights",
    "onnx/model.json": b"{}",
    "empty.txt": b"",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with two repositories; its address is in the environment, and no token is."""
    made = FakeHub(
        {
            "org/model-GGUF": {
                "README.md": b"",
                "model-Q4_K_M.gguf": BIG,
                "model-Q4_K_S.gguf": SMALL,
                "sub/model.Q8_0.gguf": b"GGUF 8 bits",
                "mmproj-model-f16.gguf": b"GGUF pictures",
            },
            "org/model": FOLDER,
            "org/one": {"one-f16.gguf": SMALL},
            "org/pickled": {"config.json": b"{}", "pytorch_model.bin": b"x"},
            "org/split": {f"big-Q4_0-0000{n}-of-00002.gguf": SMALL for n in (1, 2)},
            "org/half": {"big-Q4_0-00001-of-00002.gguf": SMALL},
            "org/whole": {"small-Q4_0-00001-of-00001.gguf": SMALL},
            "org/none": {"README.md": b""},
        }
    )
    monkeypatch.setenv("SUFFICE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)  # between attempts
    with serving(made):
        monkeypatch.setenv("HF_ENDPOINT", made.address)
        yield made


def refusal(name: str) -> str:
    """Return the one line that a pull ends in."""
    with pytest.raises(InputError) as error:
        pull(name)
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/repo", HubName("org/repo")),
        ("org/repo:Q4_K_M", HubName("org/repo", tag="Q4_K_M")),
        ("org/repo/a.gguf", HubName("org/repo", file="a.gguf")),
        ("org/repo/sub/a.gguf@v1", HubName("org/repo", file="sub/a.gguf", revision="v1")),
        ("org/repo@refs/pr/1", HubName("org/repo", revision="refs/pr/1")),
        ("org/repo:Q4_0@v1", HubName("org/repo", tag="Q4_0", revision="v1")),
        *((text, None) for text in ("name", "a/b.gguf", "/a/b", "./a/b", "a/b/c", "a/b/", "a/b:")),
        *((text, None) for text in ("a/b/../c.gguf", "a/b/c.gguf:Q4", "a/b c", "a/" + "b" * 300)),
    ],
)
def test_names(text: str, name: HubName | None) -> None:
    assert HubName.read(text) == name
    assert name is None or str(name) == text


@pytest.mark.parametrize(
    ("tag", "file", "matches"),
    [
        ("Q4_K_M", "model-Q4_K_M.gguf", True),
        ("q4_k_m", "model.Q4_K_M.gguf", True),
        ("Q4_K", "model-Q4_K_M.gguf", False),
        ("Q4_0", "model-Q4_0_4_4.gguf", False),
        ("Q4_0", "IQ4_0.gguf", False),
        ("Q4_0", "Q4_0-00001-of-00002.gguf", True),
        ("Q4.0", "model-Q4_0.gguf", False),
    ],
)
def test_a_tag_is_a_whole_type(tag: str, file: str, matches: bool) -> None:
    assert HubName("org/repo", tag=tag).matches(f"sub/{file}") == matches


@pytest.mark.parametrize(
    "rest", [":Q4_K_M", "/model-Q4_K_M.gguf", "/model-Q4_K_M.gguf@v1", ":q4_k_m@v1"]
)
def test_one_file_is_pulled_and_found_again(hub: FakeHub, rest: str) -> None:
    name = f"org/model-GGUF{rest}"
    seen: list[tuple[str, int, int]] = []
    path = pull(name, lambda *progress: seen.append(progress))
    assert path.read_bytes() == BIG and path.name == "model-Q4_K_M.gguf"
    assert resolve(name) == str(path)
    assert seen[-1] == ("downloading", len(BIG), len(BIG))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert hub.sent("store") == [f"org/model-GGUF/resolve/{COMMIT}/model-Q4_K_M.gguf"]
    pull(name)
    assert len(hub.sent("store")) == 1, "it was there"


def test_another_spelling_means_the_same_model(hub: FakeHub) -> None:
    path = pull("org/model-GGUF:Q4_K_S")
    for name in ("org/model-GGUF/model-Q4_K_S.gguf", "org/model-GGUF"):
        assert resolve(name) == str(path)
    pull("org/model-GGUF:Q8_0")
    with pytest.raises(InputError) as error:
        resolve("org/model-GGUF")
    assert str(error.value) == (
        "model 'org/model-GGUF' may be one of several: org/model-GGUF/model-Q4_K_S.gguf, "
        "org/model-GGUF/sub/model.Q8_0.gguf"
    )


def test_each_revision_is_a_model_of_its_own(hub: FakeHub) -> None:
    old = pull("org/one@v1")
    assert resolve("org/one") == "org/one", "only v1 is here"
    hub.repos["org/one"] = {"one-f16.gguf": b"GGUF newer"}
    new = pull("org/one")
    assert [resolve(name) for name in ("org/one@v1", "org/one")] == [str(old), str(new)]
    assert (old.read_bytes(), new.read_bytes()) == (SMALL, b"GGUF newer")


def test_a_folder_has_what_loading_reads(hub: FakeHub) -> None:
    path = pull("org/model")
    names = {each.name for each in path.iterdir() if not each.name.startswith(".")}
    assert names == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "empty.txt",
        "pulled.json",
    }
    assert resolve("org/model") == str(path)


def test_the_only_file_needs_no_tag(hub: FakeHub) -> None:
    assert pull("org/one").read_bytes() == SMALL
    assert pull("org/whole").read_bytes() == SMALL, "a split of one part"


@pytest.mark.parametrize("name", ["org/split", "org/split:Q4_0", "org/split/PART"])
def test_a_split_file_is_pulled_whole(hub: FakeHub, name: str) -> None:
    path = pull(name.replace("PART", "big-Q4_0-00002-of-00002.gguf"))
    assert path.name == "big-Q4_0-00001-of-00002.gguf"
    assert sorted(each.name for each in path.parent.glob("*.gguf")) == [
        "big-Q4_0-00001-of-00002.gguf",
        "big-Q4_0-00002-of-00002.gguf",
    ]


def test_a_changed_repository_is_pulled_anew(hub: FakeHub) -> None:
    path = pull("org/model")
    changed = {**FOLDER, "config.json": b"{ }"}
    del changed["empty.txt"]
    hub.repos["org/model"] = changed
    hub.asked.clear()
    pull("org/model")
    assert (path / "config.json").read_bytes() == b"{ }" and not (path / "empty.txt").exists()
    assert hub.sent("store") == [f"org/model/resolve/{COMMIT}/config.json"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "org/model-GGUF",
            "'org/model-GGUF' may be one of 3 GGUF files: model-Q4_K_M.gguf, model-Q4_K_S.gguf, "
            "sub/model.Q8_0.gguf; give one, such as org/model-GGUF/model-Q4_K_M.gguf",
        ),
        (
            "org/model-GGUF:Q4_K",
            "no GGUF file of 'org/model-GGUF' is Q4_K. It has model-Q4_K_M.gguf, "
            "model-Q4_K_S.gguf, sub/model.Q8_0.gguf",
        ),
        (
            "org/model-GGUF/model-Q4_K_X.gguf",
            "no GGUF file of 'org/model-GGUF' is model-Q4_K_X.gguf. Did you mean "
            "'model-Q4_K_S.gguf'? It has model-Q4_K_M.gguf, model-Q4_K_S.gguf, sub/model.Q8_0.gguf",
        ),
        ("org/model:Q4_0", "'org/model' has no GGUF file"),
        ("org/none", "'org/none' has no GGUF file and no config.json"),
        (
            "org/pickled",
            "'org/pickled' has no weights as safetensors (model.safetensors, or parts of it): take "
            "a repository that has them, or one of GGUF files",
        ),
        (
            "org/half:Q4_0",
            "'org/half' lacks big-Q4_0-00002-of-00002.gguf, a part of a split GGUF file",
        ),
        (
            "org/absent",
            "cannot pull 'org/absent': the hub has no such repository (or HF_TOKEN does not open "
            "it)",
        ),
        ("org/one@v9", "cannot pull 'org/one@v9': the repository has no revision 'v9'"),
    ],
)
def test_what_cannot_be_pulled(hub: FakeHub, name: str, message: str) -> None:
    assert refusal(name) == message
    assert entries() == [] and hub.sent("file") == []


def test_a_gated_repository_needs_a_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add("org/one")
    message = (
        "cannot pull 'org/one': the hub asks for an accepted licence: accept it at "
        f"{hub.address}/org/one and set HF_TOKEN"
    )
    assert refusal("org/one") == message
    monkeypatch.setenv("HF_TOKEN", "wrong")
    assert refusal("org/one") == message
    monkeypatch.setenv("HF_TOKEN", "sesame")
    pull("org/one")
    assert [token for kind, _, _, token in hub.asked if kind == "store"] == [None], "it is a secret"


def test_a_cut_connection_goes_on_where_it_ended(hub: FakeHub) -> None:
    hub.cut_after = 1_200_000
    assert pull("org/model-GGUF:Q4_K_M").read_bytes() == BIG
    starts = [given for kind, _, given, _ in hub.asked if kind == "store"]
    assert starts == [None, *(f"bytes={n << 20}-" for n in (1, 2))], "in blocks"


def test_a_pull_goes_on_where_an_earlier_one_gave_up(hub: FakeHub) -> None:
    name = "org/model-GGUF:Q4_K_M"
    hub.cut_after = 0
    said = refusal(name)
    assert said.startswith(f"cannot pull '{name}': model-Q4_K_M.gguf: the connection broke: ")
    assert said.endswith("; 0 MB are here: the same command goes on")
    assert len(hub.sent("store")) == 6
    [entry] = entries()
    (part,) = (entry.folder / PARTS).iterdir()
    part.write_bytes(BIG[:1_000_000])
    assert entry.size_bytes == 1_000_000
    with pytest.raises(InputError, match=r"is here in part only: run `suffice pull org/"):
        resolve(name)
    hub.cut_after = None
    hub.asked.clear()
    assert pull(name).read_bytes() == BIG
    assert [given for kind, _, given, _ in hub.asked if kind == "store"] == ["bytes=1000000-"]
    assert not (entry.folder / PARTS).exists()


def test_a_server_without_ranges_sends_all_again(hub: FakeHub) -> None:
    hub.cut_after = 0
    refusal("org/model-GGUF:Q4_K_M")
    (part,) = (entries()[0].folder / PARTS).iterdir()
    part.write_bytes(b"other bytes")
    hub.cut_after, hub.ranges = None, False
    assert pull("org/model-GGUF:Q4_K_M").read_bytes() == BIG


def test_an_interrupted_pull_goes_on(hub: FakeHub) -> None:
    script = (
        "import os, signal\nfrom suffice.pull import pull\n"
        "def report(what, done, total):\n"
        "    if done: os.kill(os.getpid(), signal.SIGINT)\n"
        "pull('org/model-GGUF:Q4_K_M', report)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert ended.returncode == -signal.SIGINT or b"KeyboardInterrupt" in ended.stderr
    [entry] = entries()
    assert not entry.done and 0 < entry.size_bytes <= len(BIG)
    assert pull("org/model-GGUF:Q4_K_M").read_bytes() == BIG


def test_bytes_that_were_not_announced(hub: FakeHub) -> None:
    hub.damaged = True
    assert refusal("org/one").startswith("cannot pull 'org/one': one-f16.gguf has the sha256 ")
    assert not any((entries()[0].folder / PARTS).iterdir())
    hub.damaged = False
    assert pull("org/one").read_bytes() == SMALL


def test_a_server_in_trouble(hub: FakeHub) -> None:
    hub.status = 503
    assert refusal("org/one").startswith(
        "cannot pull 'org/one': one-f16.gguf: the server answers 5"
    )
    hub.status = 404
    assert refusal("org/one").endswith("no such repository (or HF_TOKEN does not open it)")


def test_no_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    message = "cannot pull 'org/one': http://127.0.0.1:9 cannot be reached: [Errno 111] Connection"
    assert refusal("org/one").startswith(message)
    monkeypatch.setenv("HF_ENDPOINT", hub.store)  # which knows no such address
    hub.status = 200
    assert refusal("org/one") == f"cannot pull 'org/one': {hub.store} is no model hub"


def test_offline(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert refusal("org/one") == "cannot pull 'org/one': HF_HUB_OFFLINE is set, and it is not here"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    path = pull("org/one")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.asked.clear()
    assert pull("org/one") == path and hub.asked == []


def test_no_space(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    name, folder = "org/model-GGUF:Q4_K_M", tmp_path / "cache" / "models"
    assert refusal(name) == (
        f"not enough disk space for {name} in {folder}: 3 MB needed, 1 MB free; "
        "set SUFFICE_CACHE to move it"
    )
    assert hub.sent("file") == []
    monkeypatch.undo()


def test_space_that_runs_out(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_download, "http_get", full)
    folder = tmp_path / "cache" / "models"
    assert refusal("org/one") == f"cannot store org/one in {folder}: No space left on device"


def test_removing_leaves_what_was_not_downloaded(hub: FakeHub) -> None:
    path = pull("org/model")
    (path / "calibration.json").write_text("mine")
    entry = find(HubName("org/model"))
    assert entry is not None and not remove(entry)
    assert [each.name for each in path.iterdir()] == ["calibration.json"]
    assert entries() == [] and resolve("org/model") == "org/model"


def test_removing_a_part(hub: FakeHub) -> None:
    hub.cut_after = 0
    refusal("org/one")
    entry = meant(HubName("org/one"))
    assert entry is not None and remove(entry) and not entry.folder.exists()


@pytest.mark.parametrize("record", ["{", "[]", '{"name": 1}'])
def test_a_damaged_record_is_named(hub: FakeHub, record: str) -> None:
    file = pull("org/one").parent / "pulled.json"
    file.write_text(record)
    with pytest.raises(InputError, match=r"pulled\.json cannot be read: "):
        resolve("org/one")


def test_a_record_cannot_name_other_folders(hub: FakeHub) -> None:
    file = pull("org/one").parent / "pulled.json"
    file.write_text(file.read_text().replace('"one-f16.gguf": ', '"../../x": '))
    with pytest.raises(InputError, match=r"pulled\.json names files outside of its folder"):
        entries()


def test_when_a_model_was_last_used(hub: FakeHub) -> None:
    pull("org/one")
    assert entries()[0].last_used is None
    resolve("org/one")
    assert entries()[0].last_used is not None
    with pytest.raises(InputError) as error:
        resolve("org/one:Q9@v1")
    assert str(error.value) == (
        "model 'org/one:Q9@v1' is not on this machine: run `suffice pull org/one:Q9@v1`"
    )
