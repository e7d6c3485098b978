"""Errors that a user can cause; each is one line: the given value and the allowed ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Bad input: the command line prints it without a traceback and exits with code 2."""


class OutOfMemory(InputError):  # noqa: N818 (the field's word for it)
    """The KV cache cannot grow; only the request that needs the rows ends."""


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


def one_line(text: object, most: int = 300) -> str:
    """Return a foreign text as a part of an error: one line, valid text, `most` characters."""
    valid = str(text)[: 4 * most].encode(errors="backslashreplace").decode()
    return " ".join(valid.split())[:most]


def unknown(kind: str, given: str, known: Iterable[str], close: float = 0.6) -> InputError:
    """Build the error for a name that is not in a list, with the nearest known one.

    A known name is suggested if its similarity, from 0 to 1, is at least `close`.
    """
    names = sorted(known)
    near = get_close_matches(given, names, n=1, cutoff=close)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    listed = f"Known: {', '.join(names)}" if names else "There are none"
    return InputError(f"unknown {kind} '{given}'.{hint} {listed}")
