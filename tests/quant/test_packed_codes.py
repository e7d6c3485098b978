from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draws import normal
from isas import fused
from oracle import assert_matches
from suffice.backends.cpu.linear import native_linear, unpack
from suffice.errors import InputError
from suffice.native import core
from suffice.quant.activations import Site
from suffice.quant.code_layout import UNIT, CodeLayout
from suffice.quant.coded import Coded, Grid, grouped
from suffice.quant.hadamard import rotate
from suffice.quant.index_matmul import index_matmul
from suffice.quant.kmeans import KMeans
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes, pack_codes, unpack_codes
from suffice.quant.rtn import RTN
from suffice.quantize.torch_layers import linear

# rows, columns, group, rotation
SHAPES = [
    (16, 8, 32, 0),
    (1, 1, 64, 0),
    (200, 37, 32, 0),
    (192, 576, 64, 64),
    (40, 1000, 1000, 0),
    (33, 1536, 128, 512),
    (40, 576, 64, 576),
    (16, 2048, 128, 2048),
    (16, 1024, 64, 1024),
    (20, 688, 64, 688),
    (20, 1000, 192, 0),  # more units in a span than are prepared together, and no multiple of them
]


WIDE, NARROW = 127, 63  # the greatest level
BITS = range(2, 7)
FEW = [(200, 37, 32, 0), (1, 1, 64, 0), (192, 576, 64, 64)]  # layouts: part of a unit, many units


