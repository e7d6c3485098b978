"""Run every check of the repository and list the failed ones: `make check`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = ["src", "tests", "benchmarks", "tools", "examples"]


def checks() -> dict[str, list[str]]:
    """Return each check's name and command line."""
    native = sorted(str(path) for path in (ROOT / "csrc").rglob("*.*"))
    folder = Path(sys.executable).parent
    python = [sys.executable, "-m"]
    found = {
        "format": [*python, "ruff", "format", "--check", *PYTHON],
        "lint": [*python, "ruff", "check", *PYTHON],
        "types": [*python, "mypy"],
        "stubs": [sys.executable, "tools/stubs.py", "--check"],
        "sizes": [sys.executable, "tools/sizes.py"],
        "untested": [sys.executable, "tools/untested.py"],
        "layers": [*python, "pytest", "-q", "tests/test_layers.py"],
        "readme": [sys.executable, "tools/readme.py", "--check"],
        "papers": [sys.executable, "tools/papers.py", "--check"],
        "formats": [sys.executable, "tools/formats.py", "--check"],
        "words": [sys.executable, "tools/words.py"],
    }
    bundled = folder / "clang-format"
    formatter = str(bundled) if bundled.exists() else shutil.which("clang-format")
    if formatter:
        found["clang-format"] = [formatter, "--dry-run", "--Werror", *native]
    else:
        print("clang-format is not installed: the C++ formatting is not checked")
    return found


def main() -> int:
    """Run the checks in turn; the exit status is the number that failed."""
    failed = []
    for name, command in checks().items():
        print(f"== {name}", flush=True)
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
