from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import assert_matches
from suffice import native
from suffice.backends.cpu.linear import native_linear
from suffice.backends.cpu.linear import unpack as unpack_natively
from suffice.errors import InputError
from suffice.native import core
from suffice.quant import QUANTS, PackedLinear
from suffice.quant.int8 import quantize_rows
from suffice.quant.panels import pack, unpack

SIZES = [(16, 4), (1, 1), (200, 37), (192, 576), (100, 130)]
KINDS = ["none:dtype=float32", "none:dtype=bfloat16", "int8"]


def multiply(packed: PackedLinear, x: torch.Tensor) -> torch.Tensor:
    y = torch.full((len(x), -(-packed.rows // 16) * 16), float("nan"))
    native_linear(packed)(x.contiguous(), y)
    return y[:, : packed.rows]


def expected(packed: PackedLinear, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if packed.dtype == "int8":
        codes, scale = quantize_rows(x)
        x = codes.to(dtype) * scale.to(dtype)[:, None]
    assert packed.bias is not None
    return x.to(dtype) @ packed.unpack().to(dtype).T + packed.bias.to(dtype)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_product_and_batch_invariance(each_isa: str, kind: str, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    rows, columns = size
    packed = QUANTS.build(kind).pack(torch.randn(rows, columns), torch.randn(rows))
    x = torch.randn(20, columns)
    whole = multiply(packed, x)
    assert_matches(
        whole, expected(packed, x, torch.float64), expected(packed, x, torch.float32), factor=4
    )
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16):
        assert torch.equal(multiply(packed, x[:count]), whole[:count]), f"{count} rows differ"


@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int8]),
)
@settings(max_examples=60, deadline=None)
def test_unpack_gives_what_was_packed(rows: int, columns: int, dtype: torch.dtype) -> None:
    weight = torch.randint(-127, 128, (rows, columns)).to(dtype)
    assert torch.equal(unpack(pack(weight), rows, columns), weight)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_native_unpack(each_isa: str, kind: str, size: tuple[int, int]) -> None:
    packed = QUANTS.build(kind).pack(torch.randn(*size))
    dense = unpack(packed.data, *size).float()
    if packed.scale is not None:
        dense *= packed.scale[:, None]
    assert torch.equal(unpack_natively(packed), dense)
    assert torch.equal(packed.unpack(), dense)


def test_integer_products_are_exact(each_isa: str) -> None:
    """The extremes, where a 16-bit intermediate sum would saturate."""
    weight = torch.full((16, 64), 127.0)
    weight[::2] = -127.0
    packed = QUANTS.build("int8").pack(weight)
    x = torch.stack([torch.full((64,), 127.0), torch.full((64,), -127.0)])
    assert torch.equal(multiply(packed, x), x @ weight.T)


def test_refused_arrays() -> None:
    packed = QUANTS.build("none:dtype=float32").pack(torch.ones(16, 8))
    linear, x = native_linear(packed), torch.ones(1, 8)
    with pytest.raises(ValueError, match=r"x must be \[rows, 8\]"):
        linear(torch.ones(1, 9), torch.ones(1, 16))
    with pytest.raises(ValueError, match=r"y must be \[rows, 16\]"):
        linear(x, torch.ones(1, 15))
    for wrong in (torch.ones(1, 16, dtype=torch.float64), torch.ones(16, 2).T[:1]):
        with pytest.raises(TypeError):  # a copy would take the result and lose it
            linear(x, wrong)
    with pytest.raises(ValueError, match="packed weight has 3 bytes; 512 expected"):
        core.Linear(np.zeros(3, np.uint8), 16, 8, "float32")
    for rows_only in ("float16", "kmeans4"):
        with pytest.raises(ValueError, match="weights are float32, bfloat16, int8 or codebook"):
            core.Linear(np.zeros(256, np.uint8), 16, 8, rows_only)


def test_instruction_sets_and_threads() -> None:
    assert native.isa() in native.isas()
    with pytest.raises(InputError, match="instruction set 'v9' cannot run here"):
        native.use_isa("v9")
    with pytest.raises(InputError, match="must be between 1 and the"):
        native.set_threads(native.cores() + 1)
