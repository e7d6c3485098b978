"""`suffice hw`: what it prints, and one line for every bad input.

Also tests plot.py, validate.py and trace_checks.py.
"""

from __future__ import annotations

import dataclasses
import json
import re
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
    ran = cli("hw", "validate", "dram", "-o", "md")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "| group | check | published | ours | status     | source    | note                 |",
        "| ----- | ----- | --------: | ---: | ---------- | --------- | -------------------- |",
        "| U1    | a     |         1 |    1 | hit        | the paper |                      |",
        "| U2    | b     |         1 |    2 | known miss | the paper | it adds up otherwise |",
    ]


def test_the_short_table_fits_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    long = dataclasses.replace(HIT, group="kllm against 3 bits", what="x" * 120)
    monkeypatch.setattr(checks, "of", lambda part: [lambda: [HIT, KNOWN, KNOWN, long, ABSENT]])
    ran = cli("hw", "validate", "dram")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "| group               | hit | known miss | miss | not run |",
        "| ------------------- | --: | ---------: | ---: | ------: |",
        "| U1                  |   1 |            |      |         |",
        "| U2                  |     |          2 |      |         |",
        "| kllm against 3 bits |   1 |            |      |         |",
        "| U4                  |     |            |      |       1 |",
        "PASSED: 2 of 5 figures agree, 2 miss for a stated reason, 1 could not be computed here,",
        "0 miss without one (--full shows every figure and its reason)",
    ]
    monkeypatch.setattr(checks, "of", lambda part: [lambda: [HIT, MISS]])
    ran = cli("hw", "validate", "dram")
    assert ran.code == 1 and "\nFAILED: 1 of 2 figures agree,\n1 miss without one (" in ran.out
    ran = cli("hw", "validate", "dram", "--full")
    assert ran.code == 1 and "| check |" in ran.out and "\nFAILED: 1 of 2" in ran.out


def test_every_group_has_a_readable_name() -> None:
    source = Path(checks.__file__).parent
    named = [
        path.name
        for path in source.rglob("*.py")
        if re.search(r'"[UT]\d+"|Check\(\s*"-"', path.read_text()) and "checks" in path.name
    ]
    assert named == []


def test_the_help_says_what_hw_is(cli: Cli) -> None:
    words = " ".join(cli("hw", "--help").out.split())
    assert "Simulate the accelerators that the implemented papers propose" in words


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
    assert [row["group"] for row in found] == [
        "model's traffic",
        "model's traffic",
        "model's traffic",
        "model's speed-up",
        "model's later layers",
    ] * 2
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
    assert complained == f"{untold}: has no perplexity loss: run it with --perplexity-loss"
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
    monkeypatch.setattr(rtl, "GROUPS", [groups[0], groups[-1]])
    ran = cli("hw", "validate", "rtl", "-o", "json")
    assert ran.code == 0
    *simulated, synthesised = [row["status"] for row in json.loads(ran.out)]
    assert synthesised == "not run"
    assert simulated and set(simulated) == {"hit" if there else "not run"}
    assert complaint(cli("hw", "area")).endswith("is not installed: install suffice[rtl]")
