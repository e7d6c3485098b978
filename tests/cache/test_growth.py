"""What every growth policy owes, and what each one does."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffice.cache import GROWTHS, Growth, with_defaults
from suffice.cache.bmc import BMC
from suffice.cache.growth import Double, Iterative, Step, Upfront
from suffice.errors import InputError

SPELLINGS = ["bmc:ratio=0.1", "bmc:rows=64", "iterative", "upfront", "step", "step:7", "double"]


@dataclass(frozen=True)
class Stingy:
    """Broken on purpose: one row short."""

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        return needed - 1


@dataclass(frozen=True)
class Boundless:
    """Broken on purpose: ignores the limit."""

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        return limit + 1


def obeys_the_law(growth: Growth, needed: int, capacity: int, limit: int) -> bool:
    return needed <= growth.next_capacity(needed, capacity, limit) <= limit


@pytest.mark.parametrize("spelling", SPELLINGS)
@given(data=st.data())
def test_capacity_covers_the_need_within_the_limit(spelling: str, data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, 200_000))
    needed = data.draw(st.integers(1, limit))
    capacity = data.draw(st.integers(0, needed - 1))
    assert obeys_the_law(GROWTHS.build(spelling), needed, capacity, limit)


@pytest.mark.parametrize("broken", [Stingy(), Boundless()])
def test_the_law_bites(broken: Growth) -> None:
    assert not obeys_the_law(broken, 5, 4, 8)


def test_every_registered_policy_is_tested_and_frozen() -> None:
    assert {spelling.partition(":")[0] for spelling in SPELLINGS} == set(GROWTHS.names())
    for name in GROWTHS.names():
        growth = GROWTHS.build(name)
        assert is_dataclass(growth) and hash(growth) == hash(GROWTHS.build(name))


def test_whole_steps_are_not_exceeded() -> None:
    """Rows that fill steps need no step more; a short text takes as many rows as it has."""
    assert [Step(256).next_capacity(rows, 0, 10_000) for rows in (256, 257)] == [256, 512]
    assert [BMC(128).next_capacity(rows, 0, 10_000) for rows in (128, 129)] == [128, 256]
    short = BMC(copy_cost=1000.0)
    assert [short.next_capacity(rows, 0, 8192) for rows in (64, 65, 128)] == [64, 128, 128]


def capacities(growth: Growth, limit: int, prompt: int = 1) -> list[int]:
    """Every capacity a cache passes through while it fills one row at a time."""
    seen: list[int] = []
    for needed in range(prompt, limit + 1):
        if not seen or needed > seen[-1]:
            seen.append(growth.next_capacity(needed, seen[-1] if seen else 0, limit))
    return seen


@pytest.mark.parametrize(
    ("growth", "expected"),
    [
        (BMC(rows=4), [4, 8, 12, 16]),
        (BMC(ratio=1.0), [4, 8, 12, 16]),  # T = sqrt(16)
        (BMC(ratio=1.0, group=4), [2, 4, 6, 8, 10, 12, 14, 16]),
        (BMC(rows=6), [6, 12, 16]),
        (Iterative(), list(range(1, 17))),
        (Upfront(), [16]),
        (Step(5), [5, 10, 15, 16]),
        (Double(), [1, 2, 4, 8, 16]),
    ],
)
def test_a_cache_of_sixteen_rows_grows_through(growth: Growth, expected: list[int]) -> None:
    assert capacities(growth, 16) == expected


def test_a_policy_takes_what_it_left_open_from_the_model() -> None:
    assert with_defaults(BMC(group=2), group=8, ratio=0.1) == BMC(group=2, ratio=0.1)
    assert with_defaults(Step(5), group=8, rows=7) == Step(5)


def test_a_prompt_is_allocated_at_once() -> None:
    assert capacities(BMC(rows=4), 16, prompt=9) == [12, 16]
    assert capacities(Double(), 16, prompt=5) == [5, 10, 16]


@pytest.mark.parametrize("limit", [128, 512, 2048, 131072])
def test_bmc_makes_as_many_allocations_as_the_model_says(limit: int) -> None:
    growth = BMC(ratio=0.1)
    assert growth.allocations(limit) * growth.spare(limit) == limit
    if limit <= 2048:
        assert len(capacities(growth, limit)) == growth.allocations(limit)


def test_bmc_of_one_row_is_iterative() -> None:
    assert capacities(BMC(rows=1), 40) == capacities(Iterative(), 40)


def test_a_single_field_may_be_given_bare() -> None:
    assert GROWTHS.build("step:256") == GROWTHS.build("step:rows=256") == Step(256)
    assert GROWTHS.build("step") == Step(256)


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("bmc:64", "growth 'bmc': '64' is not of the form option=value"),
        ("step:", "growth 'step:': no option follows the colon: leave it out"),
        ("step:0", "growth 'step': rows=0 must be at least 1"),
        ("step:many", "growth 'step': rows='many' must be a whole number"),
        ("step:3000000000", "growth 'step': rows='3000000000' must be between -2147483647 and"),
        ("step:1,2", "growth 'step': option 'rows' is given twice"),
        (
            "bmc:rows=8,,ratio=1",
            "growth 'bmc': 'rows=8,,ratio=1' has a comma with no option next to",
        ),
        ("step:8,", "growth 'step': '8,' has a comma with no option next to it"),
        ("bmc:rows=0", "growth 'bmc': rows=0 must be at least 1"),
        ("bmc:ratio=-1", "growth 'bmc': ratio=-1.0 must be positive and finite"),
        ("bmc:ratio=nan", "growth 'bmc': ratio=nan must be positive and finite"),
        ("bmc:accepted=0", "growth 'bmc': accepted=0.0 must be positive and finite"),
        ("bmc:row=8", "growth 'bmc' has no option 'row'. Did you mean 'rows'?"),
        ("doubel", "unknown growth 'doubel'. Did you mean 'double'?"),
    ],
)
def test_bad_spellings_say_what_is_allowed(spelling: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        GROWTHS.build(spelling)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
