"""Which files of a repository make up a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from suffice.errors import InputError, nearest, shown
from suffice.pull.names import HubName
from suffice.pull.parts import parts_of

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors|model\.safetensors\.index\.json")
_EXTRAS = (".json", ".model", ".txt", ".jinja")  # configuration, tokenizer, chat template
_PROJECTOR = "mmproj"  # of pictures, which is no language model
_MOST_NAMED = 12  # files in an error


@dataclass(frozen=True)
class HubFile:
    """A file of a repository: its path, size, and sha256 if the hub says it, else another hash."""

    path: str
    size_bytes: int
    hash: str
    sha256: str | None = None

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


def chosen(name: HubName, files: Sequence[HubFile]) -> tuple[str, list[HubFile]]:
    """Return the path of the .gguf file that is meant, "" for a folder, and what to download.

    Raises:
        InputError: No file fits the name, several do, or the model is in a form that is not read.
    """
    if name.whole and any(each.path == _CONFIG for each in files):
        return "", _folder(name, files)
    models = [
        each
        for each in files
        if each.name.lower().endswith(".gguf") and not each.name.startswith(_PROJECTOR)
    ]
    if not models:
        need = "" if not name.whole else f" and no {_CONFIG}"
        raise InputError(f"'{name.repo}' has no GGUF file{need}")
    found = [each for each in models if name.matches(each.path)]
    if not found:
        wanted = name.file or str(name.tag)
        near = nearest(wanted, [each.path for each in models]) if name.file else ""
        raise InputError(
            f"no GGUF file of '{name.repo}' is {shown(wanted)}.{near} It has {_listed(models)}"
        )
    by_path = {each.path: each for each in models}
    wholes = {parts_of(each.path): each for each in found}
    if len(wholes) > 1:
        example = name.of(found[0].path)
        raise InputError(
            f"'{name}' may be one of {len(wholes)} GGUF files: {_listed([*wholes.values()])}; "
            f"give one, such as {shown(example)}"
        )
    (parts,) = wholes
    if missing := [part for part in parts if part not in by_path]:
        raise InputError(f"'{name.repo}' lacks {shown(missing[0])}, a part of a split GGUF file")
    return parts[0], [by_path[part] for part in parts]


def _listed(files: Sequence[HubFile]) -> str:
    names = [shown(each.path) for each in files[:_MOST_NAMED]]
    more = len(files) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _folder(name: HubName, files: Sequence[HubFile]) -> list[HubFile]:
    """Return the files of a folder of safetensors: those at the top that loading may read."""
    top = [each for each in files if "/" not in each.path]
    single = [each for each in top if each.path == _WEIGHTS]
    weights = single or [each for each in top if _SHARD.fullmatch(each.path)]
    if not weights:
        raise InputError(
            f"'{name.repo}' has no weights as safetensors ({_WEIGHTS}, or parts of it): take a "
            "repository that has them, or one of GGUF files"
        )
    extras = [each for each in top if each.name.endswith(_EXTRAS) and each not in weights]
    return [*(each for each in extras if not _SHARD.fullmatch(each.path)), *weights]
