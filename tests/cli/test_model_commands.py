"""`suffice pull`, `list` and `rm`, against a hub that these tests serve; see models.py."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Cli, complaint
from fake_hub import FakeHub, serving
from suffice.checkpoints import packed_store
from suffice.checkpoints.files import fingerprint
from suffice.pull import MODELS, model_path
from suffice.quant.int8 import Int8


class Terminal(io.StringIO):
    """Standard input that a person types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def hub(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with a repository of a tiny model, and one of two GGUF files."""
    folder = {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.is_file()}
    made = FakeHub(
        {
            "org/tiny": folder,
            "org/files": {"a-Q4_0.gguf": b"GGUF a" * 500_000, "a-Q8_0.gguf": b"GGUF b"},
        }
    )
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with serving(made):
        monkeypatch.setenv("HF_ENDPOINT", made.address)
        yield made


def test_a_model_of_a_hub_is_pulled_and_run(cli: Cli, hub: FakeHub) -> None:
    ran = cli("pull", "org/tiny")
    assert ran.code == 0 and Path(ran.out.strip(), "config.json").is_file()
    assert re.search(r"^org/tiny: safetensors, \d+ MB; licence: mit$", ran.err, re.MULTILINE)
    hub.asked.clear()
    ran = cli("run", "-m", "org/tiny", "--raw", "-q", "-n", "2", "hello")
    assert (ran.code, ran.err, hub.asked) == (0, "", [])


def test_the_list(cli: Cli, hub: FakeHub) -> None:
    ran = cli("list")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "no model has been pulled: `suffice pull smollm2-135m` pulls one\n"
    cli("pull", "org/files:Q4_0@v1")
    file = model_path(MODELS["smollm2-135m"])
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(2_000_000))
    shown = cli("list").out.splitlines()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown]
    assert lines[0] == ["name", "format", "size", "last used"]
    assert lines[2:] == [
        ["smollm2-135m", "GGUF", "2 MB", "-"],
        ["org/files:Q4_0@v1", "GGUF", "3 MB", "-"],
    ]
    complaint(cli("run", "-m", "org/files:Q4_0@v1", "x"))  # no GGUF file, but it was looked at
    assert re.search(r"v1 +\| GGUF +\| +3 MB \| +\d{4}-\d\d-\d\d \d\d:\d\d \|", cli("list").out)


def test_removing(cli: Cli, hub: FakeHub) -> None:
    path = Path(cli("pull", "org/files:Q4_0").out.strip())
    message = "rm org/files:Q4_0: nobody can be asked here: give -y"
    assert complaint(cli("rm", "org/files:Q4_0")) == message
    assert path.is_file()
    ran = cli("rm", "-y", "org/files/a-Q4_0.gguf")
    assert (ran.code, ran.out, ran.err) == (0, "", "removed org/files:Q4_0\n")
    assert not path.parent.exists() and "no model has been pulled" in cli("list").err
    message = "model 'org/files:Q4_0' is not on this machine: run `suffice pull org/files:Q4_0`"
    assert complaint(cli("run", "x", "-m", "org/files:Q4_0")) == message


def test_removing_takes_packed_weights_along(cli: Cli, hub: FakeHub) -> None:
    folder = Path(cli("pull", "org/tiny").out.strip())
    packed = packed_store.folder()
    packed.mkdir(exist_ok=True)
    place = packed_store.place_of(folder, fingerprint(folder), Int8(), None)
    assert place is not None
    place.path.write_bytes(b"x")
    other = packed / "another.packed"
    other.write_bytes(b"x")
    cli("rm", "-y", "org/tiny")
    assert not place.path.exists() and other.exists()


@pytest.mark.parametrize(("text", "gone"), [("y\n", True), ("n\n", False), ("", False)])
def test_removing_asks(
    cli: Cli, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, text: str, gone: bool
) -> None:
    path = Path(cli("pull", "org/files:Q4_0").out.strip())
    with monkeypatch.context() as patch:
        patch.setattr(io, "StringIO", Terminal)
        ran = cli("rm", "org/files:Q4_0", stdin=text)
    said = "removed org/files:Q4_0" if gone else "org/files:Q4_0 stays"
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == f"remove org/files:Q4_0, 3 MB? [y/N] {said}\n"
    assert path.exists() != gone


def test_removing_a_model_of_the_catalogue(cli: Cli) -> None:
    file = model_path(MODELS["smollm2-135m"])
    file.parent.mkdir(parents=True)
    for path in (file, file.parent / "LICENSE", file.parent / "mine.json"):
        path.write_text("x")
    ran = cli("rm", "smollm2-135m", "-y")
    assert ran.err == f"removed smollm2-135m; other files stay in {file.parent}\n"
    assert [path.name for path in file.parent.iterdir()] == ["mine.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pull", "org/absent"], "cannot pull 'org/absent': the hub has no such repository (or HF"),
        (["pull", "org/files"], "'org/files' may be one of 2 GGUF files: a-Q4_0.gguf, a-Q8_0.gguf"),
        (["rm", "-y", "org/files"], "unknown downloaded model 'org/files'. There are none"),
        (["rm", "-y", "/"], "unknown downloaded model '/'. There are none"),
        (["rm"], "Missing argument 'NAME'"),
    ],
)
def test_bad_names_are_one_line(cli: Cli, hub: FakeHub, arguments: list[str], message: str) -> None:
    assert complaint(cli(*arguments)).startswith(message)


def test_a_pull_that_ends_early_is_one_line(cli: Cli, hub: FakeHub) -> None:
    hub.status = 403
    ran = cli("pull", "org/files:Q8_0")
    lines = ran.err.splitlines()
    assert (ran.code, ran.out, lines[:-1]) == (2, "", [])
    assert lines[-1].startswith("suffice: error: cannot pull 'org/files:Q8_0': the hub asks for an")
    assert "| incomplete |" in cli("list").out
    assert complaint(cli("run", "x", "-m", "org/files:Q8_0")).startswith(
        "model 'org/files:Q8_0' is here in part only"
    )
