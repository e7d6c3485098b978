"""KLLM's units cycle by cycle: results, cycles by hand, and a model's codes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from suffice.errors import InputError
from suffice_hw.kllm import codes, cycle_checks, cycles
from suffice_hw.kllm.design import Design

A4 = Design.load()
FAST = dataclasses.replace(A4, memory_efficiency=1.0, lanes=1)  # one lane: memory never waits


def test_a_wave_by_hand() -> None:
    # 512 inputs: their weights in a cycle, into the registers in the next, counted in another one;
    # 64 bins in 2, 33 outliers in 2, the sums added in 1; then the tree's 5 levels
    assert cycles.product(FAST, 512, [64], 33) == 1 + 1 + 1 + 2 + 2 + 1 + 5
    assert cycles.product(FAST, 512, [64], 0) == 1 + 1 + 1 + 2 + 1 + 5
    assert cycles.product(FAST, 512, [65 * 32], 64) == 1 + 1 + 1 + 65 + 2 + 1 + 5
    assert cycles.product(FAST, 512, [64], 0, 0) == 1 + 1 + 1 + 2 + 5


def test_the_slowest_stage_sets_the_pace() -> None:
    def pace(design: Design, inputs: int, bins: int, outliers: int = 0) -> float:
        few, many = (
            cycles.product(design, inputs, [bins] * count, outliers) for count in (20, 120)
        )
        return (many - few) / 100

    assert pace(FAST, 512, 256, 41) == 8 + 2 + 1, "reduction"
    assert pace(FAST, 4096, 32) == 8, "counting"
    assert pace(FAST, 8192, 32) == 16, "counting, in two fills of the buffers"
    assert pace(A4, 4096, 32) == pytest.approx(16 * 2048 / 3072, rel=0.01), "memory"
    slow = dataclasses.replace(A4, memory_efficiency=0.25)
    assert pace(slow, 4096, 256, 41) == pytest.approx(4 * 16 * 2048 / 3072, rel=0.01)
    assert pace(slow, 11008, 256) == pytest.approx(4 * 16 * 5504 / 3072, rel=0.01)


def test_a_slow_wave_holds_up_the_next() -> None:
    even = cycles.product(FAST, 512, [128] * 40)
    uneven = cycles.product(FAST, 512, [64, 192] * 20)
    assert uneven == even, "the mean counts, if no stage before it is slower"

    def period(waves: list[int]) -> float:
        few, many = (cycles.product(FAST, 4096, waves * count) for count in (20, 40))
        return (many - few) / 20

    assert period([32, 512]) == 19 > 2 * 8, "17 cycles and 2 of the MACs, which never wait"
    assert period([32] * 3 + [1024]) > 33 + 3 * 2, (
        "counters wait for a slow wave, then MACs for them"
    )


@pytest.mark.parametrize("macs", [1, 3, 32, 64])
def test_the_tree_adds_what_a_loop_does(macs: int) -> None:
    random = np.random.default_rng(macs)
    terms, counts = random.normal(size=256), random.integers(0, 3, 256)
    total, used = cycles.summed(terms, counts, macs)
    assert total == pytest.approx(float(terms @ counts), abs=1e-9)
    assert used == -(-np.count_nonzero(counts) // macs) + cycles.tree_levels(macs)
    assert cycles.summed(terms, np.zeros(256, int), macs) == (0.0, 0)


@pytest.mark.parametrize(("bits", "width", "values"), [(4, 256, 576), (3, 7, 100), (1, 1, 5)])
def test_clustering_finds_the_nearest_centroid(bits: int, width: int, values: int) -> None:
    random = np.random.default_rng(bits)
    centroids, x = np.sort(random.normal(size=1 << bits)), random.normal(size=values)
    found, used = cycles.clustered(x, centroids, width)
    assert found.tolist() == np.abs(x[:, None] - centroids).argmin(1).tolist()
    assert used == -(-values // width) + bits


def test_outliers_take_the_formulas_cycles() -> None:
    for serial in (True, False):
        design = dataclasses.replace(A4, serial_pops=serial)
        assert cycles.found(design, 4096) == design.orizuru_cycles(4096)
        assert cycles.found(design, 512) == design.orizuru_cycles(512)
        assert cycles.found(design, 8192) == design.orizuru_cycles(8192)
    assert cycles.found(A4, 4096 + 1000) == 516 + 12 + 2 * 5 * 12, "the rest pops its own share"


def test_drawn_waves_have_the_proportions_of_the_counts() -> None:
    counts = [[10, 30], [20, 60], [200, 10]]
    found = codes.drawn(counts, 100)
    assert sorted(found) == [10] * 30 + [20] * 60 + [200] * 10 and found != sorted(found)
    assert codes.drawn(counts, 100) == found
    assert codes.mean(counts) == pytest.approx(np.mean(found))


def test_even_codes_fill_what_the_formula_says() -> None:
    skipping = dataclasses.replace(A4, skip_empty_bins=True)
    one = np.mean(codes.uniform(576, 1, 400, 8))
    assert one == pytest.approx(skipping.bins(576), rel=0.01)
    assert np.mean(codes.uniform(576, 16, 100, 8)) > one + 3, "the slowest of 16"


def test_a_models_codes_take_less_than_even_ones() -> None:
    real = codes.RealCodes.load()
    design = dataclasses.replace(A4, skip_empty_bins=True)
    even, own = (codes.step(design, real, 512, each) for each in (False, True))
    assert own["products"] < even["products"] and own["attention"] < even["attention"]
    assert own["outliers"] == even["outliers"] > 0 and own["clustering"] == even["clustering"] > 0
    offline = dataclasses.replace(design, online_outliers=False)
    assert codes.step(offline, real, 512, True)["outliers"] == 0


def test_checks_hold_or_say_why() -> None:
    found = [check for group in cycle_checks.GROUPS for check in group()]
    assert {check.status for check in found} <= {"hit", "known miss"}
    assert sum(check.status == "hit" for check in found) > 20


def test_codes_of_another_file(tmp_path: Path) -> None:
    text = (codes.CODES / "smollm2-135m.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('name = "q"', 'name = "queries"'))
    with pytest.raises(InputError, match=r"matrices are .'queries', 'k'"):
        codes.RealCodes.load(str(path))
    with pytest.raises(InputError, match="unknown model's codes 'smollm'"):
        codes.RealCodes.load("smollm")
