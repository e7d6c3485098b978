"""The example in CONTRIBUTING.md, followed to the letter: its files are added, compiled and run.

This compiles, without optimization, the kernels of attention for one instruction set and what makes
a rule of a name: the parts that must find the technique by its registration alone.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle import assert_matches, max_error
from suffice.attention import ATTENTIONS
from suffice.registry import Table

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"\*\*\d\. `([\w./]+)`\*\*:.*?```\w+\n(.*?)```", re.DOTALL)
PARTS = ("attention", "keys", "rows", "values")
BASE = [
    "-DSUFFICE_ISA=base",
    *(f"-DSUFFICE_{each}=0" for each in ("ISA_LEVEL", "ISA_VNNI", "ISA_BF16", "EMULATE")),
]
HEADS, ROWS, SIZE, SCALE = 4, 300, 64, 0.1


def example() -> dict[str, str]:
    """Return the code that the page gives for each file."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    start = page.index("## Example: an attention technique with native code")
    return dict(CODE.findall(page[start : page.index("\n## ", start)]))


def register(listing: str, lines: str) -> str:
    """Return a list of techniques with the example's include, and its variant in place."""
    include, variant = lines.splitlines()
    known = [line for line in listing.splitlines() if line.startswith("#include")]
    listing = listing.replace(known[-1], f"{known[-1]}\n{include}")
    listing, replaced = re.subn(r"^using Technique = .*$", variant, listing, flags=re.MULTILINE)
    assert replaced == 1
    return listing


def of_one_type(choice: str) -> str:
    """Return the choice of a type of rows with float32 alone: others take long to compile."""
    left, removed = re.subn(r"^ +case Type::(?!f32).*\n", "", choice, flags=re.MULTILINE)
    left, replaced = re.subn(r"default: (.*)<Type::\w+>", r"default: \1<Type::f32>", left)
    assert removed > 0 and replaced == 1
    return left


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The extension's code with the example's in place, compiled."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("added")
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    files = example()
    (folder / "csrc/attention/techniques/newest.inl").write_text(
        files["csrc/attention/techniques/newest.inl"]
    )
    listing = folder / "csrc/attention/techniques/all.inl"
    listing.write_text(register(listing.read_text(), files["csrc/attention/techniques/all.inl"]))
    types = folder / "csrc/kernels/by_type.inl"
    types.write_text(of_one_type(types.read_text()))
    parts = [folder / f"csrc/kernels/parts/{part}.cpp" for part in PARTS]
    sources, made = [Path(__file__).with_name("one_traversal.cpp"), *parts], folder / "added.so"
    options = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{folder / 'csrc'}", *BASE]
    ran = subprocess.run(
        [compiler, *options, *map(str, sources), "-o", str(made)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ctypes.CDLL(str(made))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """The attention seam's techniques with the example's."""
    files, name = example(), "suffice.attention.newest"
    path = tmp_path / "newest.py"
    path.write_text(files["src/suffice/attention/newest.py"])
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    line = ast.literal_eval("{" + files["src/suffice/attention/__init__.py"] + "}")
    return Table("attention", ATTENTIONS.entries | line)


def attend(
    extension: ctypes.CDLL, rule: Any, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, list[int]]:
    """Return the native output [H, 1, D], rows of keys and values read, and whether it is exact."""
    floats = ctypes.POINTER(ctypes.c_float)
    arrays = [
        np.ascontiguousarray(each, dtype=np.float32)
        for each in (q[:, 0] * SCALE * math.log2(math.e), k[0], v[0])
    ]
    out = np.zeros((HEADS, SIZE), np.float32)
    queries, keys, values, output = (each.ctypes.data_as(floats) for each in (*arrays, out))
    names, numbers = list(rule.parameters), list(rule.parameters.values())
    reads = (ctypes.c_int64 * 3)()
    extension.attend_once(
        rule.kind.encode(),
        len(names),
        (ctypes.c_char_p * len(names))(*(name.encode() for name in names)),
        (ctypes.c_double * len(names))(*numbers),
        queries,
        HEADS,
        keys,
        values,
        len(k[0]),
        SIZE,
        output,
        reads,
    )
    return out[:, None], list(reads)


def test_the_example_works(extension: ctypes.CDLL, table: Table) -> None:
    random, shapes = np.random.default_rng(0), ((HEADS, 1, SIZE), *2 * [(1, ROWS, SIZE)])
    q, k, v = (random.standard_normal(shape, np.float32) for shape in shapes)
    limit = table.load("newest").exact_limit()
    whole, _ = attend(extension, limit.rule(), q, k, v)
    read = []
    for technique in (table.build("newest:rows=1"), table.build("newest:rows=108"), limit):
        found, (keys, values, exact) = attend(extension, technique.rule(), q, k, v)
        single, double = (
            technique.reference(q.astype(kind), k.astype(kind), v.astype(kind), scale=SCALE)
            for kind in (np.float32, np.float64)
        )
        assert_matches(found, double.output, single.output, 8)
        assert [keys, values] == [int(double.keys.sum()), int(double.values.sum())]
        assert bool(exact) == technique.rule().exact == (technique is limit)
        read.append(keys)
    # 300 rows: the newest block has 12, and 6 more blocks make 108.
    assert read == [12, 108, ROWS]
    stopped, _ = attend(extension, table.build("newest:rows=108").rule(), q, k, v)
    assert max_error(stopped, whole.astype(np.float64)) > 0.01, "what is left out can be seen"
