"""`suffice hw`: what it prints, and one line for every bad input."""

from __future__ import annotations

import json

import pytest

from commands import Cli, complaint
from suffice.hw import checks
from suffice.hw.checks import Check

HIT = Check("U1", "a", "1", "1", True, "the paper")
KNOWN = Check("U2", "b", "1", "2", False, "the paper", "it adds up otherwise")
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
