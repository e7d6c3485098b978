"""What a step's parts took is right after a step that failed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_parts_end_where_a_thread_fails(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path / "part_clock"
    sources = [Path(__file__).with_name("part_clock.cpp"), ROOT / "csrc/runtime/parallel.cpp"]
    options = ["-std=c++20", "-pthread", f"-I{ROOT / 'csrc'}"]
    subprocess.run([compiler, *options, *map(str, sources), "-o", str(program)], check=True)
    ran = subprocess.run([program], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "")
