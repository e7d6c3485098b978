"""`suffice hw run`, `compare` and `plot`: the files, and one line for every bad input.

Also tests settings.py.
"""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Cli, complaint
from suffice.errors import InputError
from suffice_hw import runs
from suffice_hw.scrooge import plot, simulate
from suffice_hw.scrooge.logits import WORKLOADS, Trace
from suffice_hw.scrooge.report import FIELDS, FILES, SCHEMA

SMALL = ("--tokens", "150", "--sampled-lengths", "3")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    random = np.random.default_rng(5)
    layers = list(random.normal(0, 2, (2, 4, 150, 150)).astype(np.float16))
    for layer in layers:
        layer[:, :, 0] += 8
    path = tmp_path / "t.npz"
    Trace("tiny", 2, 64, layers).save(path)
    return path


def test_a_trace_of_a_model(cli: Cli, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = cli("hw", "run", "scrooge", "--trace", str(trace), "-o", str(out), *SMALL)
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["model"], summary["workload"], summary["tokens"]) == ("tiny", "t.npz", 150)
    assert (summary["key_share"], summary["value_share"]) == (0.9, 0.001)
    assert summary["baseline_bytes"] == 2 * 2 * 2 * 64 * 2 * 150 * 151 / 2
    layers = list(csv.DictReader((out / "layers.csv").read_text().splitlines()))
    read = sum(int(row["keys_read"]) + int(row["values_read"]) for row in layers)
    held = sum(int(row["rows_held"]) for row in layers)
    assert summary["reduction"] == pytest.approx(2 * held / read)
    energy = list(csv.DictReader((out / "energy.csv").read_text().splitlines()))
    joules = sum(float(row["pj"]) for row in energy if row["design"] == "scrooge") / 1e12
    assert summary["scrooge_joules"] == pytest.approx(joules)
    assert joules > 0
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance["design"]["prefetch_bytes"] == 8192
    assert provenance["memory"]["channels"] == 16
    assert f"| speedup              | {summary['speedup']:.2f}" in ran.out


def hashed(folder: Path) -> str:
    found: str = json.loads((folder / "provenance.json").read_text())["settings_sha256"]
    return found


def test_provenance_identifies_a_run(cli: Cli, trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "o.npz"
    layers = [np.array(layer) for layer in Trace.load(trace).layers]
    layers[1][0, 100, 50] += 1
    Trace("tiny", 2, 64, layers).save(other)
    (tmp_path / "mine.toml").write_text(
        (WORKLOADS / "s.toml").read_text().replace("seed = 1", "seed = 2")
    )
    made = ("--shape", "opt-1.3b", "--tokens", "20", "--sampled-lengths", "2")
    given: list[tuple[str, ...]] = [
        ("--trace", str(trace), *SMALL),
        ("--trace", str(trace), *SMALL),
        ("--trace", str(other), *SMALL),
        ("--trace", str(trace), *SMALL, "--key-share", "0.8"),
        ("--trace", str(trace), "--tokens", "149", "--sampled-lengths", "3"),
        ("--workload", "s", *made),
        ("--workload", str(tmp_path / "mine.toml"), *made),
    ]
    found = []
    for i, arguments in enumerate(given):
        ran = cli("hw", "run", "scrooge", *arguments, "-o", str(tmp_path / f"r{i}"))
        assert ran.code == 0, ran.err
        found.append(hashed(tmp_path / f"r{i}"))
    assert found[0] == found[1]
    assert len(set(found)) == len(given) - 1
    told = json.loads((tmp_path / "r0" / "provenance.json").read_text())
    assert told["source"] == {"trace_sha256": hashlib.sha256(trace.read_bytes()).hexdigest()}
    assert json.loads((tmp_path / "r6" / "provenance.json").read_text())["source"]["seed"] == 2


def test_runs_side_by_side(cli: Cli, trace: Path, tmp_path: Path) -> None:
    folders = []
    for share in ("0.9", "0.5"):
        folders.append(str(tmp_path / f"k{share}"))
        command = ("hw", "run", "scrooge", "--trace", str(trace), "-o", folders[-1])
        loss = ("--perplexity-loss", "1.5") if share == "0.5" else ()
        assert cli(*command, "--key-share", share, *loss, *SMALL).code == 0
    ran = cli("hw", "compare", *folders)
    assert ran.code == 0
    rows = {line.split("|")[1].strip(): line.split("|")[2:4] for line in ran.out.splitlines()}
    assert [cell.strip() for cell in rows["key_share"]] == ["0.9", "0.5"]
    assert float(rows["key_reduction"][0]) < float(rows["key_reduction"][1])
    pytest.importorskip("matplotlib")
    picture = tmp_path / "p.svg"
    assert cli("hw", "plot", *folders, "-o", str(picture)).out == f"{picture}\n"
    with_loss = picture.read_text()
    assert cli("hw", "plot", folders[0], "-o", str(picture)).code == 0
    assert with_loss.count('id="axes_') == 4
    assert picture.read_text().count('id="axes_') == 3, "no run says what perplexity it costs"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "scrouge"], "unknown accelerator 'scrouge'. Did you mean 'scrooge'?"),
        (["run", "scrooge", "--config", "sc"], "unknown design 'sc'. Known: scrooge"),
        (["run", "scrooge", "--workload", "t"], "unknown workload 't'. Known: as, s"),
        (["run", "scrooge", "--shape", "opt"], "unknown model 'opt'."),
        (["run", "scrooge", "--perplexity-loss", "nan"], "--perplexity-loss nan: must be a number"),
        (["run", "scrooge", "--perplexity-loss", "inf"], "--perplexity-loss inf: must be a number"),
        (
            ["run", "scrooge", "--perplexity-loss=-1"],
            "--perplexity-loss -1: must be",
        ),
        (["run", "scrooge", "--batch", "2"], "--batch: is a flag of kllm, not of scrooge"),
        (["run", "scrooge", "--tokens", "0"], "tokens=0: must be in [1, 4096]"),
        (["run", "scrooge", "--key-share", "3"], "Rule: key_share=3.0: must be in [0.01, 2]"),
        (
            ["run", "scrooge", "--sampled-heads", "40"],
            "sampled_heads=40: must be in [1, 32], those of llama-2-7b",
        ),
        (["run", "scrooge", "--trace", "/none.npz"], "/none.npz: No such file or directory"),
        (
            ["run", "scrooge", "--trace", "x", "--workload", "s"],
            "--trace sets model and logits: leave out --shape and --workload",
        ),
    ],
)
def test_bad_runs_write_nothing(
    cli: Cli, tmp_path: Path, arguments: list[str], message: str
) -> None:
    out = tmp_path / "out"
    assert complaint(cli("hw", *arguments, "-o", str(out))).startswith(message)
    assert not out.exists()


