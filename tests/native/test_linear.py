from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draws import normal
from isas import rounds_bf16
from oracle import assert_matches
from suffice import native
from suffice.backends.cpu.linear import native_linear
from suffice.backends.cpu.linear import unpack as unpack_natively
from suffice.backends.cpu.packing import pack as pack_natively
from suffice.cli import info
from suffice.errors import InputError
from suffice.native import core
from suffice.quant import QUANTS, PackedLinear
from suffice.quant.int8 import Int8
from suffice.quant.packed_codes import PackedCodes
from suffice.quant.panels import pack, unpack

SIZES = [(16, 4), (1, 1), (200, 37), (192, 576), (100, 130)]
KINDS = ["none:dtype=float32", "none:dtype=bfloat16"]  # codes: tests/quant


def multiply(packed: PackedLinear, x: np.ndarray) -> np.ndarray:
    y = np.full((len(x), -(-packed.rows // 16) * 16), np.nan, np.float32)
    native_linear(packed)(x, y)
    return y[:, : packed.rows]


def expected(packed: PackedLinear, x: np.ndarray, dtype: type) -> np.ndarray:
    assert packed.bias is not None
    return x.astype(dtype) @ packed.unpack().astype(dtype).T + packed.bias.astype(dtype)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_product_and_batch_invariance(each_isa: str, kind: str, size: tuple[int, int]) -> None:
    rows, columns = size
    packed = QUANTS.build(kind).pack(normal(rows, columns), normal(rows, seed=1))
    x = normal(133, columns, seed=2)
    whole = multiply(packed, x)
    taken = x
    if rounds_bf16() and kind == "none:dtype=bfloat16":
        taken = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert_matches(
        whole, expected(packed, taken, np.float64), expected(packed, taken, np.float32), factor=4
    )
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 32, 128):
        assert np.array_equal(multiply(packed, x[:count]), whole[:count]), f"{count} rows differ"


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bfloat16_loses_no_more_than_pytorch_does(each_isa: str, size: tuple[int, int]) -> None:
    """Inputs are rounded to bfloat16 where the processor multiplies pairs of it; outputs never."""
    packed = QUANTS.build("none:dtype=bfloat16").pack(normal(*size))
    x = normal(9, size[1], seed=2)
    weight = torch.from_numpy(packed.unpack())
    plain = torch.from_numpy(x).bfloat16() @ weight.bfloat16().T
    exact = torch.from_numpy(x).double() @ weight.double().T
    assert_matches(torch.from_numpy(multiply(packed, x)), exact, plain.float(), factor=1)


@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    dtype=st.sampled_from([np.float32, ml_dtypes.bfloat16, np.int8]),
)
@settings(max_examples=60, deadline=None)
def test_unpack_gives_what_was_packed(rows: int, columns: int, dtype: type) -> None:
    weight = np.random.default_rng(rows).integers(-127, 128, (rows, columns)).astype(dtype)
    assert np.array_equal(unpack(pack(weight), rows, columns), weight)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_native_unpack(each_isa: str, kind: str, size: tuple[int, int]) -> None:
    packed = QUANTS.build(kind).pack(normal(*size))
    dense = unpack(packed.data, *size).astype(np.float32)
    if packed.scale is not None:
        dense *= packed.scale[:, None]
    assert np.array_equal(unpack_natively(packed), dense)
    assert np.array_equal(packed.unpack(), dense)


FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]


