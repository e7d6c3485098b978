"""KLLM: products by counting, outliers against a sort, cycles by hand, the paper's figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffice.errors import InputError
from suffice_hw.checks import Check
from suffice_hw.kllm import checks
from suffice_hw.kllm.design import DESIGNS, LLAMA_2_7B, Design
from suffice_hw.kllm.index import Orizuru, counted_product

A4 = Design.load()


def test_a_product_by_counting() -> None:
    random = np.random.default_rng(1)
    centroids, weight_centroids = random.normal(size=8), random.normal(size=16)
    codes, weight_codes = random.integers(0, 8, 300), random.integers(0, 16, (20, 300))
    ours = counted_product(codes, weight_codes, centroids, weight_centroids)
    assert np.allclose(ours, weight_centroids[weight_codes] @ centroids[codes], rtol=0, atol=1e-11)


@pytest.mark.parametrize("size", [2, 8, 64, 1024])
def test_outliers_are_those_of_a_sort(size: int) -> None:
    for seed in range(5):
        values = np.random.default_rng(seed).normal(size=size)
        count = min(size, 20)
        tree = Orizuru(values)
        largest, smallest = tree.outliers(count)
        order = np.argsort(values).tolist()
        assert largest == order[::-1][:count]
        assert smallest == order[:count]
        assert tree.comparisons <= 1.5 * size + 2 * count * math.log2(size)


def test_equal_values_are_each_popped_once() -> None:
    tree = Orizuru(np.array([1.0, 2.0, 2.0, 1.0]))
    assert sorted(tree.pop(1) for _ in range(4)) == [0, 1, 2, 3]
    assert sorted(tree.pop(-1) for _ in range(4)) == [0, 1, 2, 3]


def test_the_papers_tree_shares_its_lowest_level() -> None:
    # N - 1 comparisons for the first tree, N / 2 - 1 for the second
    assert Orizuru(np.arange(8.0)).comparisons == 7 + 3


def test_waves_by_hand() -> None:
    # 4096 inputs: counted in 8 cycles, 256 bins in 8, 41 outliers in 2, an addition
    assert A4.wave_cycles(4096) == 8 + 2 + 1
    assert A4.product_cycles(64, 4096) == 4 * 11
    three = dataclasses.replace(A4, activation_bits=3)
    assert three.wave_cycles(4096) == pytest.approx(16 * 2048 / 3072), "the memory is the bound"
    counting = dataclasses.replace(three, counters=8)
    assert counting.wave_cycles(4096) == 32


def test_a_memory_below_its_peak() -> None:
    slow = dataclasses.replace(A4, memory_efficiency=0.9227)
    assert slow.wave_cycles(4096) == pytest.approx(16 * 2048 / (0.9227 * 3072))
    assert slow.product_cycles(4096, 4096) == pytest.approx(2959, abs=1)
    three = dataclasses.replace(slow, activation_bits=3)
    assert three.product_cycles(4096, 4096) == slow.product_cycles(4096, 4096), "both wait for it"
    with pytest.raises(InputError, match=r"memory_efficiency=1.1: must be in \[0.01, 1\]"):
        dataclasses.replace(A4, memory_efficiency=1.1)


def test_outliers_cost_cycles_by_hand() -> None:
    assert A4.orizuru_cycles(4096) == 12 + 2 * 21 * 12
    assert dataclasses.replace(A4, serial_pops=False).orizuru_cycles(4096) == 12 + 21 * 12
    assert A4.orizuru_cycles(11008) == 3 * 516


def test_longer_contexts_take_longer() -> None:
    cycles = [A4.token_cycles(LLAMA_2_7B, length) for length in (1, 512, 1024, 2048)]
    assert cycles == sorted(cycles)
    assert cycles[2] - cycles[1] == pytest.approx((cycles[3] - cycles[2]) / 2, rel=0.05)


@pytest.mark.parametrize("group", checks.GROUPS, ids=lambda group: group.__name__)
def test_published_figures(group: Callable[[], list[Check]]) -> None:
    found = group()
    assert found
    assert [check for check in found if check.status == "miss"] == []


def test_what_is_not_reproduced_is_shown() -> None:
    found = {check.what: check for check in checks.not_reproduced()}
    assert {check.status for check in found.values()} == {"known miss"}
    assert {check.published for check in found.values()} >= {"214.8", "229.5", "20.98", "30.4"}
    assert float(found["A3, energy gain of steps C and D"].ours) == pytest.approx(0.9, abs=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Orizuru(np.zeros(6)), "values=6: must be a power of two of at least 2"),
        (lambda: Orizuru(np.zeros(4)).outliers(5), "count=5: must be in [0, 4]"),
        (lambda: dataclasses.replace(A4, lanes=0), "Design: lanes=0: must be in [1, 1024]"),
        (lambda: dataclasses.replace(A4, outlier_share=0.7), "Design: outlier_share=0.7: must be"),
        (lambda: dataclasses.replace(A4, serial_pops=2), "Design: serial_pops=2: must be true or"),
    ],
)
def test_bad_input_is_one_line(call: Any, message: str) -> None:
    with pytest.raises(InputError) as raised:
        call()
    assert str(raised.value).startswith(message)


def test_a_design_with_an_unknown_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((DESIGNS / "kllm.toml").read_text().replace("macs =", "mac ="))
    with pytest.raises(InputError, match=r"unknown key of mine.toml 'mac'. Did you mean 'macs'"):
        Design.load(str(path))
