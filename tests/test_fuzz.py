"""Damaged models end in text or in one line: `make fuzz` in its small form, and what it sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import fuzz

ROOT = Path(fuzz.__file__).parent.parent
COUNT = 24


def test_damaged_models_end_in_text_or_in_one_line() -> None:
    command = [sys.executable, "tools/fuzz.py", "--count", str(COUNT), "--seed", "1"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    *outcomes, last = ran.stdout.splitlines()
    assert last == f"{COUNT} cases, 0 violations"
    assert any("text" in line for line in outcomes) and any("refused" in line for line in outcomes)


def case(folder: Path) -> fuzz.Case:
    return fuzz.Case(3, folder, folder / "config.json", ())


@pytest.mark.parametrize(
    ("code", "err", "violation"),
    [
        (0, "", None),
        (2, "suffice: error: no\n", None),
        (2, "suffice: warning: well\nsuffice: error: no\n", None),
        (2, "suffice: error: no\nmore\n", "2 lines of error"),
        (2, "", "0 lines of error"),
        (2, "suffice: error: " + "x" * 2000 + "\n", "an error of 2016 characters"),
        (1, "", "exit code 1"),
        (-11, "", "ended by SIGSEGV"),
        (1, "Traceback (most recent call last):\n  ...\nKeyError: 3\n", "a traceback: KeyError: 3"),
    ],
)
def test_how_a_case_ends(code: int, err: str, violation: str | None, tmp_path: Path) -> None:
    assert fuzz.judged(case(tmp_path), code, "text", err).violation == violation


# In a process without threads, because a case forks.
ENDINGS = """
import os, sys, time
from pathlib import Path
from tools import fuzz
folder = Path(sys.argv[1])
fuzz.SECONDS = 0.5
for end in (lambda arguments: time.sleep(60), lambda arguments: os.abort()):
    fuzz._exit_code = end
    print(fuzz.run(fuzz.Case(0, folder, folder, ()), folder).violation)
"""


def test_a_case_that_hangs_or_crashes_is_seen(tmp_path: Path) -> None:
    run = [sys.executable, "-c", ENDINGS, str(tmp_path)]
    ended = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ended.splitlines() == ["ran for more than 0.5 s", "ended by SIGABRT"]
