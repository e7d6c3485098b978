from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import assert_matches
from suffice import native
from suffice.backends.cpu.linear import native_linear, unpack
from suffice.errors import InputError
from suffice.models.layers import linear
from suffice.native import core
from suffice.quant.activations import Site
from suffice.quant.coded import Coded, Grid, unit_of
from suffice.quant.hadamard import rotate
from suffice.quant.index_matmul import index_matmul
from suffice.quant.int8 import quantize_rows
from suffice.quant.kmeans import KMeans
from suffice.quant.packed_codes import PackedCodes, pack_codes, unpack_codes
from suffice.quant.rtn import RTN

# rows, columns, group, rotation
SHAPES = [
    (16, 8, 8, 0),
    (1, 1, 64, 0),
    (200, 37, 16, 0),
    (192, 576, 64, 64),
    (40, 1000, 1000, 0),
    (33, 1536, 128, 512),
    (40, 576, 64, 576),
    (16, 2048, 128, 2048),
    (16, 1024, 64, 1024),
    (20, 688, 64, 688),
]


WIDE, NARROW = 127, 63  # the greatest level
BITS = range(2, 7)
FEW = [(200, 37, 16, 0), (1, 1, 64, 0), (192, 576, 64, 64)]  # layouts: part of a unit, many units


def shapes(bits: int, of: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Groups are whole units: of 8 columns for 4 bits, else of 32."""
    return [each for each in of if bits == 4 or each[2] % 32 == 0 or each[2] >= each[1]]


def random_codes(
    rows: int, columns: int, group: int, seed: int = 0, bits: int = 4, most: int = WIDE
) -> Coded:
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(-most, most + 1, (2**bits,), generator=generator).sort().values.float()
    scale = torch.rand(rows, -(-columns // group), generator=generator) + 0.1
    codes = torch.randint(2**bits, (rows, columns), generator=generator).to(torch.uint8)
    return Coded(codes, Grid(levels, scale.half().float(), group))


def multiply(packed: PackedCodes, x: torch.Tensor) -> torch.Tensor:
    y = torch.full((len(x), -(-packed.rows // 16) * 16), float("nan"))
    native_linear(packed)(x.contiguous(), y)
    return y[:, : packed.rows]


def inputs(packed: PackedCodes, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The inputs as the product takes them: rotated, whole codes of at most `most`."""
    if packed.rotation:
        x = rotate(x, packed.rotation)
    scale = x.abs().amax(-1, keepdim=True) / packed.most
    inverse = 1 / scale
    # AVX2 and AVX-512 round the product once, together with the addition that makes it whole.
    whole = x * inverse if native.isa() == "base" else x.double() * inverse.double()
    rounded = whole.round().to(dtype) * scale.to(dtype)
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
    coded = random_codes(rows, columns, units * unit_of(bits), seed, bits)
    packed = pack_codes(coded)
    assert packed.bits == bits
    assert torch.equal(unpack(packed), coded.decode())
    assert torch.equal(packed.unpack(), coded.decode())
    back = unpack_codes(packed)
    assert torch.equal(back.codes, coded.codes)
    assert torch.equal(back.grid.scale, coded.grid.scale)
    assert torch.equal(back.grid.levels, coded.grid.levels)
    assert torch.equal(back.decode(), coded.decode())


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("a", "most"), [(16, WIDE), (8, NARROW)])
def test_product_and_batch_invariance(each_isa: str, bits: int, a: int, most: int) -> None:
    for shape in shapes(bits, SHAPES):
        check_product(bits, shape, a, most)


def test_eight_bits_of_inputs_take_wide_levels_too(each_isa: str) -> None:
    check_product(4, SHAPES[3], 8, WIDE)


def check_product(bits: int, shape: tuple[int, int, int, int], a: int, most: int) -> None:
    torch.manual_seed(0)
    rows, columns, group, rotation = shape
    coded = random_codes(rows, columns, group, bits=bits, most=most)
    packed = pack_codes(coded, torch.randn(rows), rotation=rotation, a=a)
    assert native_linear(packed).narrow == (a == 8 and most == NARROW)
    x = torch.randn(37, columns) * torch.exp(torch.randn(columns))
    whole = multiply(packed, x)
    assert packed.bias is not None
    exact, plain = (
        inputs(packed, x, dtype) @ packed.unpack().to(dtype).T + packed.bias.to(dtype)
        for dtype in (torch.float64, torch.float32)
    )
    if rotation == 0:
        assert_matches(whole, exact, plain, factor=8)
    else:  # a rotated input rounds to another whole number now and then
        unit = rotate(x, rotation).abs().amax() / packed.most
        assert (whole - exact).abs().max() <= 4 * unit * packed.unpack().abs().max()
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 32, 33):
        assert torch.equal(multiply(packed, x[:count]), whole[:count]), f"{count} rows differ"


