"""The list of benchmarks is complete, and a stored result's command leads to a script of today."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

from benchmarks.catalog import RENAMED, SCRIPTS
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


def test_stored_commands_name_scripts_that_are_there() -> None:
    paths = list((ROOT / "benchmarks").glob("*/results/*.json"))
    for path in paths:
        command = json.loads(path.read_text())["command"]
        old = re.search(r"python benchmarks/(\w+)\.py", command)
        new = re.search(r"python -m (benchmarks\.[\w.]+)", command)
        assert old or new, path
        module = f"benchmarks.{RENAMED[old[1]]}" if old else new[1] if new else ""
        assert module in MODULES and importlib.util.find_spec(module), path
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
