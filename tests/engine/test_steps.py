"""Prompts fill what a step has left, in turn."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffice.engine.steps import MOST_PROMPTS, Times, Turns

TILE = 30


@dataclass(eq=False)
class Asking:
    left: int


def turns(plain: float, token: float, samples: int = 4, step: float = 0.040) -> Turns[Asking]:
    made: Turns[Asking] = Turns(TILE, step)
    for _ in range(30):
        made.times.learn(samples, 0, plain)
        made.times.learn(samples, TILE, plain + TILE * token)
    return made


def served(made: Turns[Asking], prompts: list[Asking], samples: int) -> list[list[int]]:
    """Run a step; return, for each of its calls, how many tokens each prompt ran."""
    rounds = made.rounds(prompts, samples)
    for parts in rounds:
        for prompt, count in parts:
            assert 0 < count <= TILE
            prompt.left -= count
    calls = [{id(prompt): count for prompt, count in parts} for parts in rounds]
    return [[call.get(id(prompt), 0) for prompt in prompts] for call in calls]


def test_a_step_takes_as_many_tiles_as_fit_into_its_time() -> None:
    assert served(turns(0.010, 0.010 / TILE), [Asking(1000)], 4) == [[30]] * 3
    assert served(turns(0.010, 0.020 / TILE), [Asking(1000)], 4) == [[30]]


def test_who_decodes_waits_for_a_part_of_a_call_if_a_whole_one_takes_too_long() -> None:
    made: Turns[Asking] = Turns(64)
    for _ in range(30):
        made.times.learn(4, 64, 0.064)
    for step, tokens in ((0.041, 40), (0.047, 40), (0.020, 32)):
        made.step_seconds = step
        assert [parts[0][1] for parts in made.rounds([Asking(1000)], 4)] == [tokens]
    assert [parts[0][1] for parts in made.rounds([Asking(1000)], 0)] == [64]
    made.step_seconds = 0.100
    assert [parts[0][1] for parts in made.rounds([Asking(1000)], 4)] == [64, 32]


@pytest.mark.parametrize("unit", [8, 32])
def test_parts_are_of_whole_units_but_for_the_last(unit: int) -> None:
    sizes = set()
    for milliseconds in range(1, 300, 7):
        made: Turns[Asking] = Turns(128, unit=unit)
        for _ in range(30):
            made.times.learn(4, 64, 0.064)
        made.step_seconds = milliseconds / 1000
        prompts = [Asking(1000), Asking(2000)]
        for parts in made.rounds(prompts, 4):
            sizes |= {count for _, count in parts}
    assert all(size % unit == 0 for size in sizes) and len(sizes) >= 4


def test_a_call_of_a_slow_model_is_shorter() -> None:
    made: Turns[Asking] = Turns(128)
    for each, tokens in ((0.001, 128), (0.005, 80), (0.1, 32)):
        made.times = Times()
        made.times.learn(0, 128, 128 * each)
        assert [parts[0][1] for parts in made.rounds([Asking(1000)], 0)] == [tokens]


def test_there_is_at_least_one_tile_however_long_a_step_takes() -> None:
    assert served(turns(0.100, 0.100), [Asking(1000)], 4) == [[30]]
    assert served(Turns(TILE), [Asking(1000)], 4) == [[30]], "nothing is known yet"


def test_short_prompts_share_a_call() -> None:
    prompts = [Asking(7), Asking(50), Asking(3), Asking(20)]
    assert served(Turns(TILE), prompts, 0) == [[7, 0, 3, 20]]


def test_prompts_go_round_in_every_second_turn() -> None:
    made, prompts = turns(0.010, 0.020 / TILE), [Asking(900), Asking(600), Asking(700)]
    ran = [served(made, prompts, 4)[0] for _ in range(6)]
    first, second, third = [30, 0, 0], [0, 30, 0], [0, 0, 30]
    assert ran == [first, second, third, second, first, second]


def test_a_newcomer_does_not_wait_behind_long_prompts() -> None:
    made = turns(0.010, 0.020 / TILE)
    long, other = Asking(6000), Asking(6000)
    for _ in range(5):
        served(made, [long, other], 4)
    short, steps = Asking(100), 0
    while short.left:
        served(made, [each for each in (long, other, short) if each.left], 4)
        steps += 1
    assert steps <= 2 * 4


def test_a_long_prompt_goes_on_among_short_ones() -> None:
    made, long = turns(0.010, 0.020 / TILE), Asking(3000)
    for _ in range(60):
        served(made, [long, Asking(60), Asking(60)], 4)
    assert long.left <= 3000 - 60 // 6 * TILE


def test_only_the_first_few_share_the_rows() -> None:
    prompts = [Asking(300) for _ in range(MOST_PROMPTS + 2)]
    made = turns(0.010, 0.0001)
    for _ in range(8):
        served(made, prompts, 4)
    assert all(each.left < 300 for each in prompts[:MOST_PROMPTS])
    assert all(each.left == 300 for each in prompts[MOST_PROMPTS:])


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=7),
    st.integers(0, 8),
    st.floats(1e-6, 1e-2),
    st.floats(1e-3, 1.0),
)
def test_every_prompt_ends_and_none_runs_too_far(
    lengths: list[int], samples: int, token: float, plain: float
) -> None:
    made, prompts = turns(plain, token), [Asking(length) for length in lengths]
    steps = 0
    while any(each.left for each in prompts):
        assert served(made, [each for each in prompts if each.left], samples)
        assert all(each.left >= 0 for each in prompts)
        steps += 1
        assert steps <= sum(lengths), "each step runs at least one token"


def test_the_times_of_steps_are_a_line() -> None:
    times = Times()
    assert times.line() == (0.0, 0.0)
    times.learn(4, 0, 0.012)
    assert times.line() == (0.012, 0.0), "one time says nothing of samples"
    times.learn(1, 0, 0.006)
    assert times.line() == pytest.approx((0.004, 0.002))
    times.learn(2, 0, 0.008)
    assert times.line() == pytest.approx((0.004, 0.002))
    falling = Times()
    falling.learn(1, 0, 0.02)
    falling.learn(9, 0, 0.01)
    assert falling.line() == pytest.approx((0.015, 0.0)), "more samples do not take less"


def test_times_are_learnt_apart_for_samples_and_tokens() -> None:
    times = Times()
    assert (times.plain(3), times.token) == (0.0, None)
    for _ in range(40):
        times.learn(2, 0, 0.008)
        times.learn(8, 0, 0.020)
        times.learn(2, 30, 0.008 + 0.030)
    assert times.plain(0) == 0.0
    assert times.plain(2) == pytest.approx(0.008, rel=0.01)
    assert times.plain(7) == pytest.approx(0.020, rel=0.01)
    assert times.token == pytest.approx(0.001, rel=0.01)


def test_one_slow_step_is_not_believed() -> None:
    times = Times()
    times.learn(1, 0, 0.010)
    times.learn(1, 0, 10.0)
    assert times.plain(1) < 0.020
