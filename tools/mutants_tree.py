"""A copy of the tree in which faults are tried: its environment, its build, its tests.

The copy has an environment of its own, whose packages are links to those of the interpreter that
runs the tool, all but suffice. So every process that a test starts imports the copy, whatever its
variables and folder are. Copy and build are kept: the next run compiles only what has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants_faults import Fault

# pytest's exit codes: all passed, some failed; others mean that no test was run as it should be
PASSED, FAILED = 0, 1
# Packages that take seconds to import. Of no use to most tests alone, but most files import some.
SLOW = ("numpy", "torch", "transformers", "pytest", "hypothesis", "fastapi", "uvicorn", "httpx2")
SLOW += ("openai", "anthropic", "jinja2", "rich.progress", "safetensors.torch", "tokenizers")
OWN = re.compile(r"_editable_\w*suffice\w*\.|suffice(_hw)?$")
SUMMARY = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


class BuildError(Exception):
    """The extension did not compile."""


@dataclass(frozen=True)
class Ran:
    """A run of tests: pytest's exit code, None after the time limit, and those that failed."""

    code: int | None
    failed: list[str]
    seconds: float
    output: str


def _sets() -> str:
    """Return the instruction sets to compile: a fault needs no more than the best one and base."""
    from suffice import native

    return ",".join(dict.fromkeys((native.isas()[0], "base")))


