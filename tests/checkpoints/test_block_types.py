"""Blocks of GGUF files are decoded bit for bit as the gguf package does, in any pieces."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

import gguf_files
from suffice.checkpoints.formats.gguf_file import GGUF
from suffice.checkpoints.formats.gguf_types import DECODED, KNOWN, TYPES, file_type
from suffice.checkpoints.stored_file import FLOATS, StoredFile, is_finite
from suffice.errors import InputError

COLUMNS = 512
COMMON = [block.name for number, block in TYPES.items() if number in DECODED]
IN_GRIDS = [block.name for number, block in TYPES.items() if number not in DECODED]


def random_blocks(kind: str, rows: int, seed: int = 0) -> np.ndarray:
    """Return stored rows of random bytes: scales of every size, NaN and infinities among them."""
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    shape = (rows, COLUMNS // values * size)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def expected(kind: str, stored: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.dequantize(stored, gguf.GGMLQuantizationType[kind])


def write(path: Path, stored: np.ndarray, kind: str) -> Path:
    return gguf_files.write(path, {}, {"x": (stored, kind)})


def decoded(path: Path, kind: str, stored: np.ndarray, paired: int = 0) -> np.ndarray:
    out = np.full((len(stored), COLUMNS), 7, np.float32)
    GGUF.open(write(path / "x.gguf", stored, kind)).read_rows("x", 0, out, paired)
    return out


def same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Return whether two arrays have the same bits, signs of zeros too, and NaN where it is."""
    bits = ours.view(np.uint32) == theirs.view(np.uint32)
    return bool(np.all(bits | (np.isnan(ours) & np.isnan(theirs))))


@pytest.mark.parametrize("kind", COMMON)
def test_bit_for_bit_as_the_gguf_package(kind: str, each_isa: str, tmp_path: Path) -> None:
    stored = random_blocks(kind, 300)
    theirs = expected(kind, stored)
    ours = decoded(tmp_path, kind, stored)
    assert same(ours, theirs)
    assert np.isfinite(theirs).any() and len(np.unique(theirs)) > 100
    other = ours.copy()
    other[211, 300] = -other[211, 300]  # a sign
    assert not same(other, theirs)


@pytest.mark.parametrize("kind", IN_GRIDS)
def test_places_in_grids_are_decoded_by_the_package(kind: str, tmp_path: Path) -> None:
    stored = random_blocks(kind, 20)
    assert same(decoded(tmp_path, kind, stored), expected(kind, stored))


@pytest.mark.parametrize("kind", ["Q4_K", "F16", "IQ2_XXS"])
def test_any_rows_and_pairs_of_rows(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffice.checkpoints.formats.gguf_file._BLOCK_VALUES", 7 * COLUMNS)
    stored = random_blocks(kind, 96)
    plain = expected(kind, stored)
    pairs = plain.reshape(4, 12, 2, COLUMNS).swapaxes(1, 2).reshape(plain.shape)  # 4 heads of 24
    file = GGUF.open(write(tmp_path / "x.gguf", stored, kind))
    for first, count in [(0, 96), (0, 1), (95, 1), (5, 30), (24, 24), (11, 2), (40, 56)]:
        out = np.empty((count, COLUMNS), np.float32)
        file.read_rows("x", first, out)
        assert same(out, plain[first : first + count])
        file.read_rows("x", first, out, 24)
        assert same(out, pairs[first : first + count])


@pytest.mark.parametrize("kind", [*COMMON, *IN_GRIDS])
def test_what_is_not_finite_is_told(kind: str, tmp_path: Path) -> None:
    """Random bytes have NaN or infinities in most types; the rest of the rows have none."""
    stored = random_blocks(kind, 64)
    finite = np.isfinite(expected(kind, stored)).all(axis=1)
    file = GGUF.open(write(tmp_path / "x.gguf", stored, kind))
    out = np.empty((1, COLUMNS), np.float32)
    assert [file.read_rows("x", row, out) for row in range(64)] == finite.tolist()


@pytest.mark.parametrize("kind", list(FLOATS))
@pytest.mark.parametrize("size", [1, 31, 300_000])
def test_finite_arrays(kind: str, size: int) -> None:
    largest = {"F32": 3.4e38, "F16": 65504, "BF16": 3.3e38}[kind]
    values = np.full(size, -largest).astype(FLOATS[kind])
    assert is_finite(values)
    for bad in (np.nan, -np.nan, np.inf, -np.inf):
        for place in {0, size // 2, size - 1}:
            other = values.copy()
            other[place] = bad
            assert not is_finite(other)
    assert is_finite(np.empty((0, 4), FLOATS[kind]))


def test_a_file_that_is_cut_meanwhile(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", random_blocks("Q8_0", 4000), "Q8_0")
    file = GGUF.open(path)
    os.truncate(path, path.stat().st_size - 100)
    out = np.empty((4000, COLUMNS), np.float32)
    with pytest.raises(InputError) as caught:
        file.read_rows("x", 0, out)
    assert str(caught.value) == f"{path} was cut short while 'x' was read"
    assert file.read_rows("x", 0, out[:3000]) in (True, False)  # what is there can be read


def descriptors(path: Path) -> int:
    """Return how many open files of this process are the one at `path`."""
    opened = list(Path("/proc/self/fd").iterdir())
    return sum(each.exists() and each.samefile(path) for each in opened)


def test_a_file_is_closed_with_its_object(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x")
    file = StoredFile(path)
    assert descriptors(path) == 1
    del file
    assert descriptors(path) == 0


def test_the_tables_are_those_of_the_package() -> None:
    for number, block in TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (block.name, (block.values, block.bytes))
    readable = {
        kind.name
        for kind in gguf.GGMLQuantizationType
        if kind.name in ("F32", "F16") or hasattr(gguf.quants, kind.name)
    }
    assert {block.name for block in TYPES.values()} == readable
    assert {kind.value: kind.name for kind in gguf.GGMLQuantizationType} == KNOWN
    for each in gguf.LlamaFileType:
        if each.name != "GUESSED":
            assert file_type(each.value) == each.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    assert file_type(None) is None and file_type(4096) is None and file_type([1]) is None
