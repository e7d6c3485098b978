"""`suffice cache`: looks through a folder of `--prefix-dir`, and removes from it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suffice.cli.flags import REQUIRED, argument, flag
from suffice.cli.groups import Commands
from suffice.cli.output import markdown
from suffice.cli.prefixes import DISK_BYTES, MAX_AGE
from suffice.engine.context_memory import in_words
from suffice.errors import InputError, unknown

ALL = "all"
kept = Commands("cache")
FOLDER = flag(
    REQUIRED, "--prefix-dir", "The folder that `run` and `serve` were given.", metavar="DIR"
)


@dataclass
class _Owner:
    """What is kept for one model and way to run it."""

    label: str
    files: list[Path]
    tokens: int = 0
    size: int = 0
    used: float = 0.0


@kept.program("list")
def listed(prefix_dir: Path = FOLDER) -> None:
    """List what is kept, by model and type of keys and values."""
    found = _owners(prefix_dir)
    if not found:
        print(f"nothing is kept in {prefix_dir}", file=sys.stderr)
        return
    rows = [
        [name, own.label, str(own.tokens), in_words(own.size), _when(own.used)]
        for name, own in found.items()
    ]
    print(markdown(["name", "model and type", "tokens", "size", "last used"], rows))


@kept.program("rm")
def remove(
    name: str = argument(REQUIRED, f"A name that `list` shows, or {ALL}.", metavar="NAME"),
    prefix_dir: Path = FOLDER,
) -> None:
    """Remove what is kept for one model and way to run it, or everything."""
    found = _owners(prefix_dir)
    if name != ALL and name not in found:
        raise unknown("name", name, [*found, ALL])
    chosen = [own for at, own in found.items() if name in (at, ALL)]
    failed: list[OSError] = []
    for path in (path for own in chosen for path in own.files):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            failed.append(error)
    _check_removed(failed)
    print(f"removed {in_words(sum(own.size for own in chosen))}", file=sys.stderr)


@kept.program("prune")
def prune(
    prefix_dir: Path = FOLDER,
    prefix_disk_bytes: str = DISK_BYTES,
    prefix_max_age: str | None = MAX_AGE,
) -> None:
    """Remove what was used longest ago, and what is too old."""
    from suffice.cache.block_folder import BlockFolder
    from suffice.engine.option_values import age, size

    _check(prefix_dir)
    folder = BlockFolder(
        prefix_dir,
        limit=size("prefix_disk_bytes", prefix_disk_bytes),
        max_age=age("prefix_max_age", prefix_max_age),
    )
    _check_removed(folder.prune())
    print(f"removed {folder.counts.removed}, kept {in_words(folder.bytes)}", file=sys.stderr)


def _check_removed(failed: list[OSError]) -> None:
    if not failed:
        return
    first, *others = failed
    more = f"; nor can {len(others)} others" if others else ""
    raise InputError(f"{first.filename} cannot be removed: {first.strerror}{more}")


def _check(folder: Path) -> None:
    from suffice.cache.block_folder import is_folder_of_blocks

    if not is_folder_of_blocks(folder):
        raise InputError(f"--prefix-dir {folder}: nothing has been kept there")


def _owners(folder: Path) -> dict[str, _Owner]:
    """Return what is kept, by the names of owners; what is damaged has the name of nobody."""
    from suffice.cache.block_file import OWNER
    from suffice.cache.block_folder import label_of

    _check(folder)
    found: dict[str, _Owner] = {}
    for path, size, used, owner, tokens in _blocks(folder):
        name = owner.hex() if any(owner) else "-" * 2 * OWNER
        if name not in found:
            found[name] = _Owner(label_of(folder, owner) if any(owner) else "damaged", [])
        own = found[name]
        own.files.append(path)
        own.tokens, own.size = own.tokens + tokens, own.size + size
        own.used = max(own.used, used)
    return found


def _blocks(folder: Path) -> Iterator[tuple[Path, int, float, bytes, int]]:
    from suffice.cache.block_file import owner_of
    from suffice.cache.block_folder import files

    for each in files(folder):
        owner, tokens = owner_of(each.path) or (b"", 0)
        yield each.path, each.size, each.used, owner, tokens


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
