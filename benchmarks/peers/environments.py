"""Fresh environments for start.py: one with suffice's wheel, one with llama-cpp-python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.peers import install
from benchmarks.peers.install import BUILD, PACKAGES, ROOT, InstallError, Package
from suffice.errors import InputError


def own(wheel: Path | None, jobs: int) -> Path:
    """Install a wheel, by default a new one of this tree, and return the environment's Python.

    Raises:
        InstallError: The wheel cannot be made or installed.
    """
    package = Package("suffice", (str((wheel or made_wheel(jobs)).resolve()),))
    install.install(package, jobs, again=True)  # a wheel of the same name may have changed
    return package.python


def peer(jobs: int) -> Path:
    """Install llama-cpp-python unless it is installed, and return the environment's Python.

    Raises:
        InstallError: It cannot be built or installed.
    """
    package = PACKAGES["llama-cpp-python"]
    install.install(package, jobs)
    return package.python


def made_wheel(jobs: int) -> Path:
    """Make the wheel of this tree, which `make wheel` makes too, and return its path.

    Raises:
        InstallError: It cannot be made.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"PATH": path, "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
    log = BUILD / "log" / "wheel.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        command = ["sh", str(ROOT / "tools" / "wheel.sh")]
        status = subprocess.run(
            command, stdout=output, stderr=output, env=environment, check=False
        ).returncode
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    if status or not wheels:
        raise InstallError(f"the wheel of suffice: {install.last_line(log)}")
    return wheels[0]


def existing(option: str, python: Path) -> Path:
    """Return the absolute path of an environment's Python.

    Raises:
        InputError: It is not the Python of a virtual environment.
    """
    found = python.absolute()  # not resolved: the link is what makes it an environment's
    if not found.is_file() or not (found.parents[1] / "pyvenv.cfg").is_file():
        raise InputError(f"{option} {python}: must be bin/python of a virtual environment")
    return found


def size_bytes(python: Path) -> int:
    """Return the bytes on disk of an environment, as `du` counts them, given its Python."""
    command = ["du", "--summarize", "--block-size=1", str(python.parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])
