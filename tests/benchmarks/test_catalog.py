"""The list of benchmarks is complete, and a stored result's command leads to a script of today."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.catalog import SCRIPTS, current
from benchmarks.harness.record import ROOT
from suffice.attention import ATTENTIONS, SOFTMAXES
from suffice.cache import GROWTHS
from suffice.errors import InputError
from suffice.policy import POLICIES
from suffice.quant import QUANTS
from suffice.speculate import SPECULATORS

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


PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
    if path.parent.name != "results" and path.name != "CHANGELOG.md"
)


TABLES = {  # `exact` and `none` are names in two tables
    name: table
    for table in (ATTENTIONS, SOFTMAXES, POLICIES, GROWTHS, QUANTS, SPECULATORS)
    for name in table.names()
    if name not in ("exact", "none")
}
VALUE = r"-?\w+(?:[.+-]+\w+)*"
SETTING = re.compile(rf"\b(?:{'|'.join(TABLES)}):\w+={VALUE}(?:,\w+={VALUE})*")


def unknown(page: str) -> list[str]:
    """Return what is wrong with the settings that a page names."""
    found = []
    for setting in set(SETTING.findall(page)):
        try:
            TABLES[setting.partition(":")[0]].given(setting)
        except InputError as error:
            found.append(str(error))
    return found


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
    assert unknown(page) == []


def test_a_command_of_an_old_script_is_missed() -> None:
    page = (
        "`python benchmarks/attention.py` and `python -m benchmarks.attention.gone`, `tools/x.py`"
    )
    assert missing(page) == ["benchmarks.attention.gone", "benchmarks/attention.py"]
    assert missing("`python -m benchmarks.attention.kernel`, `python tools/readme.py`.") == []


def test_an_option_that_a_technique_does_not_have_is_missed() -> None:
    assert unknown("`art:change=1e-2,values=0.002` and aet:keys=all + `suffix:8`") == []
    [line] = unknown("`h2o:ratio=0.5 + aet:k=0.9` reads")
    assert line.startswith("attention 'aet' has no option 'k'")


def test_a_page_does_not_say_where_data_sets_are() -> None:
    command = "python -m benchmarks.attention.ruler --data-dir /x/y --samples 2"
    assert current(command) == command.replace("/x/y", "data")


def test_stored_commands_name_scripts_that_are_there() -> None:
    paths = list((ROOT / "benchmarks").glob("*/results/*.json"))
    for path in paths:
        content = path.read_text()
        assert unknown(content) == [], path
        command = json.loads(content)["command"]
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