def random_codes(
    rows: int, columns: int, group: int, seed: int = 0, bits: int = 4, most: int = WIDE
) -> Coded:
    random = np.random.default_rng(seed)
    levels = np.sort(random.integers(-most, most + 1, 2**bits)).astype(np.float32)
    scale = (random.random((rows, -(-columns // group))) + 0.1).astype(np.float16)
    codes = random.integers(2**bits, size=(rows, columns)).astype(np.uint8)
    return Coded(codes, Grid(levels, scale.astype(np.float32), group))


def multiply(packed: PackedCodes, x: np.ndarray) -> np.ndarray:
    y = np.full((len(x), -(-packed.rows // 16) * 16), np.nan, np.float32)
    native_linear(packed)(x, y)
    return y[:, : packed.rows]


def inputs(packed: PackedCodes, x: np.ndarray, dtype: type) -> np.ndarray:
    """The inputs as the product takes them: rotated, whole codes of at most `most`."""
    if packed.rotation:
        x = rotate(x, packed.rotation)
    parts = grouped(x, UNIT)
    scale = np.abs(parts).max(-1, keepdims=True) / np.float32(packed.most)
    inverse = 1 / np.maximum(scale, np.finfo(np.float32).tiny)
    # Other sets round the product once, together with the addition that makes it whole.
    whole = parts.astype(np.float64) * inverse if fused() else parts * inverse
    stretches = np.rint(whole).astype(dtype) * scale.astype(dtype)
    rounded = stretches.reshape(len(x), -1)[:, : x.shape[1]]
    return rotate(rounded, packed.rotation) if packed.rotation else rounded


@given(
    bits=st.sampled_from(BITS),
    rows=st.integers(1, 50),
    columns=st.integers(1, 200),
    units=st.integers(1, 12),
    seed=st.integers(0, 100),
)
@settings(max_examples=100, deadline=None)
def test_unpack_gives_what_was_packed(
    bits: int, rows: int, columns: int, units: int, seed: int
) -> None:
    coded = random_codes(rows, columns, units * UNIT, seed, bits)
    packed = pack_codes(coded)
    assert packed.layout == CodeLayout(bits, min(units, -(-columns // UNIT)) * UNIT)
    assert np.array_equal(unpack(packed), coded.decode())
    assert np.array_equal(packed.unpack(), coded.decode())
    back = unpack_codes(packed)
    assert np.array_equal(back.codes, coded.codes)
    assert np.array_equal(back.grid.scale, coded.grid.scale)
    assert np.array_equal(back.grid.levels, coded.grid.levels)
    assert np.array_equal(back.decode(), coded.decode())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("a", "most"), [(16, WIDE), (8, NARROW)])
def test_product_and_batch_invariance(each_isa: str, bits: int, a: int, most: int) -> None:
    for shape in SHAPES:
        check_product(bits, shape, a, most)


def test_eight_bits_of_inputs_take_wide_levels_too(each_isa: str) -> None:
    check_product(4, SHAPES[3], 8, WIDE)


def check_product(bits: int, shape: tuple[int, int, int, int], a: int, most: int) -> None:
    rows, columns, group, rotation = shape
    coded = random_codes(rows, columns, group, bits=bits, most=most)
    packed = pack_codes(coded, normal(rows, seed=1), rotation=rotation, a=a)
    most = 133 if shape in FEW else 35  # more than one piece of inputs
    x = normal(most, columns, seed=2) * np.exp(normal(columns, seed=3))
    whole = multiply(packed, x)
    assert packed.bias is not None
    exact, plain = (
        inputs(packed, x, dtype) @ packed.unpack().astype(dtype).T + packed.bias.astype(dtype)
        for dtype in (np.float64, np.float32)
    )
    if rotation == 0:
        assert_matches(whole, exact, plain, factor=8)
    else:  # a rotated input rounds to another whole number now and then
        unit = np.abs(rotate(x, rotation)).max() / packed.most
        assert np.abs(whole - exact).max() <= 4 * unit * np.abs(packed.unpack()).max()
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 32, 33, most - 5):
        assert np.array_equal(multiply(packed, x[:count]), whole[:count]), f"{count} rows differ"


@pytest.mark.parametrize("bits", BITS)
def test_narrow_products_have_the_bits_of_wide_ones(each_isa: str, bits: int) -> None:
    """A greatest level that no code chooses makes the same weight a wide one."""
    for rows, columns, group, rotation in FEW:
        coded = random_codes(rows, columns, group, bits=bits, most=NARROW)
        coded = replace(coded, codes=np.minimum(coded.codes, 2**bits - 2))
        levels = coded.grid.levels.copy()
        levels[-1] = WIDE
        same = replace(coded, grid=replace(coded.grid, levels=levels))
        narrow, wide = (pack_codes(each, rotation=rotation, a=8) for each in (coded, same))
        x = normal(37, columns)
        for count in (1, 2, 3, 4, 5, 9, 37):
            assert np.array_equal(multiply(narrow, x[:count]), multiply(wide, x[:count]))


@pytest.mark.parametrize("bits", BITS)
def test_a_broken_layout_is_found(bits: int) -> None:
    """Two columns that change places, or a bit that is lost, must not pass unnoticed."""
    coded = random_codes(32, 64, 64, bits=bits)
    swapped = coded.codes[:, [1, 0, *range(2, 64)]]
    lost = coded.codes & 2 ** (bits - 1) - 1
    x = normal(3, 64)
    for codes in (swapped, lost):
        check_found(coded, pack_codes(Coded(codes, coded.grid)), x)


def check_found(coded: Coded, packed: PackedCodes, x: np.ndarray) -> None:
    exact = inputs(packed, x, np.float64) @ coded.decode().T
    with pytest.raises(AssertionError):
        assert_matches(multiply(packed, x), exact, exact.astype(np.float32), factor=8)


@pytest.mark.parametrize("bits", BITS)
def test_extremes_do_not_overflow(each_isa: str, bits: int) -> None:
    """Largest levels times largest inputs, one scale for a whole row."""
    ways = [(16, WIDE), (8, WIDE), (8, NARROW)]
    for (a, most), columns in itertools.product(ways, (64, 2048, 20_000)):
        levels = np.float32([-most] + (2**bits - 1) * [most])
        grid = Grid(levels, np.ones((16, 1), np.float32), group=columns)
        codes = np.zeros((16, columns), np.uint8)
        codes[::2] = 2**bits - 1
        packed = pack_codes(Coded(codes, grid), a=a)
        largest = float(packed.most)
        x = np.repeat(np.float32([[largest], [-largest]]), columns, 1)
        exact = x.astype(np.float64) @ packed.unpack().T
        assert np.allclose(multiply(packed, x), exact, rtol=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_native_unpack(each_isa: str, bits: int) -> None:
    for rows, columns, group, rotation in FEW:
        coded = random_codes(rows, columns, group, bits=bits)
        dense = coded.decode()
        packed = pack_codes(coded, rotation=rotation)
        assert np.array_equal(packed.unpack(), rotate(dense, rotation) if rotation else dense)
        x = normal(5, columns)
        y = linear(torch.from_numpy(x), packed, torch.float32).numpy()
        assert np.allclose(y, x @ packed.unpack().T, rtol=1e-4, atol=1e-3)


def test_inputs_are_nearly_exact() -> None:
    """Of 32 inputs, 16 bits leave at most max |x| / 65278 of each, 8 bits max |x| / 254."""
    weight, x = normal(64, 256), normal(4, 256, seed=1) * np.exp(4 * normal(256, seed=2))
    for act_bits, steps in ((16, 65278), (8, 254)):
        packed = KMeans(act_bits=act_bits, hadamard=False).pack(weight)
        dense = packed.unpack().astype(np.float64)
        left = np.repeat(np.abs(grouped(x, UNIT)).max(-1) / steps, UNIT, 1)
        bound = left @ np.abs(dense).T + 1e-6 * np.abs(x) @ np.abs(dense).T
        difference = np.abs(multiply(packed, x) - x.astype(np.float64) @ dense.T)
        assert (difference <= bound).all()
        assert difference.max() > bound.max() / 1000, "inputs are not rounded at all"


def test_methods_pack() -> None:
    weight = normal(40, 128)
    for method in (
        *(KMeans(), KMeans(act_bits=8), KMeans(bits=3), KMeans(bits=6), KMeans(hadamard=False)),
        *(KMeans(bits=5, act_bits=8), RTN(group=64), RTN(act_bits=8), RTN(bits=8, group=64)),
    ):
        packed = method.pack(weight, np.ones(40, np.float32))
        assert packed.most == INPUT_LEVELS[method.act_bits]
        decoded = method.quantize(weight).decode()
        if packed.rotation:
            decoded = rotate(decoded, packed.rotation)
        assert np.allclose(packed.unpack(), decoded, atol=1e-6)
        assert packed.dtype == "codes"
    for bits in BITS:
        packed = KMeans(bits=bits).pack(normal(160, 1024))
        assert packed.bytes * 8 / (160 * 1024) == pytest.approx(bits + 0.5, abs=0.01)


def test_refused() -> None:
    weight = normal(16, 64)
    with pytest.raises(InputError, match=r"codes of 7 bits cannot be stored; allowed: 2..6, 8"):
        RTN(bits=7).pack(weight)
    with pytest.raises(InputError, match="codes of 8 bits have the levels -128 to 127; other"):
        pack_codes(random_codes(16, 64, 64, bits=8))
    with pytest.raises(
        InputError, match="codes: group=40: must be a multiple of 32, such as 32, o"
    ):
        pack_codes(random_codes(16, 64, 40, bits=5))
    with pytest.raises(InputError, match="kmeans: group=50: must be a multiple of 32, such as 64,"):
        KMeans(group=50)
    for method in (KMeans(centroids="float32"), RTN(symmetric=False)):
        with pytest.raises(InputError, match="only codes of int8 levels without zero points can"):
            method.pack(weight)
    with pytest.raises(ValueError, match="thresholds must ascend"):
        native_linear(
            pack_codes(
                random_codes(16, 64, 64), site=Site(np.zeros(1, np.float32), 0.01, (1.0, -1.0))
            )
        )


def test_no_more_outliers_than_inputs() -> None:
    linear, levels = native_linear(pack_codes(random_codes(16, 64, 64))), np.zeros(1, np.float32)
    linear.set_inputs(levels, 32, 0, -1.0, 1.0)
    for outliers in (-1, 33):
        with pytest.raises(ValueError, match=f"^{outliers} outliers at each end are too many$"):
            linear.set_inputs(levels, outliers, 0, -1.0, 1.0)


def test_the_extension_refuses_parts_that_do_not_fit() -> None:
    data = KMeans().pack(normal(16, 64))
    five = np.tile(data.levels, 2)

    def build(**changes: Any) -> None:
        options = {"levels": data.levels, "group": 64, "rotation": 0, "max_code": 127} | changes
        core.Linear(data.data.reshape(-1), 16, 64, "codes", **options)

    build()
    swapped = np.arange(64, dtype=np.int32)[::-1].copy()
    build(order=swapped)
    for changes, message in (
        ({"group": 12}, "a scale for 12 columns; a multiple of 32 is allowed"),
        ({"group": 2147483640}, "a scale for 2147483640 columns; at most 64 are allowed"),
        ({"group": 32, "scales": "nested"}, "packed weight has 576 bytes; 704 expected"),
        ({"group": 48, "scales": "nested"}, "a scale for 48 columns; 16, 32 or 64 are allowed"),
        ({"scales": "float64"}, "no scales 'float64'"),
        ({"minima": "float32"}, "no minima 'float32'"),
        ({"minima": "nested"}, "float16 scales do not go with minima 'nested'"),
        ({"scales": "nested", "minima": "zero"}, "nested scales do not go with minima 'zero'"),
        ({"scales": "power", "minima": "zero"}, "power scales do not go with minima 'zero'"),
        ({"order": swapped[1:].copy()}, "the order has 63 entries; 64 expected"),
        ({"order": np.zeros(64, np.int32)}, "the order is no permutation: 0"),
        ({"order": swapped + 1}, "the order is no permutation: 64"),
        ({"rotation": 48}, "no rotation in blocks of 48"),
        ({"rotation": 8}, "no rotation in blocks of 8"),
        ({"rotation": -16}, "no rotation in blocks of -16"),
        ({"rotation": 128}, "no rotation in blocks of 128"),
        ({"max_code": 1}, "codes of inputs up to 127 or 32639"),
        ({"levels": five}, "packed weight has 576 bytes; 704 expected"),
        ({"levels": np.tile(data.levels, 16)}, "256 levels are -128 to 127"),
    ):
        with pytest.raises(ValueError, match=message):
            build(**changes)
    with pytest.raises(ValueError, match="codes, and only these, need levels"):
        build(levels=None)
    for count in (1, 12, 128):
        with pytest.raises(ValueError, match=f"4, 8, 16, 32, 64 or 256 levels, not {count}"):
            build(levels=np.tile(data.levels, 8)[:count])
    with pytest.raises(ValueError, match="pairs are counted only for 4-bit codes with one float"):
        native_linear(pack_codes(random_codes(16, 64, 64, bits=5))).count_pairs(
            np.zeros(64, np.uint8), np.zeros(16, np.float32), np.zeros(16, np.float32)
        )


@pytest.mark.parametrize(
    ("rotation", "group"), [(0, None), (64, None), (64, 16), (192, 112), (0, 256)]
)
@pytest.mark.parametrize(
    ("bits", "share", "offline"),
    [(4, 0.005, False), (3, 0.05, False), (4, 0.0, False), (3, 0.05, True)],
)
def test_inputs_by_levels(
    each_isa: str, bits: int, share: float, rotation: int, group: int | None, offline: bool
) -> None:
    """The native quantizer and product against those of the reference, row by row."""
    x = normal(6, 192) * np.exp(normal(192, seed=1))
    x[3] = 0
    seen = rotate(x, rotation) if rotation else x
    # Values that a calibration did not see may lie beyond its thresholds.
    seen = seen[:4] if offline else seen
    site = Site.learn(seen, bits, share, group=group, offline=offline)
    packed = pack_codes(random_codes(40, 192, 64), rotation=rotation, site=site)
    y = multiply(packed, x)
    decoded = packed.quantize_inputs(x)
    assert not y[3].any()
    assert np.linalg.norm(decoded - x) < 0.4 * np.linalg.norm(x)
    bound = np.abs(decoded).max() / 32767 * np.abs(packed.unpack()).sum(-1).max()
    assert np.abs(y - decoded @ packed.unpack().T).max() <= bound
    for count in (1, 2, 5):
        assert np.array_equal(multiply(packed, x[:count]), y[:count])


def test_counted_pairs_are_the_product(each_isa: str) -> None:
    """The paper's circuit, literally: the index product of a row of codes."""
    x = normal(100)
    site = Site.learn(x[None], 4, 0.0)
    coded = random_codes(40, 100, 128)
    activations = site.encode(x)
    y = np.full(40, np.nan, np.float32)
    native_linear(pack_codes(coded)).count_pairs(activations.codes, site.levels, y)
    assert_matches(
        y * activations.scale,
        coded.decode().astype(np.float64) @ activations.decode(),
        index_matmul(activations, coded),
        factor=8,
    )
