"""The cost model against sums over tokens, brute force, and the numbers the paper reports."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffice.cache.cost import (
    COPY_SHARE,
    GrowthCosts,
    attention_seconds,
    best_allocations,
    kernel_rows,
    nearest_power_of_two,
    spare_rows,
)

PAPER = GrowthCosts.of_ratio(0.1)  # section VIII-A


def summed(allocations: int, limit: int, costs: GrowthCosts) -> float:
    """Eq. 4 before any algebra: one term per allocation and one per step."""
    rows = limit // allocations
    total = 0.0
    for i in range(allocations):
        held = (i + 1) * rows
        total += 4 * costs.row_elements * held / (costs.copy_rate * costs.group * costs.shrink)
        total += costs.allocation_seconds
        gain = costs.drafts if costs.product_gain is None else costs.product_gain
        step = costs.drafts * 2 * costs.row_elements * held / (gain * costs.product_rate)
        total += rows / costs.accepted * step
    return total


WORKLOADS = {
    "plain": {},
    "allocation cost": {"allocation_seconds": 900.0},
    "grouped and quantized": {"group": 4, "shrink": 2},
    "speculative": {"drafts": 26, "accepted": 4},
    "speculative, shared half": {"drafts": 26, "accepted": 4, "product_gain": 13},
}


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_the_closed_form_is_the_sum_over_steps(workload: dict[str, float]) -> None:
    costs = GrowthCosts(copy_rate=3.0, product_rate=7.0, row_elements=5.0, **workload)
    for allocations in (1, 2, 8, 64, 512):
        expected = summed(allocations, 512, costs)
        assert attention_seconds(allocations, 512, costs) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@given(limit=st.integers(16, 1500), ratio=st.floats(0.02, 1.0))
@settings(max_examples=20, deadline=None)
def test_best_allocations_is_the_minimum_by_brute_force(
    workload: dict[str, float], limit: int, ratio: float
) -> None:
    costs = GrowthCosts.of_ratio(ratio, **workload)
    brute = min(range(1, limit + 1), key=lambda t: attention_seconds(t, limit, costs))
    assert abs(best_allocations(limit, costs) - brute) < 1


@pytest.mark.parametrize("ratio", [0.02, 0.1, 0.5])
def test_rounding_keeps_the_cheapest_power_of_two(ratio: float) -> None:
    costs = GrowthCosts.of_ratio(ratio)
    for limit in (128, 512, 2048, 131072):
        powers = [2**p for p in range(int(math.log2(limit)) + 1)]
        cheapest = min(powers, key=lambda t: attention_seconds(t, limit, costs))
        assert nearest_power_of_two(best_allocations(limit, costs)) == cheapest


@pytest.mark.parametrize(
    ("limit", "allocations"),
    [
        (512, 8),  # Fig. 7 and the text: sqrt(0.1 * 512) = 7.2
        (128, 4),  # 3.6; Fig. 8 found 8, which needs C' = 0.5
        (2048, 16),  # 14.3; Fig. 8 found 32, likewise
        (1024, 8),  # 10.1; Fig. 5 found 16, which C' >= 0.125 gives
    ],
)
def test_the_papers_ratio_gives(limit: int, allocations: int) -> None:
    assert nearest_power_of_two(best_allocations(limit, PAPER)) == allocations


@pytest.mark.parametrize(("limit", "allocations"), [(128, 8), (512, 16), (2048, 32)])
def test_figure_8_is_the_model_at_half_a_row(limit: int, allocations: int) -> None:
    costs = GrowthCosts.of_ratio(0.5)
    assert nearest_power_of_two(best_allocations(limit, costs)) == allocations


@pytest.mark.parametrize(("limit", "allocations"), [(1024, 16), (4096, 32)])
def test_figure_9_grouped_queries(limit: int, allocations: int) -> None:
    costs = GrowthCosts.of_ratio(0.1, group=4)  # Llama-3-8B: 32 query heads, 8 key/value heads
    assert nearest_power_of_two(best_allocations(limit, costs)) == allocations


def test_table_1_speculative_decoding() -> None:
    costs = GrowthCosts.of_ratio(0.1, drafts=26, accepted=4)
    assert nearest_power_of_two(best_allocations(4096, costs)) == 8


@given(st.floats(0.01, 10), st.integers(16, 10_000), st.integers(1, 8), st.floats(1, 4))
def test_scaling_laws(ratio: float, limit: int, group: int, accepted: float) -> None:
    def squared(**workload: float) -> float:
        # A short context would be clamped at T = 1: a long one shows the law
        return best_allocations(limit * 10**6, GrowthCosts.of_ratio(ratio, **workload)) ** 2

    assert squared() == pytest.approx(ratio * limit * 10**6)  # Eq. 7
    assert squared(group=group, shrink=2) == pytest.approx(2 * group * squared())  # Eq. 8
    assert squared(drafts=9, accepted=accepted) == pytest.approx(squared() / accepted)  # Eq. 9


@pytest.mark.parametrize("ratio", [1e-9, 1e9])
def test_allocations_stay_between_one_and_the_limit(ratio: float) -> None:
    best = best_allocations(100, GrowthCosts.of_ratio(ratio))
    assert best == (1 if ratio < 1 else 100)


@given(st.floats(1, 1e9))
def test_nearest_power_of_two(value: float) -> None:
    power = nearest_power_of_two(value)
    assert power & (power - 1) == 0
    assert abs(math.log2(power / value)) <= 0.5 + 1e-9


@given(st.integers(1, 200_000), st.floats(1, 1000))
def test_spare_rows_is_a_power_of_two_within_the_limit(limit: int, allocations: float) -> None:
    rows = spare_rows(limit, allocations)
    assert 1 <= rows <= limit
    assert rows == limit or rows & (rows - 1) == 0


def seconds_times_bytes(rows: int, limit: int, copy_cost: float) -> float:
    """Decode `limit` rows with growths of `rows`, and add up what is moved, read and held."""
    capacity = moved = read = held = 0
    for used in range(limit):
        if used == capacity:
            moved += used
            capacity += rows
        read += used
        held += capacity
    return (read + copy_cost * moved) * held


@pytest.mark.parametrize("limit", [2048, 16384])
@pytest.mark.parametrize("copy_cost", [0.5, 2.0])
def test_the_kernels_rows_spend_the_least_seconds_times_bytes(limit: int, copy_cost: float) -> None:
    rows = kernel_rows(limit * 100, copy_cost / 100)  # so large that the copies' share is no limit
    assert rows == nearest_power_of_two(math.sqrt(copy_cost * limit))
    best = min(
        (2**power for power in range(12)), key=lambda r: seconds_times_bytes(r, limit, copy_cost)
    )
    assert best in (rows // 2, rows, rows * 2)
    assert seconds_times_bytes(rows, limit, copy_cost) < 1.05 * seconds_times_bytes(
        best, limit, copy_cost
    )


@given(st.integers(1, 200_000), st.floats(0.1, 50), st.floats(1, 8))
def test_copies_take_a_small_share_of_reading(limit: int, cost: float, accepted: float) -> None:
    rows = kernel_rows(limit, cost, accepted)
    assert rows == limit or rows & (rows - 1) == 0
    assert rows == limit or cost * accepted / rows <= COPY_SHARE * math.sqrt(2)
