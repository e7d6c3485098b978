"""Facts stored with every result, so that readers can judge and repeat it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from suffice import native
from suffice.outside import file_of, is_outside

SCHEMA = 1
_RECORDED = {"quantization": "quant", "speculative_config": "speculate"}  # names in schema 1
_OPTION = re.compile(r"(-\w|--?[\w-]+=)?(.*)", re.DOTALL)  # `-m/a/b`, `--text=/a/b` or `/a/b`
PACKAGES = ("suffice", "numpy", "tokenizers", "torch", "transformers")
FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile")


def facts(program: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return schema, date, command, commit, machine and versions."""
    # Paths reveal a person's machine and say nothing about the measurement
    shown = [_without_folder(each) for each in arguments]
    variables = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if _is_flag(name)]
    commit = _git("rev-parse", "HEAD")
    return {
        "schema": SCHEMA,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": " ".join([*map(_quoted, variables), program, *map(shlex.quote, shown)]),
        "commit": commit,
        "modified": commit and bool(_git("status", "--porcelain", "--untracked-files=no")),
        "machine": machine(),
        "versions": {"python": platform.python_version()} | versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of suffice and of the packages that results depend on, if installed."""
    found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _is_flag(name: str) -> bool:
    return name.startswith("SUFFICE_") and name != "SUFFICE_CACHE"


def _quoted(variable: str) -> str:
    name, _, value = variable.partition("=")
    return f"{name}={shlex.quote(_without_folder(value))}"


def _without_folder(argument: str) -> str:
    """Return an argument with paths reduced to their names: `--text=/a/b` becomes `--text=b`."""
    option, value = _OPTION.fullmatch(argument).groups()  # type: ignore[union-attr]
    return (option or "") + (Path(value).name if Path(value).is_absolute() else value)


def machine() -> dict[str, Any]:
    """Return the processor, its cores, instruction sets and memory."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    lines = (line.partition(":") for line in info.splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, _, value in lines}
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


def settings(config: Any) -> dict[str, Any]:
    """Return a configuration as plain values, with their hash."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    plain = {_RECORDED.get(name, name): _plain(value) for name, value in values.items()}
    techniques = [type(value) for value in values.values() if dataclasses.is_dataclass(value)]
    if outside := [_source(kind) for kind in techniques if is_outside(kind)]:
        plain["outside"] = ", ".join(outside)
    text = json.dumps(plain, sort_keys=True)
    return plain | {"hash": hashlib.sha256(text.encode()).hexdigest()[:16]}


def _source(kind: type[Any]) -> str:
    """Return a class and the digest of its module's file: other code gives other results."""
    file = file_of(kind)
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else "unknown"
    return f"{kind.__module__}:{kind.__qualname__} sha256 {digest}"


def _plain(value: Any) -> Any:
    if isinstance(value, str | os.PathLike):
        return Path(value).name if Path(value).is_absolute() else str(value)
    return value if value is None or isinstance(value, bool | int | float) else repr(value)


def _git(*arguments: str) -> str | None:
    """Return git's output for this project's tree; None without git or outside a repository."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
