"""Errors that a user can cause; each is one line: the given value and the allowed ones."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

MOST_SHOWN = 200  # characters of a name in a message
_WIDTH = 60  # of a value in a message
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _WIDTH


class InputError(ValueError):
    """Bad input: the command line prints it without a traceback and exits with code 2."""


class OptionError(InputError):
    """An option does not take a value; the command line names the flag instead of the option.

    Attributes:
        option: The option's name in Python.
        value: The given value.
        must: What the value must be; may name other options, as `name=value`.
        none: What None means, after `must`; the command line, which has no None, leaves it out.
    """

    def __init__(self, option: str, value: object, must: str, none: str = "") -> None:
        super().__init__(option, value, must, none)
        self.option, self.value, self.must, self.none = option, value, must, none

    def __str__(self) -> str:
        return f"{self.option}={self.value!r}: {self.must}{self.none}"


class OutOfMemory(InputError):  # noqa: N818 (the field's word for it)
    """The KV cache cannot grow; only the request that needs the rows ends."""


class Busy(Exception):  # noqa: N818 (what the engine is)
    """The queue is full; `wait` is the estimated time in seconds until there is room."""

    def __init__(self, message: str, wait: float = 1.0) -> None:
        super().__init__(message)
        self.wait = wait


class Closed(Exception):  # noqa: N818
    """The engine takes no more work."""


class SufficeWarning(UserWarning):
    """What a user should know and is no error; the command line prints it as one line."""


def check_text(name: str, text: str) -> None:
    """Refuse text with lone surrogates: it has no UTF-8 form, or came from invalid bytes.

    Raises:
        InputError: There is a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        what = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"U+{code:04X}"
        raise InputError(
            f"{name} is not valid text (UTF-8): {what} at character {error.start + 1}"
        ) from None


def shown(text: str) -> str:
    """Return a name that a file gives as part of a one-line message: short and printable."""
    start = text[: MOST_SHOWN + 1]
    printable = start if start.isprintable() else start.encode("unicode_escape").decode()
    return printable if len(printable) <= MOST_SHOWN else printable[: MOST_SHOWN - 3] + "..."


def brief(value: object) -> str:
    """Return a value for a message: one line of at most 60 characters, whatever its size."""
    text = _SHORT.repr(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def one_line(text: object, most: int = 300) -> str:
    """Return a foreign text as a part of an error: one line, printable, `most` characters."""
    line = " ".join(str(text)[: 4 * most].split())
    if not line.isprintable():
        line = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in line
        )
    return line[:most]


def unknown(kind: str, given: str, known: Iterable[str], close: float = 0.6) -> InputError:
    """Build the error for a name that is not in a list, with the nearest known one.

    A known name is suggested if its similarity, from 0 to 1, is at least `close`.
    """
    names, given = sorted(known), shown(given)
    listed = f"Known: {', '.join(names)}" if names else "There are none"
    return InputError(f"unknown {kind} '{given}'.{nearest(given, names, close)} {listed}")


def unknown_option(owner: str, given: str, known: Iterable[str]) -> InputError:
    """Build the error for an option that a technique does not have, with the nearest one."""
    names = sorted(known)
    listed = f"Options: {', '.join(names)}" if names else "It has no options"
    return InputError(f"{owner} has no option '{given}'.{nearest(given, names)} {listed}")


def nearest(given: str, known: Sequence[str], close: float = 0.6) -> str:
    """Return " Did you mean 'NAME'?" with the nearest known name, or "" if none is near."""
    near = get_close_matches(given, known, n=1, cutoff=close)
    return f" Did you mean '{near[0]}'?" if near else ""
