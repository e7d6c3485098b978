"""Write suffice's attention on GPUs as a repository for Hugging Face's hub of kernels.

    python -m suffice.integrations.kernels_hub FOLDER

The folder is uploaded as it is. Then transformers loads the attention from there, without suffice:

    model = AutoModelForCausalLM.from_pretrained(
        "...", attn_implementation="ORGANISATION/suffice-attention", allow_all_kernels=True
    )
    model.config.suffice_attention = "art:change=0.01"

A build is a copy of the modules that `plain_attention` imports, under a name of its own: kernels of
several versions live in one process. Nothing is compiled, so a build is the same for all versions
of PyTorch; the folder has one for each kind of device.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from suffice.errors import InputError

PACKAGE = Path(__file__).parents[1]  # suffice
NAME, VERSION = "suffice-attention", 1  # of the repository, and of what its functions take
BACKENDS = ("cuda", "rocm")
ROOTS = (
    "suffice.integrations.plain_attention",
    "suffice.attention.art",
    "suffice.attention.exact",
    "suffice.attention.skip_softmax",
)
_TOP = '''\
"""Decode attention of suffice {version}, for transformers: see README.md."""

from .integrations.plain_attention import (
    decode_attention,
    flash_attn_forward,
    supports_flash_attn,
)

__all__ = ["decode_attention", "flash_attn_forward", "supports_flash_attn"]
'''
_README = """\
---
license: apache-2.0
tags: [kernel]
---
# suffice-attention

Decode attention in Triton, of suffice {version}; prompts run by PyTorch. transformers loads it by
`attn_implementation="ORGANISATION/{name}"`. `model.config.suffice_attention` names the technique
of decode steps:

* `exact`, the default: all rows.
* `art`, such as `art:change=0.01`: stops once the output has settled
  ([ART](https://arxiv.org/abs/2606.00024)).
* `skip_softmax`, such as `skip_softmax:factor=30`: leaves out the values of light tiles
  ([BLASST](https://arxiv.org/abs/2512.12087)).

Heads are a multiple of 16, up to 256. Masks may hide padding and what is outside of a window, but
no tokens between others. It needs PyTorch with Triton, and NumPy.
"""


def modules(roots: Iterable[str]) -> dict[str, Path]:
    """Return the modules of suffice that are loaded with others, and these, by name."""
    found: dict[str, Path] = {}
    waiting = [*roots]
    while waiting:
        name = waiting.pop()
        path = _source(name)
        if path is None or name in found:
            continue
        found[name] = path
        waiting += _imported(ast.parse(path.read_text(encoding="utf-8")).body)
        waiting.append(name.rpartition(".")[0])
    return found


def _source(name: str) -> Path | None:
    """Return the file of a module; None if it is none of suffice."""
    first, *rest = name.split(".")
    if first != "suffice":
        return None
    folder = PACKAGE.joinpath(*rest)
    choices = folder / "__init__.py", folder.with_name(f"{folder.name}.py")
    return next((path for path in choices if path.is_file()), None)


def _imported(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names of modules that are imported when a module is loaded."""
    for statement in body:
        if isinstance(statement, ast.ImportFrom) and statement.module:
            yield statement.module
            yield from (f"{statement.module}.{each.name}" for each in statement.names)


def rewritten(source: str, package: str) -> str:
    """Return a module's source, in the given package of suffice, for a copy with another name.

    Imports become relative, and names of classes in tables those of the copy.
    """
    dots = "." * len(package.split("."))
    source = re.sub(r"(?m)^( *from )suffice\b\.?(?=[\w.]* import)", rf"\1{dots}", source)
    return re.sub(r'"suffice(\.[\w.]+:\w+)"', r'__name__.partition(".")[0] + "\1"', source)


def write(folder: Path, backends: Iterable[str] = BACKENDS) -> None:
    """Write the repository into a new folder.

    `backends`: the kinds of devices, as the hub calls them, that get a build.

    Raises:
        InputError: The folder exists, or cannot be made.
    """
    version = importlib.metadata.version("suffice")
    files = {"__init__.py": _TOP.format(version=version)}
    for name, path in modules(ROOTS).items():
        if name != "suffice":
            inside = path.relative_to(PACKAGE)
            package = ".".join(("suffice", *inside.parts[:-1]))
            files[inside.as_posix()] = rewritten(path.read_text(encoding="utf-8"), package)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}") from None
    license = importlib.metadata.distribution("suffice").read_text("licenses/LICENSE")
    (folder / "LICENSE").write_text(license or "", encoding="utf-8")
    readme = _README.format(version=version, name=NAME)
    (folder / "README.md").write_text(readme, encoding="utf-8")
    for backend in backends:
        build = folder / "build" / f"torch-{backend}"
        for name, text in files.items():
            (build / name).parent.mkdir(parents=True, exist_ok=True)
            (build / name).write_text(text, encoding="utf-8")
        metadata = json.dumps(_metadata(files, backend), indent=2)
        (build / "metadata.json").write_text(metadata + "\n", encoding="utf-8")


def _metadata(files: dict[str, str], backend: str) -> dict[str, object]:
    """Return what the hub's loader reads of a build: its name in a process, and its files."""
    digests = {name: hashlib.sha256(text.encode()).digest() for name, text in files.items()}
    whole = hashlib.sha256(b"".join(digests[name] for name in sorted(digests))).hexdigest()
    return {
        "id": f"_{NAME.replace('-', '_')}_{backend}_{whole[:8]}",
        "name": NAME,
        "version": VERSION,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": backend},
        "digest": {
            "algorithm": "sha256",
            "files": {name: base64.b64encode(own).decode() for name, own in digests.items()},
        },
    }


def main() -> None:
    """Write the repository that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a new folder")
    folder = parser.parse_args().folder
    try:
        write(folder)
    except InputError as error:
        parser.error(str(error))
    print(folder)


if __name__ == "__main__":
    main()
