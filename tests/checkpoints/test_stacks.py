"""Tests of stacks.py: matrices of experts that are stored one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from array_source import ArraySource
from suffice.checkpoints.source import UnreadCodes
from suffice.checkpoints.stacks import members, stack_source
from suffice.errors import InputError
from suffice.quant.code_layout import CodeLayout
from suffice.quant.packed_float8 import StoredFloat8

NAMES = members("experts.*.up", 3)
LEVELS = np.arange(16, dtype=np.uint8)


class Plain(ArraySource):
    """A source of arrays, in codes of their own if there are any."""

    def __init__(self, codes: dict[str, Any] | None = None, **changes: np.ndarray) -> None:
        weights = {
            name: np.arange(32 * 5, dtype=np.float32).reshape(32, 5) + 1000 * at
            for at, name in enumerate(NAMES)
        }
        super().__init__(weights | changes)
        self.unread = codes or {}

    def load(self, name: str) -> np.ndarray:
        return self.weights[name]

    def in_codes(self, name: str) -> bool:
        return name in self.unread

    def codes(self, name: str) -> Any:
        return self.unread[name]


def stacked(plain: Plain) -> Any:
    return stack_source(plain, {"experts.*.up": NAMES})


def unread(at: int, **changes: Any) -> UnreadCodes:
    """Return codes of a matrix of 32 rows, each panel with bytes of its own."""

    def fill(out: np.ndarray) -> None:
        out[...] = 10 * at + np.arange(2, dtype=np.uint8)[:, None]

    return UnreadCodes(**({"layout": CodeLayout(4, 32), "levels": LEVELS, "fill": fill} | changes))


def test_rows_of_a_stack() -> None:
    plain = Plain(head=np.zeros((4, 4), np.float32))
    source, whole = stacked(plain), np.concatenate([plain.weights[name] for name in NAMES])
    assert source.shapes()["experts.*.up"] == (96, 5)
    assert source.stored("experts.*.up") == ("float32", 96 * 5 * 4)
    assert np.array_equal(source.load("experts.*.up"), whole)
    for size in (1, 7, 40, 96):
        plain.read = 0
        out = np.empty((96, 5), np.float32)
        for first in range(0, 96, size):
            source.load_rows("experts.*.up", first, out[first : first + size])
        assert np.array_equal(out, whole) and plain.read == 96
    assert np.array_equal(source.load("head"), plain.weights["head"])


def test_a_type_that_holds_all() -> None:
    assert stacked(Plain()).dtype("experts.*.up") == "float32"
    half = {NAMES[1]: np.zeros((32, 5), np.float16)}
    assert stacked(Plain(**half)).dtype(NAMES[1]) == "float16"
    assert stacked(Plain(**half)).dtype("experts.*.up") == "float32"


def test_codes_of_a_stack() -> None:
    source = stacked(Plain({name: unread(at) for at, name in enumerate(NAMES)}))
    assert source.in_codes("experts.*.up")
    out = np.empty((6, 3), np.uint8)
    source.codes("experts.*.up").fill(out)
    assert out.tolist() == [[each] * 3 for each in (0, 1, 10, 11, 20, 21)]
    assert not stacked(Plain({NAMES[0]: unread(0)})).in_codes("experts.*.up")


def test_floats_of_8_bits_of_a_stack() -> None:
    own = [
        StoredFloat8(np.full((32, 5), at, np.uint8), np.full((32, 1), at, np.float32))
        for at in range(3)
    ]
    found = stacked(Plain(dict(zip(NAMES, own, strict=True)))).codes("experts.*.up")
    assert isinstance(found, StoredFloat8)
    assert found.data[::32, 0].tolist() == found.scales[::32, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "other",
    [
        unread(1, layout=CodeLayout(4, 64)),
        unread(1, levels=LEVELS + 1),
        unread(1, order=np.arange(5, dtype=np.int32)),
        StoredFloat8(np.zeros((32, 5), np.uint8), np.zeros((32, 1), np.float32)),
    ],
    ids=["layout", "levels", "order", "floats"],
)
def test_experts_with_codes_of_their_own_kind_are_refused(other: Any) -> None:
    source = stacked(Plain({NAMES[0]: unread(0), NAMES[1]: other, NAMES[2]: unread(2)}))
    with pytest.raises(InputError, match=r"^'experts.\*.up': the experts of a layer have codes in"):
        source.codes("experts.*.up")


def test_a_source_without_stacks_is_itself() -> None:
    plain = Plain()
    assert stack_source(plain, {}) is plain
