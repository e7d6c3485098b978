"""The extension's readers check their arguments, and say what a file does as Python does."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffice.native import core


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(68)))
    opened = os.open(path, os.O_RDONLY)
    yield opened
    os.close(opened)


def rows(file: int, *, offset: int = 0, first: int = 0, paired: int = 0, **changes: Any) -> bool:
    out = changes.get("out", np.empty((2, 32), np.float32))
    return core.read_rows(file, offset, changes.get("kind", "Q8_0"), first, out, paired)


BAD: list[Callable[[int], object]] = [
    lambda file: rows(file, kind="Q9_0"),
    lambda file: rows(file, out=np.empty((2, 33), np.float32)),
    lambda file: rows(file, out=np.empty((2, 0), np.float32)),
    lambda file: rows(file, offset=-1),
    lambda file: rows(file, first=-1),
    lambda file: rows(file, first=2**63 - 1),
    lambda file: rows(file, offset=2**63 - 1),
    lambda file: rows(file, paired=3),
    lambda file: rows(file, paired=-2),
    lambda file: core.read_bytes(file, -1, np.empty(4, np.uint8)),
    lambda file: core.all_finite("Q8_0", np.empty(34, np.uint8)),
    lambda file: core.all_finite("F32", np.empty(6, np.uint8)),
    lambda file: core.read_strings(np.empty(4, np.uint8), 5, 1),
]
NO_ARRAY: list[Callable[[int], object]] = [
    lambda file: rows(file, out=np.empty((2, 32), np.float64)),
    lambda file: rows(file, out=np.empty((2, 64), np.float32)[:, ::2]),
    lambda file: rows(file, out=np.empty(64, np.float32)),
    lambda file: core.read_bytes(file, 0, np.empty((2, 2), np.uint8)),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_values_are_checked(number: int, file: int) -> None:
    assert rows(file)
    with pytest.raises(ValueError):
        BAD[number](file)


@pytest.mark.parametrize("number", range(len(NO_ARRAY)))
def test_arrays_are_checked(number: int, file: int) -> None:
    with pytest.raises(TypeError):
        NO_ARRAY[number](file)


def test_what_a_file_does(file: int) -> None:
    with pytest.raises(EOFError):
        rows(file, first=1)
    with pytest.raises(EOFError):
        core.read_bytes(file, 60, np.empty(9, np.uint8))
    with pytest.raises(OSError, match="Bad file descriptor"):
        rows(-1)
    folder = os.open(".", os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        core.read_bytes(folder, 0, np.empty(4, np.uint8))
    os.close(folder)


def test_some_rows_in_pairs(tmp_path: Path) -> None:
    """Rows of a head lie as first, fifth, second, sixth..., and any of them may be read."""
    stored = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
    (tmp_path / "x").write_bytes(stored.tobytes())
    in_order = stored.reshape(2, 4, 2, 32).swapaxes(1, 2).reshape(16, 32)
    with (tmp_path / "x").open("rb") as opened:
        for first, end in itertools.combinations(range(17), 2):
            found = np.full((end - first, 32), np.nan, np.float32)
            assert rows(opened.fileno(), kind="F32", first=first, out=found, paired=8)
            assert np.array_equal(found, in_order[first:end])


def test_one_value_that_is_not_finite_is_told(tmp_path: Path) -> None:
    """Wherever it is among those that are decoded together, and before or after."""
    stored = np.ones(5000, np.float16)
    out = np.empty((1, 5000), np.float32)
    for place in (None, 0, 2047, 2048, 4095, 4096, 4999):
        values = stored.copy()
        if place is not None:
            values[place] = np.inf
        (tmp_path / "x").write_bytes(values.tobytes())
        with (tmp_path / "x").open("rb") as opened:
            assert rows(opened.fileno(), kind="F16", out=out) == (place is None)


def test_bytes_in_many_pieces(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(0, 256, 5_000_001, np.uint8)
    (tmp_path / "x").write_bytes(stored.tobytes())
    with (tmp_path / "x").open("rb") as opened:
        found = np.zeros(stored.size - 7, np.uint8)
        core.read_bytes(opened.fileno(), 7, found)
        assert np.array_equal(found, stored[7:])
        with pytest.raises(EOFError):
            core.read_bytes(opened.fileno(), 8, found)


def test_texts_are_read_as_far_as_they_are_whole() -> None:
    def text(value: str) -> bytes:
        return len(value.encode()).to_bytes(8, "little") + value.encode()

    whole = b"??" + text("a") + text("") + text("日本") + text("last")
    for end, expected in [(len(whole), 4), (len(whole) - 1, 3), (len(whole) - 5, 3), (2, 0)]:
        data = np.frombuffer(whole[:end], np.uint8)
        found, at = core.read_strings(data, 2, 9)
        assert found == ["a", "", "日本", "last"][:expected]
        assert at == 2 + sum(len(text(each)) for each in found)
    assert core.read_strings(np.frombuffer(whole, np.uint8), 2, 2)[0] == ["a", ""]
    with pytest.raises(UnicodeDecodeError):
        core.read_strings(np.frombuffer(b"\x01" + bytes(7) + b"\xff", np.uint8), 0, 1)
