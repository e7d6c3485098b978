"""Codes of files become panels that stand for the same values, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import code_panels
import gguf_files
from stored_blocks import WORDS, blocks, dequantized, put_word, sizes
from suffice.checkpoints.formats.gguf_file import GGUF
from suffice.checkpoints.formats.gguf_types import CODES, Codes


def stored(path: Path, kind: str, rows: np.ndarray) -> GGUF:
    return GGUF.open(gguf_files.write(path / "x.gguf", {}, {"x": (rows, kind)}))


def panels_of(file: GGUF, paired: int = 0) -> tuple[Codes, np.ndarray, bool]:
    """Return what the codes of the tensor `x` are, its panels, and whether it is finite."""
    info = file.tensors["x"]
    codes = CODES[info.type]
    shape = (-(-info.rows // 16), codes.layout.panel_bytes(info.columns))
    out = np.full(shape, 0xA5, np.uint8)
    return codes, out, file.read_panels("x", out, paired)


def same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("kind", CODES)
def test_values_are_those_of_the_gguf_package(
    kind: str, rows: int, each_isa: str, tmp_path: Path
) -> None:
    values, _ = sizes(kind)
    for columns in (values, 3 * values, 512 + values):
        data = blocks(kind, rows, columns)
        codes, out, finite = panels_of(stored(tmp_path, kind, data))
        ours = code_panels.dense(out, codes.layout, codes.levels, rows, columns)
        theirs = dequantized(kind, data)
        assert finite and same(ours + 0, theirs + 0)  # +0: a zero's sign is no value
    assert len(np.unique(theirs)) > 10 or kind.startswith("TQ")


@pytest.mark.parametrize("kind", CODES)
def test_panels_are_hardly_larger_than_the_file(kind: str) -> None:
    values, size = sizes(kind)
    stored = 16 * 4096 // values * size
    assert stored <= CODES[kind].layout.panel_bytes(4096) <= 1.25 * stored


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K"])
def test_rows_that_are_stored_in_pairs(kind: str, tmp_path: Path) -> None:
    data = blocks(kind, 96, 512)
    codes, out, _ = panels_of(stored(tmp_path, kind, data), paired=24)
    plain = dequantized(kind, data)
    pairs = plain.reshape(4, 12, 2, 512).swapaxes(1, 2).reshape(plain.shape)
    assert same(code_panels.dense(out, codes.layout, codes.levels, 96, 512) + 0, pairs + 0)


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("bad", [0x7C00, 0xFC00, 0x7E00])
def test_scales_and_minima_that_are_not_finite_are_told(
    kind: str, bad: int, tmp_path: Path
) -> None:
    data = blocks(kind, 40, 512)
    assert panels_of(stored(tmp_path, kind, data))[2]
    places = WORDS[kind]
    for at in places:
        other = data.copy()
        put_word(kind, other[33], at, np.array(bad, "<u2"))
        assert not panels_of(stored(tmp_path, kind, other))[2]
    if kind == "MXFP4":
        data[33, 0] = 253
        assert not panels_of(stored(tmp_path, kind, data))[2]


def test_many_panels_in_pieces(tmp_path: Path) -> None:
    data = blocks("Q4_K", 5000, 256)
    codes, out, _ = panels_of(stored(tmp_path, "Q4_K", data))
    theirs = dequantized("Q4_K", data)
    assert same(code_panels.dense(out, codes.layout, codes.levels, 5000, 256) + 0, theirs + 0)
