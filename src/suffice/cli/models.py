"""`suffice pull`, `list` and `rm`: downloads models, lists them and removes one."""

from __future__ import annotations

import sys
import time

from suffice.cli.flags import REQUIRED, argument, flag
from suffice.cli.output import byte_bars, markdown
from suffice.errors import InputError, unknown
from suffice.pull import MODELS, HubName
from suffice.pull import pull as download
from suffice.pull.storage import locked, storing
from suffice.pull.stored import Entry, entries, find, meant
from suffice.pull.stored import remove as remove_files

NAME = argument(
    REQUIRED,
    "A name such as smollm2-135m (`info` lists them), or on the Hugging Face Hub ORG/REPO, "
    "ORG/REPO:Q4_K_M or ORG/REPO/FILE.gguf, with @REVISION if need be.",
    metavar="NAME",
)
PULLED = argument(REQUIRED, "A name that `list` shows.", metavar="NAME")
YES = flag(False, "-y --yes", "Do not ask.", environment=False)


def pull(name: str = NAME) -> None:
    """Download a model and print its path.

    Raises:
        InputError: There is no such model, or it cannot be downloaded.
    """
    with byte_bars() as report:
        path = download(name, report)
    print(_described(name), file=sys.stderr)
    print(path)


def _described(name: str) -> str:
    if name in MODELS:
        model = MODELS[name]
        return f"{model.name}: {model.summary}; licence: {model.licence}"
    hub_name = HubName.read(name)
    assert hub_name is not None, "it has just been pulled"
    entry = find(hub_name)
    assert entry is not None and entry.record is not None
    licence = entry.record.licence or "see the model's page"
    return f"{name}: {entry.format}, {_size(entry)}; licence: {licence}"


def listed() -> None:
    """Print the models that `pull` has downloaded."""
    found = entries()
    if not found:
        print("no model has been pulled: `suffice pull smollm2-135m` pulls one", file=sys.stderr)
        return
    columns = ["name", "format", "size", "last used"]
    print(markdown(columns, [_row(entry) for entry in found]))


def _row(entry: Entry) -> list[str]:
    used = entry.last_used
    when = "-" if used is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(used))
    return [entry.name, entry.format if entry.done else "incomplete", _size(entry), when]


def _size(entry: Entry) -> str:
    return f"{entry.size_bytes / 1e6:.0f} MB"


def remove(name: str = PULLED, yes: bool = YES) -> None:
    """Remove a model that `pull` has downloaded, and its packed weights, after a question.

    Raises:
        InputError: No such model has been pulled, nobody can be asked, or a file stays.
    """
    from suffice.checkpoints.packed_store import files_of  # a list needs no extension

    entry = _named(name)
    if not yes and not _agreed(entry):
        print(f"{entry.name} stays", file=sys.stderr)
        return
    packed = files_of(entry.path) if entry.done else []
    with storing(entry.name), locked(entry.folder.name, lambda what, done, total: None):
        gone = remove_files(entry)
        for path in packed:
            path.unlink(missing_ok=True)
    rest = "" if gone else f"; other files stay in {entry.folder}"
    print(f"removed {entry.name}{rest}", file=sys.stderr)


def _named(name: str) -> Entry:
    found = {entry.name: entry for entry in entries()}
    if name in found:
        return found[name]
    hub_name = HubName.read(name)
    entry = None if hub_name is None else meant(hub_name)
    if entry is None:
        raise unknown("downloaded model", name, found)
    return entry


def _agreed(entry: Entry) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError(f"rm {entry.name}: nobody can be asked here: give -y")
    question = f"remove {entry.name}, {_size(entry)}? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
