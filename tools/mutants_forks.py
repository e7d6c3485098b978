"""Runs pytest in forks of a process that has imported its arguments, which takes seconds, once.

It reads lines of JSON, `{"arguments": [...], "output": FILE}`, from standard input, and writes for
each the number of the fork's process and, once that has ended, its exit code. It imports nothing
of the tree that is tested: a fork does. Used by `mutants_tree.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run(asked: dict[str, Any]) -> None:
    """Become a leader of processes, run pytest, and end with its exit code."""
    os.setsid()
    output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    import pytest

    # pytest warns that it cannot rewrite plugins that are imported already, which is of no matter
    ignored = "ignore::pytest.PytestAssertRewriteWarning"
    code = int(pytest.main([*asked["arguments"], "-W", ignored]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def warm_up(modules: Sequence[str]) -> None:
    """Import modules, and let pytest find no tests at all, for which it loads its plugins."""
    warnings.simplefilter("ignore")
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import pytest

    with tempfile.TemporaryDirectory() as empty, contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["-qq", "--collect-only", "-c", os.devnull, "--rootdir", empty, empty])
    warnings.resetwarnings()


def main() -> None:
    """Serve until standard input ends."""
    warm_up(sys.argv[1:])
    sys.path.insert(0, str(Path.cwd()))  # as `python -m pytest` has it
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            run(json.loads(line))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
