from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from correlated import error, layer
from draws import normal
from suffice.errors import InputError
from suffice.quant import QUANTS
from suffice.quant.hadamard import block_of, rotate
from suffice.quant.int8 import Int8
from suffice.quant.kmeans import KLLM, KMeans
from suffice.quant.rtn import RTN

METHODS = [
    KMeans(group=64),
    KLLM(),
    KMeans(group=64, hadamard=False),
    KMeans(group=64, hadamard=False, centroids="float32", bits=3),
    RTN(group=64, symmetric=False),
]


def test_each_part_lowers_the_loss() -> None:
    """From rounding to the default, in the order in which the parts are added."""
    weight, hessian = layer()
    ladder = [
        RTN(),
        KLLM(),
        KLLM(rounds=3),
        KMeans(group=None, sweeps=0, centroids="float32"),
        KMeans(group=None, centroids="float32"),
        KMeans(centroids="float32"),
    ]
    losses = [error(method, weight, hessian) for method in ladder]
    assert losses == sorted(losses, reverse=True), losses
    assert losses[-1] < losses[0] / 4
    assert error(RTN(compensate=True), weight, hessian) < losses[0]
    assert error(KMeans(bits=5), weight, hessian) < error(KMeans(), weight, hessian) / 2
    # int8 levels cost little
    assert error(KMeans(), weight, hessian) < 1.1 * losses[-1]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_weight_on_a_grid_stays(method: KMeans | RTN) -> None:
    """As many distinct normalised values as centroids: nothing is lost, compensated or not."""
    count = 2**method.bits
    steps = np.arange(count, dtype=np.float32) - count // 2
    weight = steps[np.random.default_rng(0).integers(1, count, (20, 64))]
    weight[:, 0], weight[:, 1] = steps[0], steps[-1]
    if isinstance(method, KMeans) and method.hadamard:
        weight = rotate(weight, 64)
    _, hessian = layer(columns=64)
    decoded = method.quantize(weight, hessian).decode()
    if isinstance(method, KMeans) and method.hadamard:
        decoded = rotate(decoded, 64)
    # float16 scales and, if so, int8 levels round by this much
    assert np.abs(decoded - weight).max() <= np.abs(weight).max() / 127


@pytest.mark.parametrize("group", [None, 64, 32])
def test_bound(group: int | None) -> None:
    """Uncompensated, no weight is further away than half the widest gap times its scale."""
    weight, hessian = layer(columns=100)
    method = KMeans(group=group, compensate=False, centroids="float32", rounds=0, hadamard=False)
    coded = method.quantize(weight, hessian)
    gap = np.diff(coded.grid.levels).max() / 2
    scale = coded.grid.scale[:, coded.grid.groups(100)]
    assert (np.abs(coded.decode() - weight) <= gap * scale * 1.01).all()
    assert coded.codes.max() < 16 and coded.codes.dtype == np.uint8


def test_importance_moves_the_codebook() -> None:
    weight, _ = layer()
    wide = np.abs(weight) > 1.5
    fisher = np.where(wide, np.float32(1000), np.float32(1))
    plain, weighted = (KLLM().quantize(weight, importance=i) for i in (None, fisher))
    errors = [np.square((c.decode() - weight)[wide]).mean() for c in (plain, weighted)]
    assert errors[1] < errors[0] / 2


def test_gradients_move_the_codebook_of_inputs() -> None:
    """The half of the tokens that matters has another distribution, and gets less error."""
    inputs = normal(64, 256, seed=5)
    inputs[:32] **= 3
    gradients = np.ones_like(inputs)
    gradients[:32] = 1e-3
    plain, weighted = KLLM(act_bits=3), KLLM(act_bits=3, act_fisher=True)
    errors = []
    for method in (plain, weighted):
        site = method.site(inputs, gradients)
        assert site is not None
        errors.append(float(np.square(site.rounded(inputs) - inputs)[32:].sum()))
    assert errors[1] < 0.95 * errors[0]
    one, other = plain.site(inputs), weighted.site(inputs)
    assert one and other and np.array_equal(one.levels, other.levels), "without gradients"


def test_gradients_are_rotated_as_inputs_are() -> None:
    inputs, gradients = normal(64, 256, seed=5), normal(64, 256, seed=6) ** 3
    own = KMeans(act_bits=3, act_fisher=True)
    block = block_of(256)
    site = own.site(inputs, gradients)
    expected = dataclasses.replace(own, hadamard=False).site(
        rotate(inputs, block), rotate(gradients, block)
    )
    assert site and expected and np.array_equal(site.levels, expected.levels)
    other = own.site(inputs, normal(64, 256, seed=7) ** 3)
    assert other and not np.array_equal(site.levels, other.levels)


