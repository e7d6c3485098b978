"""Seeded faults: small slips that somebody could make, as `tests/faults/*.toml` list them.

A fault replaces a text that occurs once in a file, and names the tests that must notice it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "faults"
NATIVE = ("csrc", "CMakeLists.txt")
Names: TypeAlias = "dict[str, Names]"


@dataclass(frozen=True)
class Fault:
    """One fault.

    `subject` is what it stands for, such as `attention:certified`; `old` and `new` are the texts
    before and after; `why` is what a user would suffer; `tests` are arguments of pytest.
    """

    name: str
    subject: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
    area: str

    @property
    def native(self) -> bool:
        """Whether the extension has to be compiled again."""
        return self.file.startswith(NATIVE)

    @property
    def digest(self) -> str:
        """A name of the change, so that a stored result of another one is not taken for its."""
        return hashlib.sha256("\0".join((self.file, self.old, self.new)).encode()).hexdigest()[:12]

    def applied(self, text: str) -> str | None:
        """Return a file's text with the fault; None if it does not fit."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None

    def complaints(self, root: Path) -> list[str]:
        """Return a line for everything that is wrong with the fault in a tree."""
        path = root / self.file
        if not path.is_file():
            return [f"{self.name}: there is no {self.file}"]
        bad = []
        if (count := path.read_text(encoding="utf-8").count(self.old)) != 1:
            bad.append(f"{self.name}: its text is {count} times in {self.file}")
        if self.old == self.new:
            bad.append(f"{self.name}: changes nothing")
        if not self.tests or not self.why.strip():
            bad.append(f"{self.name}: names no test, or not what would go wrong")
        for test in self.tests:
            if not _exists(root, test):
                bad.append(f"{self.name}: there is no test {test}")
        return bad


def _exists(root: Path, test: str) -> bool:
    """Return whether there is such a test; parameters in brackets are not looked at."""
    file, *names = test.partition("[")[0].split("::")
    path = root / file
    if not names or not path.is_file():
        return not names and path.exists()
    within = _defined(path)
    for name in names:
        if name not in within:
            return False
        within = within[name]
    return True


@functools.cache
def _defined(path: Path) -> Names:
    """Return the functions and classes of a file by their names, with those of each class."""
    return _names(ast.parse(path.read_text(encoding="utf-8")).body)


def _names(body: Iterable[ast.stmt]) -> Names:
    found: Names = {}
    for each in body:
        if isinstance(each, ast.ClassDef):
            found[each.name] = _names(each.body)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            found[each.name] = {}
    return found


def read(path: Path) -> list[Fault]:
    """Return the faults of a file.

    Raises:
        ValueError: A fault has another key, or lacks one.
    """
    known = {field.name for field in fields(Fault)} - {"area"}
    found = []
    listed: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("fault", [])
    for entry in listed:
        if entry.keys() != known:
            wrong = sorted(entry.keys() ^ known)
            raise ValueError(f"{path.name}: {entry.get('name')}: {', '.join(wrong)}")
        found.append(Fault(**{**entry, "tests": tuple(entry["tests"])}, area=path.stem))
    return found


def faults(folder: Path = FOLDER) -> list[Fault]:
    """Return all faults, in the order of their files; those of the extension last."""
    found = [fault for path in sorted(folder.glob("*.toml")) for fault in read(path)]
    return sorted(found, key=lambda fault: fault.native)


def missing(found: Iterable[Fault], needed: Iterable[str]) -> list[str]:
    """Return the subjects that no fault stands for."""
    return sorted(set(needed) - {fault.subject for fault in found})