class Tree:
    """The copy in a folder."""

    def __init__(self, root: Path, folder: Path, imports: Sequence[str] = SLOW) -> None:
        self.root, self.folder, self._imports = root, folder, imports
        self.source, self.build = folder / "tree", folder / "build"
        self.clean = folder / "clean"  # the build's extensions without a fault
        self._forks: subprocess.Popen[str] | None = None
        self._python = self.source / ".venv" / "bin" / "python"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Make the copy, and keep other runs away from it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._copy()
            self._environment()
            try:
                yield
            finally:
                self._end()

    def _end(self) -> None:
        if self._forks is not None:
            with self._forks as forks:  # closes the pipes and waits
                assert forks.stdin is not None
                forks.stdin.close()
            self._forks = None

    def _copy(self) -> None:
        """Copy what git knows or does not ignore; an unchanged file keeps its time."""
        command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
        listed = subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True)
        names = {name for name in listed.stdout.split("\0") if (self.root / name).is_file()}
        for path in sorted(self.source.rglob("*")):
            inside = path.relative_to(self.source)
            kept = inside.parts[0] in (".venv", ".git") or str(inside) in names
            if not kept and not path.is_dir():
                path.unlink()
        for name in names:
            old, new = self.root / name, self.source / name
            if not new.is_file() or old.read_bytes() != new.read_bytes():
                new.parent.mkdir(parents=True, exist_ok=True)
                new.unlink(missing_ok=True)
                shutil.copy(old, new)
        self.install(Path(sysconfig.get_path("platlib")))
        if not (self.source / ".git").exists():  # some tests ask git for the files
            subprocess.run(["git", "init", "-q"], cwd=self.source, check=True)
        subprocess.run(["git", "add", "-A"], cwd=self.source, check=True, capture_output=True)

    def _environment(self) -> None:
        home, old = self.source / ".venv", Path(sys.prefix)
        shutil.rmtree(home, ignore_errors=True)
        packages = home / Path(sysconfig.get_path("platlib")).relative_to(old)
        packages.mkdir(parents=True)
        for entry in Path(sysconfig.get_path("platlib")).iterdir():
            if not OWN.match(entry.name):
                (packages / entry.name).symlink_to(entry)
        (packages / "copy.pth").write_text(f"{self.source / 'src'}\n")
        (home / "bin").mkdir()
        for entry in filter(Path.is_file, (old / "bin").iterdir()):
            made = home / "bin" / entry.name
            text = b"" if entry.name.startswith("python") else entry.read_bytes()
            if text.startswith(b"#!" + os.fsencode(old)):
                made.write_bytes(text.replace(os.fsencode(old), os.fsencode(home)))
                made.chmod(0o755)
            else:
                made.symlink_to(entry.resolve())
        shutil.copy(old / "pyvenv.cfg", home)

    def install(self, folder: Path) -> None:
        """Take the extensions of a folder, that of an environment or of a build."""
        for module, package in (("_native", "suffice"), ("_simulator", "suffice_hw")):
            [found] = [*folder.glob(f"{module}.*so"), *folder.glob(f"{package}/{module}.*so")]
            made = self.source / "src" / package / found.name
            made.unlink(missing_ok=True)  # a process may still use the one before
            shutil.copy(found, made)

    def compile(self) -> None:
        """Build the extensions of the copy as it is, and install them.

        Raises:
            BuildError: They do not compile.
        """
        if not (self.build / "build.ninja").exists():
            command = ["cmake", "-S", str(self.source), "-B", str(self.build), "-G", "Ninja"]
            command += ["-DCMAKE_BUILD_TYPE=Release", "-DSUFFICE_QUICK=ON"]
            command += [f"-DSUFFICE_SETS={_sets()}", f"-DPython_EXECUTABLE={self._python}"]
            self._build([*command, self._nanobind()])
        self._build(["ninja", "-C", str(self.build), "-j", str(len(os.sched_getaffinity(0)))])
        self.install(self.build)

    def compile_clean(self) -> None:
        """Build the extensions without a fault, and keep them."""
        self.compile()
        shutil.rmtree(self.clean, ignore_errors=True)
        for found in [*self.build.glob("_*.so"), *self.build.rglob("*.o")]:
            kept = self.clean / found.relative_to(self.build)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, kept)

    def _take_back(self) -> None:
        """Replace the objects that were compiled with a fault, so that it is done once for each."""
        for extension in self.build.glob("_*.so"):
            extension.unlink()  # is linked again
        for kept in self.clean.rglob("*.o"):
            found = self.build / kept.relative_to(self.clean)
            if not found.exists() or found.stat().st_mtime_ns != kept.stat().st_mtime_ns:
                shutil.copy2(kept, found)

    def install_clean(self) -> None:
        """Take the extensions of the last build without a fault, if there was one."""
        if self.clean.exists():
            self.install(self.clean)

    def _nanobind(self) -> str:
        import nanobind

        return f"-Dnanobind_DIR={nanobind.cmake_dir()}"

    def _build(self, command: Sequence[str]) -> None:
        path = f"{self._python.parent}:{os.environ['PATH']}"
        ran = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise BuildError(f"{ran.stdout}\n{ran.stderr}"[-3000:])

    @contextlib.contextmanager
    def changed(self, fault: Fault) -> Iterator[bool]:
        """Apply a fault for a while; yields whether it fits."""
        path = self.source / fault.file
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        after = fault.applied(before)
        if after is None:
            yield False
            return
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        try:
            path.write_text(after, encoding="utf-8")
            yield True
        finally:
            if fault.native:
                self._take_back()
            path.write_text(before, encoding="utf-8")
            os.utime(path, ns=times)  # last: if this is cut short, the next copy is a new file

    def test(self, tests: Sequence[str], limit: float, *, stop: bool = True) -> Ran:
        """Run tests in the copy, all if none are named; what exceeds `limit` seconds is killed.

        `stop`: at the first that fails.
        """
        if self._forks is None:
            script = str(Path(__file__).parent / "mutants_forks.py")
            command = [str(self._python), script, *self._imports]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            one = {**os.environ, "OMP_NUM_THREADS": "1"}  # as tests/conftest.py, before PyTorch
            self._forks = subprocess.Popen(command, cwd=self.source, env=one, text=True, **pipes)
        forks, output = self._forks, self.folder / "output.txt"
        assert forks.stdin is not None and forks.stdout is not None
        arguments = ["-q", "-p", "no:cacheprovider", *(["-x"] if stop else []), *tests]
        forks.stdin.write(json.dumps({"arguments": arguments, "output": str(output)}) + "\n")
        forks.stdin.flush()
        child, began = int(forks.stdout.readline()), time.monotonic()
        in_time, _, _ = select.select([forks.stdout], [], [], limit)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what the tests have left running
        code = int(forks.stdout.readline())
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        seconds, failed = time.monotonic() - began, SUMMARY.findall(text) or [""]
        return Ran(code if in_time else None, failed, seconds, text[-3000:])
