"""What every result file says about itself: machine, versions, commit, command, date."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from suffice import native

SCHEMA = 1
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("suffice", "torch", "transformers", "numpy")
FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile")


def facts() -> dict[str, Any]:
    """Return what a reader needs to judge or repeat a measurement."""
    return {
        "schema": SCHEMA,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_arguments()]),
        "commit": _git("rev-parse", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "machine": machine(),
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in PACKAGES},
    }


def machine() -> dict[str, Any]:
    """Return the processor, its cores, instruction sets and memory."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    fields = dict(
        (part.strip() for part in line.split(":", 1)) for line in info.splitlines() if ":" in line
    )
    flags = set(fields.get("flags", "").split())
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": fields.get("model name", platform.machine()),
        "cpu_family_model": f"{fields.get('cpu family', '?')}/{fields.get('model', '?')}",
        "cores": native.cores(),
        "isa": native.isa(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "memory_bytes": pages,
        "kernel": platform.release().partition("-")[0],
    }


def write(folder: Path, name: str, data: dict[str, Any], table: str) -> None:
    """Write `name`.json and `name`.md; a reader never sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in (("json", json.dumps(data, indent=1) + "\n"), ("md", table + "\n")):
        part = folder / f"{name}.{suffix}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / f"{name}.{suffix}")


def markdown(head: list[str], rows: list[list[Any]]) -> str:
    """Return a table; numbers are aligned to the right and keep three digits."""
    numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
    lines = [head, ["---:" if right else "---" for right in numeric]]
    lines += [[_cell(value) for value in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _arguments() -> list[str]:
    # A path says something about a person's machine and nothing about the measurement
    return [
        Path(argument).name if Path(argument).is_absolute() else argument
        for argument in sys.argv[1:]
    ]


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.2e}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()
