"""What tells the rows of one model, and one way to run it, from all others, in any process."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from suffice import __version__, native
from suffice.cache.block_folder import BlockFolder
from suffice.checkpoints.adapter_settings import CONFIG, WEIGHTS
from suffice.checkpoints.contents import contents, model_files, seen
from suffice.checkpoints.files import locate
from suffice.engine.config import Config
from suffice.engine.disk_prefixes import DiskPrefixes
from suffice.errors import InputError
from suffice.outside import is_outside

_ROOMS = ("attention", "backends", "cache", "checkpoints", "decoder", "experts", "quant")


def disk_prefixes(config: Config, runner: Any) -> DiskPrefixes | None:
    """Return what an engine keeps in the folder of its config; None if it has none.

    Raises:
        InputError: The folder or the secret cannot be used, or see `rows_identity`.
    """
    if config.prefix_dir is None:
        return None
    folder = BlockFolder(
        config.prefix_dir,
        limit=config.prefix_disk_bytes,
        max_age=config.prefix_max_age,
        secret=config.prefix_secret,
    )
    stateful = bool(runner.decoder.config.states)
    label = f"{config.model}, {config.kv_cache_dtype}"
    return DiskPrefixes(folder, rows_identity(config, runner), stateful=stateful, label=label)


def rows_identity(config: Config, runner: Any) -> Callable[[int, int], dict[str, str]]:
    """Return a function that returns all that rows depend on, by technique and adapter.

    Its names are for users.

    Raises:
        InputError: A file cannot be read, or a technique of another package changes rows: nobody
            knows when it changes itself.
    """
    for technique in (config.quantization, config.experts, config.softmax):
        if technique is not None and is_outside(type(technique)):
            raise InputError(
                f"prefix_dir: {type(technique).__name__} is of another package, and nobody knows "
                "when it changes what is kept: leave one of them out"
            )
    files = model_files(locate(config.model))
    if seen(files) != runner.seen:
        raise InputError(f"{config.model} has changed since it was loaded: load it again")
    if config.merge_adapter is not None:
        files += _adapter_files(config.merge_adapter)
    model, code = contents(files), _code()
    adapters = [contents(_adapter_files(folder)) for _, folder in config.adapters]

    @functools.cache
    def depends_on(technique: int, adapter: int) -> dict[str, str]:
        own = "" if adapter < 0 else adapters[adapter]
        files = {"version": code, "model": model, "adapter": own}
        return {**files, **runner.rows_depend_on(technique)}

    return depends_on


def saved_rows_identity(config: Config, runner: Any) -> Callable[[int, int], dict[str, str]]:
    """Return `rows_identity` for rows that are saved.

    Raises:
        InputError: Rows of a prompt depend on how it goes on, or see `rows_identity`.
    """
    if not runner.shares_prompts:
        raise InputError(
            "rows serve no later prompt: the policy, or tiles, choose by the whole prompt"
        )
    return rows_identity(config, runner)


def _adapter_files(folder: str) -> list[Path]:
    return [Path(folder).expanduser() / name for name in (CONFIG, WEIGHTS)]


@functools.cache
def _code() -> str:
    """Return a hash of the code that computes rows: another build may round otherwise."""
    package = Path(__file__).parent.parent
    sources = [each for room in _ROOMS for each in sorted((package / room).rglob("*.py"))]
    found = hashlib.sha256(__version__.encode())
    for each in (Path(native.extension()), *sources):
        found.update(each.read_bytes())
    return found.hexdigest()
