from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from correlated import layer
from draws import normal
from suffice.backends.cpu.packing import pack_stored, quantize
from suffice.checkpoints.source import UnreadCodes
from suffice.errors import InputError
from suffice.quant.code_layout import CodeLayout
from suffice.quant.four_bit import FourBit, Nested
from suffice.quant.gptq import loss
from suffice.quant.packed_codes import PackedCodes

METHOD = FourBit()


def test_bits_by_the_kind_of_matrix() -> None:
    names = ("q", "k", "v", "o", "gate", "up", "down", "embed", "head", "project_in")
    found = [METHOD.for_matrix(name) for name in names]
    assert [each.bits for each in found] == [4, 6, 6, 4, 4, 4, 5, 6, 6, 6]
    weight = normal(16, 256)
    bits = [8 * each.pack(weight).data.nbytes / weight.size for each in found]
    assert sorted(set(bits)) == [4.625, 5.625, 6.625]
    assert FourBit(8).for_matrix("q").pack(weight).most == 127


def test_more_bits_lose_less() -> None:
    weight = normal(32, 320)
    lost = [np.square(Nested(bits).pack(weight).unpack() - weight).sum() for bits in (4, 5, 6)]
    assert lost[0] > 3 * lost[1] > 9 * lost[2] > 0


class InAFile:
    """A matrix that a file has in codes of a layout."""

    def __init__(self, layout: CodeLayout) -> None:
        self.layout = layout
        self.weight = normal(32, 256)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    def codes(self) -> UnreadCodes:
        levels = np.arange(2**self.layout.bits).astype(np.uint8)
        return UnreadCodes(self.layout, levels, lambda to: to.fill(1))

    def load(self) -> np.ndarray:
        return self.weight

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        yield 0, self.weight[:16]
        yield 16, self.weight[16:]


@pytest.mark.parametrize(
    ("layout", "matrix", "stays"),
    [
        (CodeLayout(4, 32, "float16", "float16"), "q", True),  # Q4_1
        (CodeLayout(4, 32, "nested", "nested"), "q", True),  # Q4_K
        (CodeLayout(5, 32), "q", False),  # Q5_0
        (CodeLayout(5, 32), "down", True),
        (CodeLayout(6, 16, "nested"), "down", False),  # Q6_K
        (CodeLayout(6, 16, "nested"), "v", True),
        (CodeLayout(8, 32), "embed", False),  # Q8_0
    ],
    ids=str,
)
def test_codes_of_a_file_stay_if_they_are_few(layout: CodeLayout, matrix: str, stays: bool) -> None:
    stored = InAFile(layout)
    packed = pack_stored(FourBit(8).for_matrix(matrix), stored, normal(32), np.empty)
    assert isinstance(packed, PackedCodes)
    assert packed.most == (127 if matrix in ("q", "k", "v", "o", "gate", "up") else 32639)
    assert packed.bias is not None
    if stays:
        assert packed.layout == layout and (packed.data == 1).all()
    else:
        assert packed.layout.bits == FourBit().for_matrix(matrix).bits
        assert np.square(packed.unpack() - stored.weight).mean() < 0.01


def test_a_calibration_lessens_the_loss_of_outputs() -> None:
    weight, hessian = layer()
    for method in (Nested(4), METHOD):
        lost = [
            loss(weight, method.packed(coded).unpack(), hessian)
            for coded in (method.quantize(weight), quantize(method, weight, hessian))
        ]
        assert lost[1] < 0.75 * lost[0]
    plain = Nested(4, compensate=False)
    assert np.array_equal(plain.quantize(weight, hessian).codes, plain.quantize(weight).codes)


def test_packed_codes_are_those_of_the_grid() -> None:
    coded = METHOD.quantize(normal(20, 300))
    packed = METHOD.packed(coded, normal(20))
    assert np.allclose(packed.unpack(), coded.decode(), rtol=1e-6)


def test_refused_weights_and_options() -> None:
    with pytest.raises(InputError, match=r"4bit: act_bits=4; allowed: 8, 16"):
        FourBit(4)
    for pack in (METHOD.pack, METHOD.quantize):
        with pytest.raises(InputError, match="NaN or infinite entries"):
            pack(np.full((1, 16), np.nan, np.float32))
    stored = InAFile(CodeLayout(8, 32))
    stored.weight[20, 5] = np.inf
    with pytest.raises(InputError, match="NaN or infinite entries"):
        pack_stored(Nested(4), stored, None, np.empty)