@pytest.mark.parametrize("bits", BITS)
def test_narrow_products_have_the_bits_of_wide_ones(each_isa: str, bits: int) -> None:
    """A greatest level that no code chooses makes the same weight a wide one."""
    for rows, columns, group, rotation in shapes(bits, FEW):
        coded = random_codes(rows, columns, group, bits=bits, most=NARROW)
        coded = replace(coded, codes=coded.codes.clamp(max=2**bits - 2))
        levels = coded.grid.levels.clone()
        levels[-1] = WIDE
        same = replace(coded, grid=replace(coded.grid, levels=levels))
        narrow, wide = (pack_codes(each, rotation=rotation, a=8) for each in (coded, same))
        assert native_linear(narrow).narrow
        assert not native_linear(wide).narrow
        x = torch.randn(37, columns)
        for count in (1, 2, 3, 4, 5, 9, 37):
            assert torch.equal(multiply(narrow, x[:count]), multiply(wide, x[:count]))


@pytest.mark.parametrize("bits", BITS)
def test_a_broken_layout_is_found(bits: int) -> None:
    """Two columns that change places, or a bit that is lost, must not pass unnoticed."""
    coded = random_codes(32, 64, 64, bits=bits)
    swapped = coded.codes[:, [1, 0, *range(2, 64)]]
    lost = coded.codes & 2 ** (bits - 1) - 1
    x = torch.randn(3, 64)
    for codes in (swapped, lost):
        check_found(coded, pack_codes(Coded(codes, coded.grid)), x)


def check_found(coded: Coded, packed: PackedCodes, x: torch.Tensor) -> None:
    exact = inputs(packed, x, torch.float64) @ coded.decode().double().T
    with pytest.raises(AssertionError):
        assert_matches(multiply(packed, x), exact, exact.float(), factor=8)