def test_a_layer_of_zeros_and_a_row_of_zeros() -> None:
    for method in METHODS:
        zeros, identity = np.zeros((16, 64), np.float32), np.eye(64, dtype=np.float32)
        assert not method.quantize(zeros, identity).decode().any()
    weight, hessian = layer()
    weight[3] = 0
    coded = KMeans().quantize(weight, hessian)
    assert not coded.decode()[3].any() and np.isfinite(coded.decode()).all()


@pytest.mark.parametrize(("w", "most"), [(4, 1.01), (5, 1.03), (6, 1.12)])
def test_levels_for_inputs_of_8_bits_cost_little(w: int, most: float) -> None:
    """Whole numbers up to 63 instead of 127: the more bits, the larger the error."""
    weight = normal(128, 576)
    errors = [
        np.linalg.norm(method.quantize(weight).decode() - weight)
        for method in (KMeans(bits=w, act_bits=a, hadamard=False) for a in (16, 8))
    ]
    assert errors[1] < most * errors[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kmeans:bits=7", r"kmeans: bits=7; allowed: 2\.\.6"),
        ("kmeans:act_bits=5", "kmeans: act_bits=5; allowed: 3, 4, 8, 16"),
        ("kmeans:act_bits=4,outliers=1.2", r"kmeans: outliers=1.2; allowed: 0\.\.1"),
        (
            "kmeans:act_bits=8,outliers=0.01",
            r"kmeans: outliers=0.01 goes with act_bits=3 or 4, not 8",
        ),
        ("kmeans:act_fisher=true", "kmeans: act_fisher=true goes with act_bits=3 or 4, not 16"),
        ("kmeans:group=20", "kmeans: group=20: must be a multiple of 32, such as 32, or none"),
        ("kmeans:centroids=int9", "unknown type of centroids 'int9'. Did you mean 'int8'"),
        ("kmeans:rounds=-1", "kmeans: rounds=-1,sweeps=2: must be 0 or more"),
        ("rtn:bits=9", r"rtn: bits=9; allowed: 2\.\.8"),
        ("rtn:act_bits=4", r"rtn: act_bits=4; allowed: 8, 16"),
        ("rtn:group=0", "rtn: group=0: must be a multiple of 32, such as 32, or none"),
        ("rtn:group=5", "rtn: group=5: must be a multiple of 32, such as 32, or none"),
    ],
)
def test_refused_options(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        QUANTS.build(text)


@pytest.mark.parametrize("method", [RTN, KMeans])
def test_a_group_longer_than_a_row_is_the_row(method: type[RTN] | type[KMeans]) -> None:
    weight = normal(16, 64, seed=3)
    long, row = (method(group=group).pack(weight).unpack() for group in (2**31 - 32, None))
    assert np.array_equal(long, row)


def test_refused_weights() -> None:
    weight = np.ones((16, 64), np.float32)
    weight[2, 3] = np.nan
    for method in (KMeans(), RTN()):
        with pytest.raises(InputError, match="a weight has NaN or infinite entries; all must be"):
            method.quantize(weight)
        with pytest.raises(InputError, match=r"a weight of shape \[3\]: must be \[N, K\]"):
            method.quantize(np.ones(3, np.float32))
        with pytest.raises(InputError, match="float16 holds up to 65504"):
            method.quantize(np.full((16, 64), 1e8, np.float32))
    with pytest.raises(InputError, match="act_bits=4: needs a calibration: use"):
        KLLM().pack(np.ones((16, 64), np.float32))
    with pytest.raises(InputError, match="rtn: compensate=true needs a calibration"):
        RTN(compensate=True).quantize(np.ones((16, 64), np.float32))


def test_inputs_of_other_sites_keep_16_bits() -> None:
    method = KMeans(act_bits=4, outliers=0.02, act_group=64, sites="qkv+down")
    assert all(method.for_matrix(matrix) == method for matrix in ("q", "k", "v", "down"))
    other = KMeans()
    assert all(method.for_matrix(matrix) == other for matrix in ("o", "gate", "up", "project_in"))
    assert all(each.for_matrix("embed") == Int8() for each in (method, other, RTN()))
    assert KLLM().for_matrix("project_in") == KLLM()
    assert KMeans(act_bits=8, sites="o+gate_up+qkv+down").for_matrix("project_in").act_bits == 8
