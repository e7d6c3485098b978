"""The benchmark of starts: processes are measured alone and in turn, and targets are judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import shaped_file
from benchmarks.harness.record import ROOT
from benchmarks.peers import environments, fresh, install, start, start_report
from benchmarks.peers.client import EngineError
from suffice.errors import InputError

MIB = 2**20
SUFFICE = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
case $1 in
run) echo token;;
bench) echo '[{"model_bytes": 1000}]';;
esac
"""
PYTHON = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
"""


def code(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_the_peak_is_of_the_process_and_not_of_the_one_who_asks() -> None:
    own = bytearray(b"x") * (200 * MIB)  # resident here while the other runs
    small = fresh.started(code("pass"))
    large = fresh.started(code(f"data = bytearray(b'x') * {100 * MIB}; print('made', flush=True)"))
    assert len(own) == 200 * MIB
    assert MIB < small["peak_bytes"] < 100 * MIB
    assert 95 * MIB < large["peak_bytes"] - small["peak_bytes"] < 110 * MIB
    assert large["said"] == "made\n" and large["first_seconds"] < large["seconds"]
    assert small["said"] == "" and small["first_seconds"] is None


def test_a_process_that_fails_says_why_in_one_line() -> None:
    with pytest.raises(EngineError) as caught:
        fresh.started(code(f"import sys; sys.exit('not there:\\n{ROOT}/model')"))
    assert str(caught.value) == f"{Path(sys.executable).name}: ./model"
    with pytest.raises(EngineError, match=r"^nothing: FileNotFoundError"):
        fresh.started(["/no/such/nothing"])


def test_commands_take_turns_and_the_first_round_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    add = "import sys; print({0!r}); open({1!r}, 'a').write({0!r})"
    commands = {name: code(add.format(name, str(log))) for name in "ab"}

    def before() -> None:
        with log.open("a") as file:
            file.write("-")

    found = fresh.in_turn(commands, 2, before)
    assert log.read_text() == "-a-b" * 3
    assert {name: [run["said"] for run in runs] for name, runs in found.items()} == {
        "a": ["a\n"] * 2,
        "b": ["b\n"] * 2,
    }


def environment(folder: Path) -> Path:
    """Make an environment whose engines answer at once, and return its Python."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    for name, text in (("suffice", SUFFICE), ("python", PYTHON)):
        path = folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    return folder / "bin" / "python"


def ask(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["start", "--quick", *arguments])
    return start.main()


def test_a_run_measures_every_part_and_keeps_those_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "FILES", tmp_path / "files")
    monkeypatch.setattr(start, "READ_BYTES", MIB)
    own, peer = environment(tmp_path / "own"), environment(tmp_path / "peer")
    folder = tmp_path / "out"
    asked = ["--python", str(own), "--peer-python", str(peer), "--output", str(folder)]
    assert ask(monkeypatch, *asked, "--only", "imports") == 0
    assert ask(monkeypatch, *asked, "--only", "start", "size", "file", "--threads", "1") == 0
    found = json.loads((folder / "start.json").read_text())["sections"]
    assert list(found) == list(start.PARTS)
    assert set(found["start"]["cases"]) == {*start.WEIGHTS, start_report.RAW, start_report.PEER}
    assert set(found["size"]["bytes"]) == set(found["size"]["given"])
    for each in found["file"]["cases"].values():
        assert len(each["rounds"]) == 2 and each["packed_bytes"] == 1000
        assert each["file_bytes"] > shaped_file.data_bytes(shaped_file.TINY, each["kind"])
        assert all(turn["run"]["said"] == "token\n" for turn in each["rounds"])
    (line, *_) = (peer.parent / "asked").read_text().splitlines()
    assert line.split()[2:] == ["1", str(shaped_file.CONTEXT), "Hi"], "threads, context, prompt"
    runs = [line for line in (own.parent / "asked").read_text().splitlines() if line[:4] == "run "]
    one_token = f"run {shaped_file.PROMPT} --raw "
    assert all(run.startswith(one_token) == ("tiny-" in run) for run in runs)
    assert sum(run.startswith("run Hi --raw ") for run in runs) == 3, "the peer's tokens, 3 rounds"
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["tiny.gguf"], "deleted"
    drawn = (folder / "start.md").read_text()
    assert "quick run" in drawn and "given, as it was" in drawn and str(tmp_path) not in drawn


