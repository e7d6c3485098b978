"""What `make emulate` runs in place of AVX-512 and VNNI has the bits of the instructions."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONS = ("-std=c++20", "-O1", "-Wno-psabi", f"-I{ROOT / 'csrc'}")


def test_every_instruction_is_as_defined(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if compiler is None or platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("needs GCC on an x86 processor")
    source, program = Path(__file__).with_name("emulated.cpp"), tmp_path / "emulated"
    subprocess.run([compiler, *OPTIONS, str(source), "-o", str(program)], check=True)
    ran = subprocess.run([program], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "")


def test_no_package_emulates(tmp_path: Path) -> None:
    """Where a processor has AVX-512, a wheel of such a build would run it slowly."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("CMake is not installed")
    command = [cmake, "-S", str(ROOT), "-B", str(tmp_path), "-DSUFFICE_EMULATE=ON", "-DSKBUILD=2"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 1 and "never for a package" in ran.stderr
