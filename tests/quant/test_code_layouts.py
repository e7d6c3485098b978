"""Every layout of codes: the extension against the NumPy reference, on random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draws import normal
from isas import fused
from oracle import assert_matches
from suffice import native
from suffice.backends.cpu.linear import native_linear, unpack
from suffice.errors import InputError
from suffice.native import core
from suffice.quant.code_layout import BITS, NESTED, UNIT, CodeLayout
from suffice.quant.code_panels import (
    Numbers,
    grid_words,
    pack_panels,
    read_codes,
    read_numbers,
    spans,
)
from suffice.quant.coded import grouped
from suffice.quant.grids import GRIDS, GridName
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes

COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 40)
FEW, MOST = 41, 129  # rows of one piece of inputs, and of two


def layouts(bits: int) -> Iterator[CodeLayout]:
    """Every combination of forms; groups of whole units, with units left over, and of 16."""
    for group in (32, 96, 128, 512):
        for scales in ("float16", "bfloat16"):
            for minima in ("none", "float16", "zero"):
                yield CodeLayout(bits, group, scales, minima)
        yield CodeLayout(bits, group, "power")
    yield CodeLayout(bits, 16, "e4m3")
    for group in (16, 32, 64):
        yield CodeLayout(bits, group, "nested")
        yield CodeLayout(bits, group, "nested", "nested")


def even_levels(bits: int) -> np.ndarray:
    lowest = 0 if bits == 8 else 128 - 2 ** (bits - 1)
    return np.arange(lowest, lowest + 2**bits).astype(np.uint8)


def stored(kind: str, shape: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Random scales or minima as they are stored."""
    if kind == "power":
        return random.integers(124, 133, shape).astype(np.uint8)
    if kind == "inner":
        return random.integers(-128, 128, shape).astype(np.int8)
    if kind == "e4m3":
        return random.choice([0, 1, 7, 8, *range(40, 72), 127], shape).astype(np.uint8)
    if kind in ("zero", "nested"):
        return random.integers(0, 256, shape).astype(np.uint8)
    values = random.uniform(0.1, 2, shape) * random.choice([-1, 1], shape)
    return values.astype(ml_dtypes.bfloat16 if kind == "bfloat16" else np.float16)


