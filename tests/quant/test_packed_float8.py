"""Tests of weights in 8-bit floats: the same bits as the float32 weights that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from suffice.backends.cpu.linear import native_linear, unpack
from suffice.native import core
from suffice.quant.none import NoQuant
from suffice.quant.packed_float8 import PackedFloat8, StoredFloat8, pack_float8
from suffice.quant.panels import PackedLinear

SHAPES = [(1, 1), (16, 128), (40, 130), (17, 259), (100, 512), (96, 388)]
FINITE = np.array([byte for byte in range(256) if byte & 0x7F != 0x7F], np.uint8)


def random_weight(rows: int, columns: int, seed: int = 0) -> tuple[PackedFloat8, np.ndarray]:
    """Return a weight of random bytes, and its values; its scales have any size that fits."""
    random = np.random.default_rng(seed)
    data = random.choice(FINITE, (rows, columns))
    sizes = random.uniform(-20, 3, (rows, -(-columns // 128)))
    scales = (random.choice([-1, 1], sizes.shape) * 10.0**sizes).astype(np.float32)
    stored = StoredFloat8(data, scales)
    dense = np.empty((rows, columns), np.float32)
    stored.rows(0, dense)
    return pack_float8(stored, random.normal(size=rows).astype(np.float32)), dense


def product(packed: PackedLinear, x: np.ndarray) -> np.ndarray:
    """Return x W^T + b [T, N] of inputs [T, K]."""
    y = np.empty((len(x), -(-packed.rows // 16) * 16), np.float32)
    native_linear(packed)(x, y)
    return y[:, : packed.rows]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("each_isa")
def test_products_are_those_of_the_float32_weights(shape: tuple[int, int]) -> None:
    packed, dense = random_weight(*shape)
    floats = NoQuant("float32").pack(dense, packed.bias)
    random = np.random.default_rng(1)
    for count in (1, 2, 3, 6, 8, 9, 20):
        x = random.normal(size=(count, shape[1])).astype(np.float32)
        assert np.array_equal(product(packed, x), product(floats, x)), count
    assert np.array_equal(unpack(packed), dense)


@pytest.mark.usefixtures("each_isa")
def test_every_byte_is_decoded() -> None:
    data = np.resize(FINITE, (2, 256))
    stored = StoredFloat8(data, np.array([[1, 2.0**-149], [-0.1, 7e35]], np.float32))
    packed = pack_float8(stored)
    dense = np.empty(data.shape, np.float32)
    stored.rows(0, dense)
    assert np.array_equal(unpack(packed), dense)
    assert np.array_equal(product(packed, np.eye(256, dtype=np.float32)).T, dense)
    assert np.array_equal(packed.unpack(), dense)


def test_sizes_are_checked() -> None:
    packed, _ = random_weight(40, 130)
    data = packed.data.reshape(-1)
    assert native_linear(packed).bytes == packed.data.nbytes + 4 * 48
    with pytest.raises(ValueError, match="bytes; 6720 expected"):
        core.Linear(data[:-64].copy(), 40, 130, "float8")
    with pytest.raises(ValueError, match="int8 weights, and only these, need a scale"):
        core.Linear(data, 40, 130, "float8", np.ones(40, np.float32))
