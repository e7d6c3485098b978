"""Marked tokens are a character each, and only these are."""

from __future__ import annotations

import pytest

from suffice.dialects.dialect import FIRST_SIGN
from suffice.text.marked import MarkedDecoder

SIGN = chr(FIRST_SIGN)


class Bytes:
    """A decoder that holds back half a character."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, token: int) -> str:
        self._held += bytes([token])
        try:
            found = self._held.decode()
        except UnicodeDecodeError:
            return ""
        self._held = b""
        return found

    def flush(self) -> str:
        found, self._held = self._held.decode(errors="replace"), b""
        return found


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (list(b"ab"), "ab"),
        ([97, 1, 98, 1], f"a{SIGN}b{SIGN}"),
        ([1], SIGN),
        ([*"é".encode(), 2, 97], f"é{chr(FIRST_SIGN + 1)}a"),
        (["é".encode()[0], 1, 97], f"\ufffd{SIGN}a"),
        (list(SIGN.encode()), "\ufffd"),
    ],
)
def test_what_is_shown(tokens: list[int], text: str) -> None:
    decoder = MarkedDecoder(Bytes, (1, 2))
    assert "".join(map(decoder.push, tokens)) + decoder.flush() == text