@pytest.mark.parametrize("bits", BITS)
def test_extremes_do_not_overflow(each_isa: str, bits: int) -> None:
    """Largest levels times largest inputs, one scale for a whole row."""
    ways = [(16, WIDE), (8, WIDE), (8, NARROW)]
    for (a, most), columns in itertools.product(ways, (64, 2048, 20_000)):
        levels = torch.tensor([-float(most)] + (2**bits - 1) * [float(most)])
        grid = Grid(levels, torch.ones(16, 1), group=columns)
        codes = torch.zeros(16, columns, dtype=torch.uint8)
        codes[::2] = 2**bits - 1
        packed = pack_codes(Coded(codes, grid), a=a)
        largest = float(packed.most)
        x = torch.stack([torch.full((columns,), largest), torch.full((columns,), -largest)])
        exact = x.double() @ packed.unpack().double().T
        assert torch.allclose(multiply(packed, x).double(), exact, rtol=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_native_unpack(each_isa: str, bits: int) -> None:
    for rows, columns, group, rotation in shapes(bits, FEW):
        coded = random_codes(rows, columns, group, bits=bits)
        dense = coded.decode()
        packed = pack_codes(coded, rotation=rotation)
        assert torch.equal(packed.unpack(), rotate(dense, rotation) if rotation else dense)
        x = torch.randn(5, columns)
        assert torch.allclose(
            linear(x, packed, torch.float32), x @ packed.unpack().T, rtol=1e-4, atol=1e-3
        )


def test_wide_inputs_are_nearly_exact_and_a8_is_int8() -> None:
    """16 bits leave at most max |x| / 65534 of each input; 8 bits are those of int8."""
    torch.manual_seed(0)
    weight, x = torch.randn(64, 256), torch.randn(4, 256)
    packed = KMeans(act_bits=16, hadamard=False).pack(weight)
    exact = x.double() @ packed.unpack().double().T
    bound = x.abs().amax() / 65534 * packed.unpack().abs().sum(-1).max()
    assert (multiply(packed, x) - exact).abs().max() <= bound
    codes, scale = quantize_rows(x)
    eight = KMeans(act_bits=8, hadamard=False).pack(weight)
    exact = (codes.double() * scale.double()[:, None]) @ eight.unpack().double().T
    assert torch.allclose(multiply(eight, x).double(), exact, atol=1e-4)


def test_methods_pack() -> None:
    weight = torch.randn(40, 128)
    for method in (
        *(KMeans(), KMeans(act_bits=8), KMeans(bits=3), KMeans(bits=6), KMeans(hadamard=False)),
        *(KMeans(bits=5, act_bits=8), RTN(group=64), RTN(act_bits=8), RTN(bits=5, group=64)),
    ):
        packed = method.pack(weight, torch.ones(40))
        assert native_linear(packed).narrow == (method.act_bits == 8)
        decoded = method.quantize(weight).decode()
        if packed.rotation:
            decoded = rotate(decoded, packed.rotation)
        assert torch.allclose(packed.unpack(), decoded, atol=1e-6)
        assert packed.dtype == "codes"
    for bits in BITS:
        packed = KMeans(bits=bits).pack(torch.randn(160, 1024))
        assert packed.bytes * 8 / (160 * 1024) == pytest.approx(bits + 0.5, abs=0.01)


def test_refused() -> None:
    weight = torch.randn(16, 64)
    with pytest.raises(InputError, match="codes of 7 bits cannot be packed; allowed: up to 6"):
        RTN(bits=7).pack(weight)
    with pytest.raises(
        InputError, match="codes: group=40: must be a multiple of 32 with bits=5, or no"
    ):
        pack_codes(random_codes(16, 64, 40, bits=5))
    with pytest.raises(
        InputError, match="kmeans: group=40: must be a multiple of 32 with bits=5, or"
    ):
        KMeans(bits=5, group=40)
    for method in (KMeans(centroids="float32"), RTN(symmetric=False)):
        with pytest.raises(InputError, match="only codes of int8 levels without zero points can"):
            method.pack(weight)
    with pytest.raises(ValueError, match="thresholds must ascend"):
        native_linear(
            pack_codes(random_codes(16, 64, 64), site=Site(torch.zeros(1), 0.01, (1.0, -1.0)))
        )
    data = KMeans().pack(weight)
    assert data.levels is not None

    five = data.levels.repeat(2)

    def build(**changes: Any) -> None:
        options = {"levels": data.levels, "group": 64, "rotation": 0, "max_code": 127} | changes
        core.Linear(data.data.reshape(-1), 16, 64, "codes", **options)

    build()
    for changes, message in (
        ({"group": 12}, "a scale for 12 columns; a multiple of 8 up to 64 is allowed"),
        ({"group": 2147483640}, "a scale for 2147483640 columns; a multiple of 8 up to 64 is"),
        ({"rotation": 48}, "no rotation in blocks of 48"),
        ({"rotation": 8}, "no rotation in blocks of 8"),
        ({"rotation": -16}, "no rotation in blocks of -16"),
        ({"rotation": 128}, "no rotation in blocks of 128"),
        ({"max_code": 1}, "codes of inputs up to 127 or 32767"),
        ({"group": 8}, "packed weight has 576 bytes; 768 expected"),
        ({"levels": five, "group": 48}, "a scale for 48 columns; a multiple of 32 up to 64 is"),
        ({"levels": five}, "packed weight has 576 bytes; 704 expected"),
    ):
        with pytest.raises(ValueError, match=message):
            build(**changes)
    with pytest.raises(ValueError, match="codebook weights, and only these, need levels"):
        build(levels=None)
    for count in (1, 12, 128):
        with pytest.raises(ValueError, match=f"4, 8, 16, 32 or 64 levels, not {count}"):
            build(levels=data.levels.repeat(8)[:count].contiguous())
    with pytest.raises(ValueError, match="pairs are counted only for 4-bit codes with one scale"):
        native_linear(pack_codes(random_codes(16, 64, 64, bits=5))).count_pairs(
            torch.zeros(64, dtype=torch.uint8), torch.zeros(16), torch.zeros(16)
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
    torch.manual_seed(0)
    x = torch.randn(6, 192) * torch.exp(torch.randn(192))
    x[3] = 0
    seen = rotate(x, rotation) if rotation else x
    # Values that a calibration did not see may lie beyond its thresholds.
    seen = seen[:4] if offline else seen
    site = Site.learn(seen, bits, share, group=group, offline=offline)
    packed = pack_codes(random_codes(40, 192, 64), rotation=rotation, site=site)
    y = multiply(packed, x)
    decoded = packed.quantize_inputs(x)
    assert y[3].eq(0).all()
    assert (decoded - x).norm() < 0.4 * x.norm()
    bound = decoded.abs().amax() / 32767 * packed.unpack().abs().sum(-1).max()
    assert (y - decoded @ packed.unpack().T).abs().max() <= bound
    for count in (1, 2, 5):
        assert torch.equal(multiply(packed, x[:count]), y[:count])


def test_counted_pairs_are_the_product(each_isa: str) -> None:
    """The paper's circuit, literally: the index product of a row of codes."""
    torch.manual_seed(0)
    x = torch.randn(100)
    site = Site.learn(x[None], 4, 0.0)
    coded = random_codes(40, 100, 104)
    activations = site.encode(x)
    y = torch.full((40,), float("nan"))
    native_linear(pack_codes(coded)).count_pairs(activations.codes, site.levels, y)
    assert_matches(
        y * activations.scale,
        coded.decode().double() @ activations.decode().double(),
        index_matmul(activations, coded),
        factor=8,
    )
