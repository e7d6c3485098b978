"""Codes whose nested scales are found by trial: the NumPy reference, and the extension's twin."""

from __future__ import annotations

import numpy as np
import pytest

from draws import normal
from suffice import native
from suffice.backends.cpu.packing import pack as pack_natively
from suffice.backends.cpu.rounding import round_natively
from suffice.native import core
from suffice.quant.code_panels import dense, pack_panels
from suffice.quant.four_bit import Nested, signed, with_minima
from suffice.quant.nested import Rounded, Rounding, round_groups

FORMS = [signed(4), signed(5), signed(6), with_minima(4), with_minima(5)]
SIZES = [(1, 16), (20, 100), (16, 256), (33, 600)]


def named(form: Rounding) -> str:
    return f"{form.layout.bits} {form.layout.minima}"


def decoded(found: Rounded, form: Rounding) -> np.ndarray:
    rows, columns = found.codes.shape
    data = pack_panels(form.layout, found.codes, found.numbers)
    levels = (form.levels + 128).astype(np.uint8)
    return dense(form.layout, levels, data, columns)[:rows]


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_values_are_near_and_the_loss_is_theirs(form: Rounding) -> None:
    weight = normal(40, 300)
    found = round_groups(weight, form, None)
    error = decoded(found, form) - weight
    assert found.lost == pytest.approx(np.square(error).sum(), rel=1e-4)
    # A normal value costs about this share of its square with codes of these bits.
    share = found.lost / np.square(weight).sum()
    assert share < {4: 0.0055, 5: 0.0015, 6: 0.0004}[form.layout.bits]
    assert np.abs(error).max() < 1


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_a_weight_on_the_grid_is_found_again(form: Rounding) -> None:
    random = np.random.default_rng(1)
    codes = random.integers(len(form.levels), size=(16, 512))
    if form.layout.minima == "none":
        codes[:, :: form.layout.group] = len(form.levels) - 1  # the value of greatest magnitude
        scale = np.repeat(random.integers(64, 128, (16, 512 // form.layout.group)), 1)
        weight = form.levels[codes] * _spread(scale.reshape(16, -1), form) / 4096
    else:
        codes[:, :: form.layout.group], codes[:, 1 :: form.layout.group] = 0, len(form.levels) - 1
        scale, below = (random.integers(64, 128, (16, 16)) for _ in range(2))
        weight = form.levels[codes] * _spread(scale, form) / 4096 - _spread(below, form) / 64
    weight = weight.astype(np.float32)
    found = round_groups(weight, form, None)
    lost = np.abs(decoded(found, form) - weight).max()
    assert lost < 0.01 * np.abs(weight).max()


def _spread(numbers: np.ndarray, form: Rounding) -> np.ndarray:
    return np.repeat(numbers, form.layout.group, 1)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=named)
def test_the_extension_loses_no_more(each_isa: str, form: Rounding, size: tuple[int, int]) -> None:
    weight = normal(*size) * np.exp(normal(size[1], seed=2))
    weight[size[0] // 2, :16] = 0
    for importance in (None, np.exp(normal(size[1], seed=3))):
        own, reference = (by(weight, form, importance) for by in (round_natively, round_groups))
        assert own.lost == pytest.approx(reference.lost, rel=2e-3)
        assert np.square(decoded(own, form) - weight).sum() == pytest.approx(own.lost, rel=1e-3)
        same = own.codes == reference.codes
        assert same.mean() > 0.98  # ties between trials may fall differently
        assert np.array_equal(own.codes.max(), reference.codes.max())


@pytest.mark.parametrize("by", [round_groups, round_natively], ids=["numpy", "extension"])
def test_importance_moves_errors_to_other_columns(by: object) -> None:
    weight, importance = normal(64, 160), np.ones(160, np.float32)
    importance[::4] = 50
    for form in FORMS[:1] + FORMS[3:4]:
        plain, weighed = (
            np.square(decoded(by(weight, form, each), form) - weight)  # type: ignore[operator]
            for each in (None, importance)
        )
        assert weighed[:, ::4].sum() < 0.9 * plain[:, ::4].sum()
        assert weighed.sum() > plain.sum()


@pytest.mark.parametrize("by", [round_groups, round_natively], ids=["numpy", "extension"])
def test_groups_of_equal_values(by: object) -> None:
    for value in (0.0, -0.5, 0.75, 1e-3):
        weight = np.full((3, 64), value, np.float32)
        for form in FORMS:
            found = decoded(by(weight, form, None), form)  # type: ignore[operator]
            assert np.abs(found - weight).max() <= 0.01 * abs(value), (value, named(form))


def test_threads_change_nothing() -> None:
    weight, before, found = normal(200, 300), native.threads(), []
    for threads in range(1, native.cores() + 1):
        native.set_threads(threads)
        found.append(round_natively(weight, signed(4)))
    native.set_threads(before)
    assert all(each.lost == found[0].lost for each in found)
    assert all(np.array_equal(each.codes, found[0].codes) for each in found)


def test_the_form_that_loses_less_is_taken() -> None:
    even = np.random.default_rng(0).integers(0, 16, (64, 256)).astype(np.float32) - 3
    for weight, minima in ((even, "nested"), (normal(64, 256), "none")):
        packed = Nested(4).pack(weight)
        assert packed.layout.minima == minima
        own = pack_natively(Nested(4), weight, None, np.empty)
        assert own.layout == packed.layout
        assert np.allclose(own.unpack(), packed.unpack(), atol=0.1)


def test_refused_arguments() -> None:
    values, bytes_ = np.zeros((2, 32), np.float32), np.zeros(64, np.uint8)
    levels, shares = np.float32([0, 1]), np.float32([1])
    good = (values, 32, levels, shares, None, bytes_, bytes_[:2], bytes_[:2], bytes_[:8])
    core.round_groups(*good)
    for at, wrong, message in (
        (0, values.reshape(-1), "values must be"),
        (1, 8, "16, 32 or 64 columns"),
        (2, np.float32([1, 0]), "levels must ascend"),
        (2, np.float32([1, 2]), "with minima, levels are 0, 1"),
        (2, np.float32([0]), "2 to 64 levels, not 1"),
        (3, shares[:0], "at least one share"),
        (4, shares, "importance has 1 entries; 32 expected"),
        (5, bytes_[:5], "codes has 5 entries; 64 expected"),
        (6, bytes_, "scales has 64 entries; 2 expected"),
        (7, bytes_, "minima has 64 entries; 2 expected"),
        (8, bytes_, "outer has 64 entries; 8 expected"),
    ):
        with pytest.raises(ValueError, match=message):
            core.round_groups(*good[:at], wrong, *good[at + 1 :])