def run_of(seconds: float, mib: float) -> dict[str, Any]:
    return {"seconds": seconds, "first_seconds": seconds / 2, "peak_bytes": mib * MIB}


def record(**sections: Any) -> dict[str, Any]:
    facts = {"machine": {"cpu": "a processor"}, "model": "a model", "threads": 2, "rounds": 3}
    return facts | {"quick": False, "sections": sections}


def line(table: str, start_of: str) -> list[str]:
    (found,) = [row for row in table.splitlines() if row.startswith(f"| {start_of} |")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_targets_are_over_the_peer_of_the_same_round() -> None:
    cases = {
        "default": [run_of(1.0, 140), run_of(2.0, 100), run_of(9.0, 100)],
        "int8": [run_of(1.0, 101)] * 3,
        start_report.RAW: [run_of(1.6, 100), run_of(3.2, 100), run_of(4.0, 100)],
        start_report.PEER: [run_of(1.0, 100), run_of(2.0, 100), run_of(4.0, 100)],
    }
    size = {"given": ["suffice"], "bytes": {"suffice": 162e6, start_report.PEER: 163e6}}
    page = start_report.report(record(start={"cases": cases}, size=size))
    wall = line(page, "`suffice run Hi -n 1`: wall time over llama-cpp-python's")
    assert wall[1:] == ["1.5", "1 (1 to 2.25)", "yes"]
    wall = line(page, "`suffice run Hi --raw -n 1`: wall time over llama-cpp-python's")
    assert wall[1:] == ["1.5", "1.6 (1 to 1.6)", "**no**"]
    peak = line(page, "`suffice run Hi -n 1`: peak memory over llama-cpp-python's")
    assert peak[1:] == ["1.4", "1 (1 to 1.4)", "yes"]
    int8 = "`suffice run Hi -n 1 --quant int8 -ctk int8`"
    peak = line(page, f"{int8}: peak memory over llama-cpp-python's")
    assert peak[1:] == ["1", "1.01 (1.01 to 1.01)", "**no**"]
    fresh_size = line(page, "size of a fresh environment, pip included, over llama-cpp-python's")
    assert fresh_size[3] == "yes"
    assert line(page, "suffice") == ["suffice", "162", "given, as it was"]
    assert line(page, '`python -c "from suffice import LLM"`, seconds')[2:] == ["-", "not measured"]


def test_a_file_is_judged_by_its_reading_and_by_its_packed_weights() -> None:
    turn = {"read_seconds": 0.5, "roof": 8e9, "run": run_of(2.0, 1700)}
    about = {"shape": "big", "kind": "Q4_0"}
    cases = {
        "one": about | {"weights": "int8", "file_bytes": 4e9, "packed_bytes": 1024 * MIB}
        | {"rounds": [turn] * 3},
        "two": about | {"weights": "default", "error": "needs 20.0 GiB of memory"},
    }  # fmt: skip
    page = start_report.report(record(file={"cases": cases}))
    assert line(page, "big Q4_0, weights int8: first token over reading the file")[2:] == [
        "2 (2 to 2)",
        "yes",
    ]
    over = line(page, "big Q4_0, weights int8: peak memory over packed weights, GiB")
    assert over[2:] == ["0.66 (0.66 to 0.66)", "**no**"]
    refused = line(page, "big Q4_0, weights default: first token over reading the file")
    assert refused[3] == "not measured"
    assert line(page, "big Q4_0, weights default")[1] == "needs 20.0 GiB of memory"


def test_a_second_start_has_a_target_and_a_table() -> None:
    turn = {"read_seconds": 0.5, "roof": 8e9, "run": run_of(6.0, 1700)}
    turns = [turn | {"again": run_of(2.2, 1700), "peer": run_of(4.0, 1700)}] * 3
    about = {"shape": "big", "kind": "Q4_0", "weights": "default", "packed_bytes": 1024 * MIB}
    case = about | {"file_bytes": 4e9, "rounds": turns}
    page = start_report.report(record(file={"cases": {"one": case}}))
    what = "big Q4_0, weights default"
    again = line(page, f"{what}: first token of a second start, seconds")
    assert again[1:] == ["1.2", "1.1 (1.1 to 1.1)", "yes"]
    assert f"| {what} | 3 (3 to 3) | 1.1 (1.1 to 1.1) | 2 (2 to 2) |" in page


def test_a_second_start_waits_for_what_the_first_one_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "READ_BYTES", MIB)
    monkeypatch.setattr(start, "KEPT_SECONDS", 0)
    monkeypatch.setattr(start.packed_store, "LEAST", 1)
    monkeypatch.setattr(start, "packed_bytes", lambda plan, path, weights: 1000)
    own = environment(tmp_path / "own")
    plan = start.Plan(own, own, (), tmp_path, threads=1, rounds=1)
    path = shaped_file.write(tmp_path / "x.gguf", shaped_file.TINY, "Q4_0")
    with pytest.raises(EngineError, match=r"^no packed weights were kept within 0 s$"):
        start.file_rounds(plan, path, shaped_file.TINY, "default")
    packed = tmp_path / "x.packed"
    packed.touch()
    monkeypatch.setattr(start.packed_store, "files_of", lambda path: [packed])
    (turn,) = start.file_rounds(plan, path, shaped_file.TINY, "default")["rounds"]
    assert set(turn) == {"read_seconds", "roof", "run", "again", "peer"}
    asked = (own.parent / "asked").read_text().splitlines()
    assert [each.endswith("--no-packed") for each in asked] == [True, False, False] * 2
    assert not packed.exists()


