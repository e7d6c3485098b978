"""`suffice hw`: what it prints, and one line for every bad input.

Also tests plot.py, validate.py and trace_checks.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from commands import Cli, complaint
from suffice_hw import checks
from suffice_hw.checks import Check
from suffice_hw.rtl import checks as rtl
from suffice_hw.scrooge.logits import Trace
from suffice_hw.scrooge.report import FIELDS, SCHEMA

HIT = Check("U1", "a", "1", "1", True, "the paper")
KNOWN = Check("U2", "b", "1", "2", False, "the paper", "it adds up otherwise")
ABSENT = Check("U4", "d", "1", "-", False, "the paper", "install it", ran=False)
MISS = Check("U3", "c", "1", "2", False, "the paper")


def test_validate_prints_published_and_ours(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "of", lambda part: [lambda: [HIT, KNOWN]])
    ran = cli("hw", "validate", "dram")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "| id | check | published | ours | status     | source    | note                 |",
        "| -- | ----- | --------: | ---: | ---------- | --------- | -------------------- |",
        "| U1 | a     |         1 |    1 | hit        | the paper |                      |",
        "| U2 | b     |         1 |    2 | known miss | the paper | it adds up otherwise |",
    ]


def test_an_unexplained_miss_is_exit_code_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "of", lambda part: [lambda: [MISS]])
    ran = cli("hw", "validate", "dram", "-o", "json")
    assert ran.code == 1
    assert json.loads(ran.out)[0]["status"] == "miss"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["validate", "drum"], "unknown part 'drum'. Did you mean 'dram'?"),
        (["validate", "-o", "html"], "unknown output 'html'."),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: list[str], message: str) -> None:
    assert complaint(cli("hw", *arguments)).startswith(message)


def test_what_is_not_installed_is_said_and_fails_nothing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "of", lambda part: [lambda: [ABSENT]])
    ran = cli("hw", "validate", "rtl", "-o", "csv")
    assert ran.code == 0
    assert ran.out.splitlines()[1] == "U4,d,1,-,not run,the paper,install it"


def test_a_trace_is_held_against_the_paper(cli: Cli, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    layers = list(random.normal(0, 2, (3, 2, 120, 120)).astype(np.float16))
    Trace("tiny", 1, 64, layers).save(tmp_path / "t.npz")
    ran = cli("hw", "validate", "--trace", str(tmp_path / "t.npz"), "-o", "json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert [row["id"] for row in found] == ["T1", "T1", "T1", "T2", "T3"] * 2
    assert all(row["what"].startswith("tiny, ") for row in found)
    assert {row["status"] for row in found} <= {"hit", "known miss"}
    missing = str(tmp_path / "none.npz")
    assert complaint(cli("hw", "validate", "--trace", missing)).startswith(missing)


def summary(folder: Path, loss: float | str | None, speedup: float) -> str:
    folder.mkdir()
    told = {name: "m" if kind == "text" else 1.0 for name, kind in FIELDS.items()}
    told |= {"schema": SCHEMA, "perplexity_loss_percent": loss, "speedup": speedup}
    (folder / "summary.json").write_text(json.dumps(told))
    return str(folder)


def test_speed_by_perplexity(cli: Cli, tmp_path: Path) -> None:
    given = [("a", 8.0, 2.5), ("b", 0.9, 1.9), ("c", 0.1, 1.2)]
    folders = [summary(tmp_path / name, loss, speed) for name, loss, speed in given]
    ran = cli("hw", "validate", *(f"--run={folder}" for folder in folders), "-o", "json")
    assert ran.code == 0, ran.err
    rises, at_one = json.loads(ran.out)
    assert rises["ours"] == "1.20 at 0.1 %, 1.90 at 0.9 %, 2.50 at 8 %"
    assert (rises["status"], at_one["status"], at_one["ours"]) == ("hit", "hit", "1.90")
    falling = summary(tmp_path / "d", 9.0, 1.1)
    ran = cli("hw", "validate", "--run", folders[0], "--run", falling, "-o", "json")
    assert [row["status"] for row in json.loads(ran.out)] == ["known miss"] * 2
    ran = cli("hw", "validate", "--run", folders[1], "-o", "json")
    assert [row["status"] for row in json.loads(ran.out)] == ["not run", "hit"]
    untold = summary(tmp_path / "e", None, 1.1)
    complained = complaint(cli("hw", "validate", "--run", untold))
    assert complained == f"{untold}: was told no loss: run it with --perplexity-loss"
    said = summary(tmp_path / "f", "much", 1.1)
    complained = complaint(cli("hw", "validate", "--run", said))
    assert complained == (
        f"{said}/summary.json: 'perplexity_loss_percent': is 'much': must be a number, finite"
    )


@pytest.mark.parametrize("there", [(), ("amaranth",)])
def test_without_packages_the_table_says_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...]
) -> None:
    monkeypatch.setattr(rtl, "_installed", lambda package: package in there)
    groups = rtl._groups()
    monkeypatch.setattr(rtl, "GROUPS", groups[-2:])
    ran = cli("hw", "validate", "rtl", "-o", "csv")
    assert ran.code == 0
    status = [line.split(",")[4] for line in ran.out.splitlines()[1:]]
    assert status == ["hit" if there else "not run", "not run"]
    assert complaint(cli("hw", "area")).endswith("is not installed: install suffice[rtl]")