def test_lengths_beyond_the_trace(cli: Cli, trace: Path, tmp_path: Path) -> None:
    command = ("hw", "run", "scrooge", "--trace", str(trace), "-o", str(tmp_path / "out"))
    assert (
        complaint(cli(*command, "--tokens", "151"))
        == "tokens=151: must be at most 150, those of the trace"
    )


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a" / "x" / "run", tmp_path / "b" / "x" / "run", tmp_path / "c"
    assert runs.labels([a, b, c]) == ["a/x/run", "b/x/run", "c"]
    assert runs.labels([a]) == ["run"]
    assert runs.labels([tmp_path, a]) == [tmp_path.name, "run"]
    with pytest.raises(InputError, match=r"x/../x/run: is given twice$"):
        runs.labels([tmp_path / "a" / "x" / ".." / "x" / "run", a])


def test_an_interrupted_write_leaves_no_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old: dict[str, Any] = {"summary.json": {"a": 1}, "layers.csv": [{"b": 1}], "x.csv": [{"c": 1}]}
    runs.write(tmp_path, old)
    replace = Path.replace

    def broken(path: Path, target: Path) -> Path:
        if target.name == "x.csv":
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(KeyboardInterrupt):
        runs.write(tmp_path, old | {"summary.json": {"a": 2}})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layers.csv", "x.csv"]
    with pytest.raises(ValueError, match="not JSON compliant"):
        runs.write(tmp_path, {"summary.json": {"a": float("nan")}})


def test_a_folder_of_another_accelerator(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any, **named: Any) -> None:
        raise AssertionError("simulated before the folder was looked at")

    monkeypatch.setattr(simulate, "run", never)
    (tmp_path / "summary.json").write_text('{"schema": "suffice-kllm/1"}')
    for given, message in (
        (tmp_path, f"-o {tmp_path}: has a summary of 'suffice-kllm/1', not of 'suffice-scrooge/1'"),
        ("", "-o '': must name a folder"),
        ("/proc/none", "-o /proc/none: /proc: "),
    ):
        assert complaint(cli("hw", "run", "scrooge", "-o", str(given))).startswith(message)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["summary.json"]


def test_places_that_cannot_be(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert complaint(cli("hw", "run", "scrooge", "-o", str(file))).endswith(
        "is a file: give a folder"
    )
    ran = cli("hw", "compare", str(tmp_path))
    assert complaint(ran) == f"{tmp_path}/summary.json: No such file or directory"
    (tmp_path / "summary.json").write_text("{}")
    ran = cli("hw", "compare", str(tmp_path))
    assert (
        complaint(ran)
        == f"{tmp_path}/summary.json: must be of the schema 'suffice-scrooge/1' or 'suffice-kllm/1'"
    )
    told = {name: "m" if kind == "text" else 1.0 for name, kind in FIELDS.items()} | {
        "schema": SCHEMA
    }
    for name, value, said in (
        ("speedup", None, "'speedup': is None: must be a number, above 0"),
        ("key_reduction", 0, "'key_reduction': is 0: must be a number, above 0"),
        ("least_speedup", float("nan"), "'least_speedup': is nan: must be a number, above 0"),
        ("model", 3, "'model': is 3: must be text"),
    ):
        (tmp_path / "summary.json").write_text(json.dumps(told | {name: value}))
        assert complaint(cli("hw", "compare", str(tmp_path))) == f"{tmp_path}/summary.json: {said}"
    (tmp_path / "summary.json").write_text(json.dumps(told))
    (tmp_path / "layers.csv").write_text("layer,keys_read,values_read\n0,1,1\n")
    with pytest.raises(InputError, match="line 2: 'rows_held': is 'missing': must be a number, ab"):
        plot.draw([tmp_path], tmp_path / "p.png")
    ran = cli("hw", "plot", str(tmp_path), "-o", "x.jpg")
    assert complaint(ran) == "-o x.jpg: must end with .png, .svg or .pdf"