def test_a_part_that_fails_gives_its_reason() -> None:
    page = start_report.report(record(imports={"error": "python: no module"}))
    assert "\nimports: python: no module\n" in page
    assert start.errors({"cases": {"a": {"error": "one"}, "b": []}}) == ["one"]


def test_memory_for_file_and_weights_is_asked_for_first() -> None:
    shape = shaped_file.SHAPES["llama-2-7b"]
    start.check_memory(4 << 30, shape, "int8", 13 << 30)
    with pytest.raises(InputError) as caught:
        start.check_memory(4 << 30, shape, "default", 13 << 30)
    assert str(caught.value) == (
        "needs 17.6 GiB of memory for file and weights, some to spare included; "
        "13.0 GiB are available"
    )
    assert start.available_bytes() > 0


def test_the_size_of_an_environment_is_that_of_all_its_files(tmp_path: Path) -> None:
    python = environment(tmp_path / "one")
    before = environments.size_bytes(python)
    deep = tmp_path / "one" / "lib" / "deep"
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"x" * MIB)
    assert MIB <= environments.size_bytes(python) - before < MIB + 64 * 1024


def test_the_wheel_is_of_this_tree_and_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (environments, install):
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    script = tmp_path / "tools" / "wheel.sh"
    script.parent.mkdir()
    script.write_text(f"mkdir -p {tmp_path}/dist && touch {tmp_path}/dist/one.whl")
    asked: list[Any] = []
    monkeypatch.setattr(
        install, "install", lambda package, jobs, again: asked.append((package, jobs, again))
    )
    assert environments.own(None, 3) == tmp_path / "build/suffice/venv/bin/python"
    ((package, jobs, again),) = asked
    assert package.requirements == (str(tmp_path / "dist/one.whl"),)
    assert (jobs, again) == (3, True), "a wheel of the same name may hold other code"
    script.write_text(f"echo {tmp_path}/no compiler; exit 1")
    with pytest.raises(install.InstallError, match=r"^the wheel of suffice: \./no compiler$"):
        environments.own(None, 3)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (["--shape", "llama-2-7"], "unknown shape 'llama-2-7'. Did you mean 'llama-2-7b'?"),
        (["--python", "nowhere/bin/python"], "--python nowhere/bin/python: must be bin/python of"),
    ],
)
def test_bad_input_is_one_line(
    asked: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(start, "FILES", tmp_path / "files")
    assert ask(monkeypatch, *asked, "--output", str(tmp_path)) == 2
    told = capsys.readouterr().err
    assert complaint in told and len(told.splitlines()) == 1
