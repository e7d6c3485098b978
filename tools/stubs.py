"""Write the types of the compiled core, src/suffice/_native.pyi, from the built extension.

`--check` compares instead, and fails if the file is out of date. Arrays may be numpy's or
PyTorch's: the extension takes both, in the named type, contiguous and on the CPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from nanobind.stubgen import StubGen

from suffice import _native

STUB = Path(__file__).parent.parent / "src" / "suffice" / "_native.pyi"
HEAD = """\
# Written by tools/stubs.py from the built extension, whose csrc/bind checks every argument.
import enum
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy
from numpy.typing import NDArray
"""
ARRAY = re.compile(r"Annotated\[NDArray\[numpy\.(\w+)\], dict\([^()]*(?:\([^()]*\)[^()]*)*\)\]")
IMPORTS = re.compile(r"^(?:from|import) .*\n", re.MULTILINE)


def constant(found: re.Match[str]) -> str:
    """Return the declaration of a constant of the module, without its value."""
    value = getattr(_native, found[1])
    kind = type(value).__name__
    return f"{found[1]}: {f'list[{type(value[0]).__name__}]' if kind == 'list' else kind}"


def stub() -> str:
    """Return the text of the stub, formatted."""
    generator = StubGen(_native)
    generator.put(_native)
    text = IMPORTS.sub("", generator.get())
    aliases = "".join(
        f"_{kind.capitalize()}s: TypeAlias = NDArray[numpy.{kind}]\n"
        for kind in sorted(set(ARRAY.findall(text)))
    )
    text = ARRAY.sub(lambda found: f"_{found[1].capitalize()}s", text)
    text = re.sub(r"^([A-Z_]+): .*$", constant, text, flags=re.MULTILINE)
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(STUB), "-"]
    whole = HEAD + "\n" + aliases + text
    return subprocess.run(command, input=whole, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Write the stub, or with `--check` report whether it is up to date."""
    text = stub()
    if "--check" not in sys.argv[1:]:
        STUB.write_text(text, encoding="utf-8")
    elif STUB.read_text(encoding="utf-8") != text:
        print(f"{STUB.name} is out of date: build, then run `python tools/stubs.py`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
