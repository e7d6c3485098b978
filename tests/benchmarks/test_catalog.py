"""The list of benchmarks is complete, and a stored result's command leads to a script of today."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.catalog import RENAMED, SCRIPTS, current, respelt
from benchmarks.harness.record import ROOT

MODULES = {f"benchmarks.{script.module}" for script in SCRIPTS}


def test_every_script_is_listed() -> None:
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "benchmarks").rglob("*.py")
        if '__name__ == "__main__"' in path.read_text()
        and path.name != "__main__.py"
        and path.parent.name != "engines"  # started by those that time them
    }
    assert found == MODULES
    assert set(RENAMED.values()) <= {script.module for script in SCRIPTS}


PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
    if path.parent.name != "results" and path.name != "CHANGELOG.md"
)


def missing(page: str) -> list[str]:
    """Return the commands of a page that name no module or file that is there."""
    modules = re.findall(r"python3? -m (benchmarks\.[\w.]+\w|suffice[\w.]*\w|benchmarks)", page)
    files = re.findall(r"python3? ((?:benchmarks|tools)/\S*?)[`\s]", page)
    gone = [name for name in modules if importlib.util.find_spec(name) is None]
    return gone + [name for name in files if not (ROOT / name).is_file()]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_shows_commands_and_options_of_today(path: Path) -> None:
    page = path.read_text()
    assert missing(page) == []
    assert respelt(page) == page


def test_a_command_of_an_old_script_is_missed() -> None:
    page = (
        "`python benchmarks/attention.py` and `python -m benchmarks.attention.gone`, `tools/x.py`"
    )
    assert missing(page) == ["benchmarks.attention.gone", "benchmarks/attention.py"]
    assert missing("`python -m benchmarks.attention.kernel`, `python tools/readme.py`.") == []


def test_a_stored_command_is_shown_as_of_today() -> None:
    stored = "python benchmarks/ruler.py --data-dir /x/y --settings art:tau=1e-2,v=0.002 aet:k=2"
    assert current(stored) == (
        "python -m benchmarks.attention.ruler --data-dir data "
        "--settings art:change=1e-2,values=0.002 aet:keys=all"
    )
    text = "(kmeans:a=8), `suffix:8 + aet:k=0.9` and certified:eps=0.05."
    assert respelt(text) == "(kmeans:act_bits=8), `suffix:8 + aet:keys=0.9` and certified:eps=0.05."


def test_stored_commands_name_scripts_that_are_there() -> None:
    paths = list((ROOT / "benchmarks").glob("*/results/*.json"))
    for path in paths:
        command = json.loads(path.read_text())["command"]
        found = re.search(r"python -m (benchmarks\.[\w.]+)", current(command))
        assert found and found[1] in MODULES and importlib.util.find_spec(found[1]), path
    assert len(paths) > 40


def test_the_list_is_printed_and_a_script_starts_from_the_root() -> None:
    for arguments, said in (([], "attention.quality"), ((".hw.validate", "--help"), "--quick")):
        module, *more = arguments or [""]
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks{module}", *more],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert said in done.stdout
