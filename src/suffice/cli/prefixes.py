"""The flags of what is kept on disk of prompts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.cli.flags import flag

if TYPE_CHECKING:
    from suffice.cli.options import ModelFlags

_PANEL = "Kept prompts"
DISK_BYTES = flag(
    "20GiB",
    "--prefix-disk-bytes",
    "Most bytes of --prefix-dir; what was used longest ago goes first. 64 MiB of the disk stay "
    "free in any case.",
    panel=_PANEL,
)
MAX_AGE = flag(
    None,
    "--prefix-max-age",
    "After how long what nobody used goes, in seconds or such as 12h and 30d; default: never.",
    panel=_PANEL,
)


@dataclass(frozen=True)
class PrefixFlags:
    """Where keys and values of prompts are kept, for how long, and under whose names."""

    prefix_dir: Path | None = flag(
        None,
        "--prefix-dir",
        "A folder that keeps keys and values of prompts: a later run, or another engine, reads "
        "those of the same beginning and does not compute them. Texts stay the same, bit for bit.",
        panel=_PANEL,
        metavar="DIR",
    )
    prefix_disk_bytes: str = DISK_BYTES
    prefix_max_age: str | None = MAX_AGE
    prefix_secret: Path | None = flag(
        None,
        "--prefix-secret",
        "A file with the secret from which names in --prefix-dir are made; default: one in the "
        "folder.",
        panel=_PANEL,
        metavar="FILE",
    )

    def on(self, model: ModelFlags) -> ModelFlags:
        """Return the model's flags with these."""
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        options = dataclasses.replace(model.options, **given)
        return dataclasses.replace(model, options=options)
