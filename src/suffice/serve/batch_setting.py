"""What the results of `suffice batch` were made with, in a small file next to them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from suffice.errors import InputError, one_line
from suffice.paths import write_whole

SUFFIX = ".setting.json"  # after the name of the results


class Setting(msgspec.Struct, frozen=True):
    """The model and the flags on which results depend; what is empty is not known.

    Attributes:
        flags: Those of the model and the techniques that are not at their default, with values.
        unknown_fields: Whether unknown fields of requests are ignored.
        fingerprint: Of the model's files and the engine's options, as answers name it.
        isa: The instruction set of the engines.
    """

    model: str = ""
    flags: dict[str, str] | None = None
    unknown_fields: bool | None = None
    fingerprint: str = ""
    isa: str = ""

    def check(self, made: Setting, path: Path) -> None:
        """Require that the results at `path`, which were made with `made`, are of this setting.

        What one of both does not know is not compared. Flags are equal if fingerprints are,
        however they are spelt.

        Raises:
            InputError: They are of another.
        """
        known = bool(self.fingerprint and made.fingerprint)
        pairs = []
        if self.model and made.model and self.model != made.model:
            pairs.append((f"-m {made.model}", f"-m {self.model}"))
        if not (known and self.fingerprint == made.fingerprint):
            pairs += _flags(made.flags, self.flags)
            if known and not pairs:
                pairs.append((f"other files or options of the model ({made.fingerprint})",
                              f"{self.fingerprint}"))  # fmt: skip
        if None not in (self.unknown_fields, made.unknown_fields):
            flag = "--allow-unknown-fields"
            words = {True: flag, False: f"no {flag}"}
            pairs.append((words[bool(made.unknown_fields)], words[bool(self.unknown_fields)]))
        if self.isa and made.isa:
            pairs.append((f"SUFFICE_ISA={made.isa}", f"SUFFICE_ISA={self.isa}"))
        if pairs := [(one, other) for one, other in pairs if one != other]:
            before, now = (", ".join(each) for each in zip(*pairs, strict=True))
            raise InputError(
                f"{path}: its results were made with {one_line(before)}, and {one_line(now)} is "
                "given: give the same again, or another file with -o"
            )


def _flags(made: dict[str, str] | None, given: dict[str, str] | None) -> list[tuple[str, str]]:
    """Return in words the flags that differ: what was made with, and what is given."""
    if made is None or given is None:
        return []

    def said(flags: dict[str, str], name: str) -> str:
        return f"{name} {one_line(flags[name], 80)}" if name in flags else f"no {name}"

    return [(said(made, name), said(given, name)) for name in sorted(made.keys() | given.keys())]


def read(results: Path) -> Setting | None:
    """Return what a file of results was made with; None if nothing says it.

    Raises:
        InputError: The file that says it cannot be read.
    """
    path = results.with_name(results.name + SUFFIX)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Setting)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InputError(
            f"{path}: does not say what {results.name} was made with: remove both, or give another "
            "file with -o"
        ) from None


def write(results: Path, setting: Setting) -> None:
    """Say what a file of results is made with.

    Raises:
        InputError: The file cannot be written.
    """
    path = results.with_name(results.name + SUFFIX)
    try:
        with write_whole(path) as part:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(setting), indent=1) + b"\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
