"""Print the modules of src that no test refers to; fail on them unless they are excused.

A test refers to a module if it imports it, if its file is named after it (`test_gptq.py`), or if
its file contains the name (`gptq.py`), for instance in a docstring. Authors of a change to the
module then find the test.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXCUSED = {}
FILE = re.compile(r"\b(\w+)\.py\b")


def known(tests: Iterable[Path]) -> tuple[set[str], set[str]]:
    """Return the dotted names that tests import, and the file names that they contain."""
    imported: set[str] = set()
    named: set[str] = set()
    for path in tests:
        source = path.read_text()
        named.add(path.stem.removeprefix("test_"))
        named |= set(FILE.findall(source))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                imported |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Constant) and str(node.value).startswith("suffice"):
                imported.add(str(node.value).rpartition(".")[0])  # patched by its name
    return imported, named


def untested(source: Path, tests: Path) -> list[str]:
    """Return the dotted names of the modules in `source` that no file in `tests` refers to."""
    imported, named = known(sorted(tests.rglob("*.py")))
    found = []
    for path in sorted(source.rglob("*.py")):
        module = ".".join(path.relative_to(source).with_suffix("").parts)
        if path.stem != "__init__" and module not in imported and path.stem not in named:
            found.append(module)
    return found


def main() -> int:
    """Print them; the exit status is 1 if there are any, or if an excuse is not needed."""
    found = untested(ROOT / "src", ROOT / "tests")
    bad = [f"{name}: no test imports or names it" for name in found if _stem(name) not in EXCUSED]
    unused = EXCUSED.keys() - {_stem(name) for name in found}
    bad += [f"{name}: is excused in tools/untested.py, but a test knows it" for name in unused]
    print("\n".join(bad) or "every module is known to a test")
    return int(bool(bad))


def _stem(module: str) -> str:
    return module.rpartition(".")[2]


if __name__ == "__main__":
    sys.exit(main())