def sizes_of_all_kinds(rows: int, columns: int) -> np.ndarray:
    """Rows of unlike magnitudes, one of zeros and one too small for an inverse."""
    weight: np.ndarray = normal(rows, columns) * np.exp(normal(rows, 1, seed=1))
    weight[rows // 2] = 0
    weight[rows // 3] *= np.float32(1e-39)
    return weight


@pytest.mark.parametrize("size", [*SIZES, (33, 1000)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_extension_packs_the_same_bits(each_isa: str, kind: str, size: tuple[int, int]) -> None:
    quant, weight, bias = QUANTS.build(kind), sizes_of_all_kinds(*size), normal(size[0], seed=2)
    for dtype in FLOATS:
        own = pack_natively(quant, weight.astype(dtype), bias, np.empty)
        reference = quant.pack(weight.astype(dtype), bias)
        assert own.dtype == reference.dtype
        assert np.array_equal(own.data.view(np.uint8), reference.data.view(np.uint8)), dtype
        assert np.array_equal(own.bias, bias)


@pytest.mark.parametrize("size", [*(size for size in SIZES if size[0] < 192), (33, 1000)], ids=str)
@pytest.mark.parametrize("bits", [8, 16])
def test_the_extension_rounds_to_int8_as_well(
    each_isa: str, bits: int, size: tuple[int, int]
) -> None:
    quant, weight, bias = Int8(bits), sizes_of_all_kinds(*size), normal(size[0], seed=2)
    for dtype in FLOATS:
        values = weight.astype(dtype)
        own, reference = pack_natively(quant, values, bias, np.empty), quant.pack(values, bias)
        assert isinstance(own, PackedCodes)
        assert (own.layout, own.most) == (reference.layout, reference.most)
        assert np.array_equal(own.bias, bias)
        values = values.astype(np.float32)
        error, expected = own.unpack() - values, reference.unpack() - values
        assert np.square(error).sum() == pytest.approx(np.square(expected).sum(), rel=0.02)
        # Trials that lose nearly the same may be ranked otherwise, most of all in short groups.
        whole = size[1] // 32 * 32
        assert (error == expected)[:, :whole].sum() >= 0.94 * size[0] * whole


@pytest.mark.parametrize("bits", [8, 16])
def test_codes_are_of_the_scale_that_is_stored(each_isa: str, bits: int) -> None:
    """That is a half: a scale before it is rounded gives other codes."""
    quant, weight = Int8(bits), normal(64, 32)
    own, reference = pack_natively(quant, weight, None, np.empty), quant.pack(weight, None)
    assert isinstance(own, PackedCodes)
    same = own.stored_floats == reference.stored_floats  # a row has one
    assert same.mean() > 0.9
    assert np.array_equal(own.unpack()[same], reference.unpack()[same])


def test_halves_round_to_even(each_isa: str) -> None:
    ties = np.float32([[1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, np.inf]])
    packed = pack_natively(QUANTS.build("none"), ties, None, np.empty)
    assert packed.unpack().tolist() == [[1, 1 + 2**-6, -1, np.inf]]


def test_a_weight_is_packed_by_all_threads_alike() -> None:
    weight, before = normal(200, 300), native.threads()
    packed = []
    for threads in range(1, native.cores() + 1):
        native.set_threads(threads)
        packed.append(pack_natively(QUANTS.build("int8"), weight, None, np.empty))
    native.set_threads(before)
    assert all(np.array_equal(each.data, packed[0].data) for each in packed)


def test_refused_weights() -> None:
    dense, to = np.zeros(16 * 8 * 4, np.uint8), np.zeros(16 * 8 * 4, np.uint8)
    core.pack(dense, "float32", 16, 8, to, "float32")
    for arguments, message in (
        ((dense, "float32", 0, 8, to, "float32"), "a weight has from 1 to 268435456 rows and"),
        ((dense, "int8", 16, 8, to, "float32"), "dense weights are float32, float16 or bfloat16"),
        ((dense, "float32", 16, 8, to, "int8"), "packed as float32 or bfloat16"),
        ((dense, "float16", 16, 8, to, "float32"), "the weight has 512 bytes; 256 expected"),
        ((dense, "float32", 16, 8, to, "bfloat16"), "packed weight has 512 entries; 256 expected"),
    ):
        with pytest.raises(ValueError, match=message):
            core.pack(*arguments)
    with pytest.raises(ValueError, match="packed weight has 512 entries; 576 expected"):
        core.round_int8(dense, "float32", 16, 8, np.ones(1, np.float32), to)
    for weight in (np.full((40, 40), 1e7, np.float32), np.full((16, 8), np.inf, np.float32)):
        with pytest.raises(InputError, match="needs a scale that is too large"):
            pack_natively(QUANTS.build("int8"), weight, None, np.empty)


def test_integer_products_are_exact(each_isa: str) -> None:
    """The extremes, where a 16-bit intermediate sum would saturate."""
    weight = np.full((16, 64), 127, np.float32)
    weight[::2] = -127
    packed = QUANTS.build("int8").pack(weight)
    x = np.repeat(np.float32([[127], [-127]]), 64, 1)
    assert np.array_equal(multiply(packed, x), x @ weight.T)


def test_refused_arrays() -> None:
    packed = QUANTS.build("none:dtype=float32").pack(np.ones((16, 8), np.float32))
    linear, x = native_linear(packed), np.ones((1, 8), np.float32)
    with pytest.raises(ValueError, match=r"x must be \[rows, 8\]"):
        linear(np.ones((1, 9), np.float32), np.ones((1, 16), np.float32))
    with pytest.raises(ValueError, match=r"y must be \[rows, 16\]"):
        linear(x, np.ones((1, 15), np.float32))
    for wrong in (np.ones((1, 16)), np.ones((16, 2), np.float32).T[:1]):
        with pytest.raises(TypeError):  # a copy would take the result and lose it
            linear(x, wrong)
    with pytest.raises(ValueError, match="packed weight has 3 bytes; 512 expected"):
        core.Linear(np.zeros(3, np.uint8), 16, 8, "float32")
    for rows_only in ("float16", "kmeans4", "planes"):
        with pytest.raises(
            ValueError, match="weights are float32, bfloat16, int8, float8 or codes"
        ):
            core.Linear(np.zeros(256, np.uint8), 16, 8, rows_only)


def test_the_set_that_is_asked_for_is_in_use(each_isa: str) -> None:
    assert native.isa() == each_isa


def test_instruction_sets_and_threads() -> None:
    assert native.isa() in native.isas()
    with pytest.raises(InputError, match="instruction set 'v9' cannot run here"):
        native.use_isa("v9")
    with pytest.raises(InputError, match="must be between 1 and the"):
        native.set_threads(native.cores() + 1)


def test_a_set_that_was_not_built_is_told_from_one_that_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three sets one was not built, and one this CPU lacks."""
    states = [("v4", True, False), ("v3", False, True), ("base", True, True)]
    monkeypatch.setattr(core, "isas", lambda: states)
    monkeypatch.setattr(core, "use_isa", lambda name: name == "base")
    assert (native.isas(), native.isas_built()) == (["base"], ["v4", "base"])
    assert native.isas_not_built() == ["v3"]
    assert dict(info._machine())["sets built"] == "v4, base; this CPU also runs v3, not built"
    with pytest.raises(InputError, match=r"'v3' was not built .*SUFFICE_SETS"):
        native.use_isa("v3")
    with pytest.raises(InputError, match=r"'v4' cannot run here\. Available: base"):
        native.use_isa("v4")
