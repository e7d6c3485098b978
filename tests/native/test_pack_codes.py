"""Codes in plain arrays become panels that stand for the same values, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import code_panels
from suffice.backends.cpu.packing import pack_groups
from suffice.errors import InputError
from suffice.quant.code_layout import CodeLayout

LAYOUTS = [
    CodeLayout(2, 32),
    CodeLayout(3, 96, "bfloat16"),
    CodeLayout(4, 128, "float16", "zero"),
    CodeLayout(8, 64, "bfloat16", "zero"),
    CodeLayout(8, 32, "float32"),
    CodeLayout(4, 64, "float32", "zero"),
    CodeLayout(5, 32, "float16", "float16"),
    CodeLayout(4, 32, "power"),
    CodeLayout(6, 16, "nested"),
    CodeLayout(4, 64, "nested", "nested"),
]
TYPES: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "nested": np.int8,
}


class Arrays:
    """Random codes with numbers of a layout; some scales are zeros or the least power."""

    def __init__(self, layout: CodeLayout, rows: int, columns: int) -> None:
        random = np.random.default_rng(rows * columns)
        groups, spans = -(-columns // layout.group), -(-columns // layout.span)
        self.layout = layout
        self.codes = random.integers(0, 2**layout.bits, (rows, columns), np.uint8)
        self.levels = random.permutation(256)[: 2**layout.bits].astype(np.uint8)
        numbers = (40 * random.standard_normal((rows, groups))).clip(-127, 127)
        numbers[1, 0] = 0
        bytes_ = random.integers(0, 249, (rows, groups), np.uint8)
        self.scales = bytes_ if layout.scales == "power" else numbers.astype(TYPES[layout.scales])
        self.minima: np.ndarray | None = None
        if layout.minima == "float16":
            self.minima = numbers[:, ::-1].astype(np.float16)
        elif layout.minima != "none":
            self.minima = bytes_
        self.outer: np.ndarray | None = None
        if layout.scales == "nested":
            self.outer = random.standard_normal((rows, spans, 2)).astype(np.float16)
            self.outer[..., 1] *= layout.minima == "nested"

    def values(self) -> Any:
        """Return what the codes stand for, float32 [rows, columns]."""
        layout = self.layout
        column = np.arange(self.codes.shape[1])
        level = self.levels[self.codes].astype(np.float32) - 128
        scale = self.scales.astype(np.float32)[:, column // layout.group]
        if layout.scales == "power":
            scale = np.ldexp(np.float32(1), scale.astype(int) - 128)
        outer = np.ones((2, *level.shape), np.float32)
        if self.outer is not None:
            outer = self.outer.astype(np.float32)[:, column // layout.span].transpose(2, 0, 1)
        scale = scale * outer[0]
        if self.minima is None:
            return level * scale
        minimum = self.minima.astype(np.float32)[:, column // layout.group]
        if layout.minima == "zero":
            return (level - (minimum - (128 if layout.bits == 8 else 0))) * scale
        return level * scale + (minimum if layout.minima == "float16" else -(outer[1] * minimum))

    def packed(self) -> np.ndarray:
        return pack_groups(
            self.codes, self.layout, self.scales, self.minima, self.outer, allocate=dirty
        )


def dirty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    return np.full(shape, 0xA5, dtype)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(16, 512), (37, 1056), (3, 70), (130, 32)])
def test_values_stay(layout: CodeLayout, rows: int, columns: int, each_isa: str) -> None:
    made = Arrays(layout, rows, columns)
    found = code_panels.dense(made.packed(), layout, made.levels, rows, columns)
    assert np.array_equal(found, made.values())
    made.codes[-1, -1] ^= 1
    assert not np.array_equal(found, made.values())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_padding_is_zeros(layout: CodeLayout) -> None:
    """Of 5 rows and 33 columns, no byte of another row, column or group is set."""
    made = Arrays(layout, 5, 33)
    whole = Arrays(layout, 16, 2 * layout.span)
    whole.codes[:] = 0
    whole.scales[:] = 0
    for each in (whole.minima, whole.outer):
        if each is not None:
            each[:] = 0
    groups, spans = made.scales.shape[1], -(-33 // layout.span)
    whole.codes[:5, :33] = made.codes
    whole.scales[:5, :groups] = made.scales
    if made.minima is not None:
        assert whole.minima is not None
        whole.minima[:5, :groups] = made.minima
    if made.outer is not None:
        assert whole.outer is not None
        whole.outer[:5, :spans] = made.outer
    found = made.packed()
    assert np.array_equal(found, whole.packed()[:, : found.shape[1]])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_numbers_that_are_not_finite(layout: CodeLayout, bad: float) -> None:
    made = Arrays(layout, 37, 256)
    floats = [made.outer, made.minima, made.scales]
    places = [each for each in floats if each is not None and each.dtype.kind != "u"]
    for place in places:
        if place.dtype == np.int8:
            continue
        before = place[-1, -1].copy()
        place[-1, -1] = bad
        with pytest.raises(InputError, match=r"^a scale or a minimum is not finite$"):
            made.packed()
        place[-1, -1] = before
    if layout.scales == "power":
        made.scales[20, 1] = 253
        with pytest.raises(InputError):
            made.packed()
        made.scales[20, 1] = 252
    assert made.packed().size


BAD: list[Callable[[Arrays], None]] = [
    lambda made: made.codes.__setitem__((3, 4), 16),
    lambda made: setattr(made, "scales", made.scales[:, 1:]),
    lambda made: setattr(made, "scales", made.scales.astype(np.float32)),
    lambda made: setattr(made, "minima", None),
    lambda made: setattr(made, "minima", made.scales),
    lambda made: setattr(made, "outer", made.scales),
    lambda made: setattr(made, "codes", made.codes[:0]),
]


@pytest.mark.parametrize("change", BAD)
def test_arguments_are_checked(change: Callable[[Arrays], None]) -> None:
    made = Arrays(CodeLayout(4, 32, "float16", "zero"), 16, 128)
    change(made)
    with pytest.raises(ValueError):
        made.packed()