def weight(
    layout: CodeLayout,
    rows: int,
    columns: int,
    *,
    levels: np.ndarray | None = None,
    a: int = 16,
    order: np.ndarray | None = None,
) -> PackedCodes:
    random = np.random.default_rng(0)
    groups, nested = (rows, -(-columns // layout.group)), layout.scales == "nested"
    outer = (rows, -(-columns // NESTED))
    numbers = Numbers(
        stored("inner" if nested else layout.scales, groups, random),
        None if layout.minima == "none" else stored(layout.minima, groups, random),
        stored("float16", outer, random) / np.float16(64) if nested else None,
        stored("float16", outer, random) / np.float16(64) if layout.minima == "nested" else None,
    )
    codes = random.integers(2**layout.bits, size=(rows, columns)).astype(np.uint8)
    levels = even_levels(layout.bits) if levels is None else levels
    data = pack_panels(layout, codes, numbers)
    return PackedCodes(
        data,
        rows,
        columns,
        bias=normal(rows),
        layout=layout,
        levels=levels,
        most=INPUT_LEVELS[a],
        order=order,
    )


def fits(layout: CodeLayout, columns: int) -> bool:
    return layout.group <= max(NESTED, -(-columns // UNIT) * UNIT)


def multiply(packed: PackedCodes, x: np.ndarray) -> np.ndarray:
    y = np.full((len(x), -(-packed.rows // 16) * 16), np.nan, np.float32)
    native_linear(packed)(x, y)
    return y[:, : packed.rows]


def inputs(packed: PackedCodes, x: np.ndarray, dtype: type) -> np.ndarray:
    """The inputs as the product takes them."""
    parts = grouped(x if packed.order is None else x[:, packed.order], UNIT)
    scale = np.abs(parts).max(-1, keepdims=True) / np.float32(packed.most)
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    inverse = 1 / scale
    whole = parts.astype(np.float64) * inverse if fused() else parts * inverse
    rounded = np.rint(whole).astype(dtype) * scale.astype(dtype)
    return packed.by_input(rounded.reshape(len(x), -1)[:, : x.shape[1]])


def check(packed: PackedCodes, most: int = FEW) -> None:
    """Products of `most` rows, rows of a batch and dense values of a weight."""
    dense = packed.unpack()
    assert np.array_equal(unpack(packed), dense)
    row = np.empty(packed.columns, np.float32)
    native_linear(packed).unpack_row(packed.rows - 1, row)
    assert np.array_equal(packed.by_input(row[None])[0], dense[-1])
    x = normal(most, packed.columns, seed=1) * np.exp(normal(packed.columns, seed=3))
    whole = multiply(packed, x)
    assert packed.bias is not None
    exact, plain = (
        inputs(packed, x, dtype) @ dense.astype(dtype).T + packed.bias.astype(dtype)
        for dtype in (np.float64, np.float32)
    )
    # Large minima and levels cancel only after each was summed.
    assert_matches(whole, exact, plain, factor=2 if packed.layout.minima == "none" else 4)
    for count in COUNTS:
        assert np.array_equal(multiply(packed, x[:count]), whole[:count]), f"{count} rows differ"


@pytest.mark.parametrize("bits", BITS)
def test_every_layout(each_isa: str, bits: int) -> None:
    for at, layout in enumerate(layouts(bits)):
        if fits(layout, 608):
            check(weight(layout, 40, 608), MOST if at % 4 == 0 else FEW)
        if (at + bits) % 2 == 0:
            check(weight(layout, 17, 544, a=8))
        elif fits(layout, 37):
            check(weight(layout, 1, 37))


def places(grid: GridName, group: int, rows: int, columns: int, a: int = 16) -> PackedCodes:
    """A weight of random places: all bytes are, but those of outer scales."""
    bits = GRIDS[grid].code_bits
    layout, random = CodeLayout(bits, group, "nested32", grid=grid), np.random.default_rng(0)
    shape = (-(-rows // 16), layout.panel_bytes(columns))
    data = random.integers(256, size=shape, dtype=np.uint8)
    for header, _ in spans(layout, columns):
        outer = random.uniform(0.001, 0.02, (len(data), 16)).astype(np.float32)
        data[:, header : header + 64] = outer.view(np.uint8)
    levels = (128 + random.permutation(np.arange(-60, 60, 120 // 2**bits))[: 2**bits]).astype(
        np.uint8
    )
    return PackedCodes(
        data, rows, columns, bias=normal(rows), layout=layout, levels=levels, most=INPUT_LEVELS[a]
    )


@pytest.fixture
def choose_amd() -> Iterator[Callable[[bool], None]]:
    """Chooses whether kernels of AVX-512 run as they do on AMD's processors."""
    before = native.core.on_amd()
    yield native.core.choose_as_on_amd
    native.core.choose_as_on_amd(before)


@pytest.mark.parametrize("amd", [False, True])
@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("grid", GRIDS)
def test_every_grid(
    each_isa: str, grid: GridName, group: int, amd: bool, choose_amd: Callable[[bool], None]
) -> None:
    choose_amd(amd)
    check(places(grid, group, 40, 608), MOST)
    check(places(grid, group, 17, 256, a=8))
    check(places(grid, group, 1, 37))


def test_a_grid_needs_its_entries() -> None:
    """Fewer entries than places, entries without a grid, or a grid without scales of its own."""
    packed = places("iq2_xs", 16, 16, 256)
    for changes, message in (
        ({"entries": np.zeros(256, np.uint32)}, "a grid of 256 entries; 512 expected"),
        ({"entries": None}, "a grid of 0 entries; 512 expected"),
        ({"grid": "iq2"}, "no grid 'iq2'"),
        ({"grid": "iq3_s"}, "codes of 3 bits do not go with grid 'iq3_s'"),
        ({"grid": "none"}, "nested32 scales go with a grid, and a grid with these"),
        ({"scales": "nested"}, "nested32 scales go with a grid, and a grid with these"),
        ({"minima": "nested"}, "nested32 scales do not go with minima 'nested'"),
    ):
        options = {
            **{"levels": packed.levels, "group": 16, "scales": "nested32", "grid": "iq2_xs"},
            **{"entries": grid_words("iq2_xs"), "max_code": 127},
            **changes,
        }
        with pytest.raises(ValueError, match=message):
            core.Linear(packed.data.reshape(-1), 16, 256, "codes", **options)


# Tables of GGUF's IQ4_NL and MXFP4 among them; none may pass through 16 bits unnoticed.
TABLES = [
    np.uint8([0, 40, 150, 255]),
    np.uint8([1, 9, 77, 128, 129, 180, 200, 250]),
    np.uint8([1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241]),
    np.uint8([128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116]),
    np.linspace(65, 191, 32).astype(np.uint8),
    np.linspace(0, 255, 32).astype(np.uint8),
    np.linspace(65, 191, 64).astype(np.uint8),
    np.linspace(0, 255, 64).astype(np.uint8),
]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{len(table)}-{table[-1]}")
def test_tables(each_isa: str, table: np.ndarray) -> None:
    bits = len(table).bit_length() - 1
    for layout in (CodeLayout(bits, 32), CodeLayout(bits, 16, "nested", "nested")):
        for a in (16, 8):
            check(weight(layout, 40, 288, levels=table, a=a))


@pytest.mark.parametrize("a", [16, 8])
def test_an_order_of_inputs(each_isa: str, a: int) -> None:
    order = np.random.default_rng(5).permutation(300).astype(np.int32)
    check(weight(CodeLayout(4, 64, minima="zero"), 40, 300, order=order, a=a), MOST)


@given(
    bits=st.sampled_from(BITS),
    rows=st.integers(1, 40),
    columns=st.integers(1, 700),
    which=st.integers(0, 33),
)
@settings(max_examples=60, deadline=None)
def test_panels_give_back_what_was_packed(bits: int, rows: int, columns: int, which: int) -> None:
    every = [layout for layout in layouts(bits) if fits(layout, columns)]
    layout = every[which % len(every)]
    packed = weight(layout, rows, columns)
    assert packed.data.shape[1] == layout.panel_bytes(columns)
    random = np.random.default_rng(1)
    codes = random.integers(2**bits, size=(rows, columns)).astype(np.uint8)
    numbers = read_numbers(layout, packed.data, columns)
    again = pack_panels(layout, codes, numbers)
    assert np.array_equal(read_codes(layout, again, columns)[:rows], codes)
    for name, part in vars(read_numbers(layout, again, columns)).items():
        if part is not None:
            assert part.tobytes() == getattr(numbers, name).tobytes()
    assert np.array_equal(unpack(packed), packed.unpack())


SMALLEST, LARGEST = np.float16(6e-8), np.float16(65504)


@pytest.mark.parametrize("scale", [SMALLEST, -LARGEST, LARGEST])
def test_extreme_scales(each_isa: str, scale: np.float16) -> None:
    for layout in (CodeLayout(4, 32, minima="float16"), CodeLayout(6, 16, "nested")):
        packed = weight(layout, 20, 288)
        numbers = read_numbers(layout, packed.data, 288)
        numbers = Numbers(
            **{
                name: part
                if part is None or part.dtype != np.float16
                else np.full_like(part, scale)
                for name, part in vars(numbers).items()
            }
        )
        codes = read_codes(layout, packed.data, 288)[:20]
        extreme = weight(layout, 20, 288)
        extreme.data[:] = pack_panels(layout, codes, numbers)[: len(extreme.data)]
        check(extreme)


@pytest.mark.parametrize("e", [0, 1, 2, 127, 252])
def test_extreme_powers(each_isa: str, e: int) -> None:
    """2^-128 and 2^-127 are below the normal numbers."""
    layout = CodeLayout(4, 32, "power")
    packed = weight(layout, 16, 64)
    packed.data[:, : layout.header_bytes] = e
    expected = np.ldexp(even_levels(4).astype(np.float64) - 128, e - 128)
    assert set(np.unique(unpack(packed))) == set(expected.astype(np.float32))
    assert np.array_equal(unpack(packed), packed.unpack())


@pytest.mark.parametrize("a", [16, 8])
@pytest.mark.parametrize("bits", BITS)
def test_nothing_overflows(each_isa: str, bits: int, a: int) -> None:
    """All levels at an end, and all inputs at theirs: any sum in too few bits would show."""
    tables = [even_levels(bits)]
    if bits < 8:
        tables += [np.uint8([0] * (2**bits - 1) + [255]), np.uint8([64] + [191] * (2**bits - 1))]
    for table in tables:
        packed = weight(CodeLayout(bits, 32), 32, 1024, levels=table, a=a)
        codes = np.zeros((32, 1024), np.uint8)
        codes[::2] = 2**bits - 1
        codes[1, ::2] = 2**bits - 1
        numbers = Numbers(np.ones((32, 32), np.float16))
        packed.data[:] = pack_panels(packed.layout, codes, numbers)
        for ends in ([1, 1], [-1, -1], [1, -1]):
            x = np.tile(np.float32(ends) * packed.most, 512)[None]
            # A high byte of 127 or -127 and a low byte of -128 or 127 are the worst.
            x = np.concatenate([x, x - np.sign(x) * 255]) if a == 16 else x
            exact = x.astype(np.float64) @ packed.unpack().T.astype(np.float64) + packed.bias
            assert np.allclose(multiply(packed, x), exact, rtol=1e-6, atol=1)


@pytest.mark.parametrize("a", [16, 8])
@pytest.mark.parametrize("bits", BITS)
def test_choices_of_processors_change_no_bit(
    each_isa: str, bits: int, a: int, choose_amd: Callable[[bool], None]
) -> None:
    ends = np.float32([[1, 1], [-1, -1], [1, -1]]).repeat(6, 0)  # of inputs
    tables = [even_levels(bits), np.linspace(0, 255, 2**bits).astype(np.uint8)]
    choose_amd(True)
    for layout in layouts(bits):
        for table in tables:
            if not fits(layout, 320):
                continue
            packed = weight(layout, 40, 320, levels=table, a=a)
            extreme = np.tile(ends * packed.most, 160) - np.float32([[0], [255]] * 9)
            x = np.concatenate([normal(23, 320), extreme])
            few = np.concatenate([multiply(packed, x[at : at + 3]) for at in range(0, len(x), 3)])
            one = multiply(packed, x[:1])
            choose_amd(False)
            assert np.array_equal(multiply(packed, x[:1]), one)
            choose_amd(True)
            for count in (len(x), 16, 5):
                assert np.array_equal(multiply(packed, x[:count]), few[:count])


def test_tiny_inputs(each_isa: str) -> None:
    """A scale without an inverse in float32 must not make infinities."""
    packed = weight(CodeLayout(4, 32), 16, 64)
    assert packed.bias is not None
    x = np.zeros((3, 64), np.float32)
    x[0, 3], x[1, 40] = 1e-40, 1e-36
    assert np.allclose(multiply(packed, x), packed.bias, atol=1e-30)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((7, 32), "codes of 7 bits cannot be stored; allowed: 2..6, 8"),
        ((4, 40), "group=40: must be a multiple of 32"),
        ((4, 16), "group=16: must be a multiple of 32"),
        ((4, 128, "nested"), "nested scales are for 16, 32 or 64 columns"),
        ((4, 32, "float16", "nested"), "nested minima go with nested scales"),
        ((4, 32, "power", "zero"), "power scales, which are bytes, go without minima"),
        ((4, 32, "int8"), "no codes with int8 scales and none minima"),
    ],
)
def test_refused(asked: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CodeLayout(*asked)
