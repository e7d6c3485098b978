"""Who starts next, and who gives way. Also tests fairness.py."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffice.engine.admission import below, estimated_wait, in_order, note_start, who_gives_way
from suffice.engine.fairness import OUTPUT_WEIGHT, FairShare


@dataclass(eq=False)
class Asking:
    arrival: int
    priority: int = 0
    key: str = ""
    overtaken: int = 0


def nothing(key: str) -> float:
    return 0.0


def arrivals(found: list[Asking]) -> list[int]:
    return [each.arrival for each in found]


def test_equals_start_in_the_order_in_which_they_came() -> None:
    assert arrivals(in_order([Asking(at) for at in (3, 1, 2)], nothing)) == [1, 2, 3]


def test_a_smaller_priority_comes_first() -> None:
    assert arrivals(in_order([Asking(1), Asking(2, -1), Asking(3, 5)], nothing)) == [2, 1, 3]


def test_a_key_that_was_served_less_comes_first() -> None:
    served = {"a": 100.0, "b": 10.0}
    waiting = [Asking(1, key="a"), Asking(2, key="b"), Asking(3, key="a")]
    assert arrivals(in_order(waiting, served.__getitem__)) == [2, 1, 3]


def test_priority_goes_before_what_a_key_was_served() -> None:
    served = {"busy": 100.0, "idle": 0.0}
    waiting = [Asking(1, 0, "idle"), Asking(2, -1, "busy")]
    assert arrivals(in_order(waiting, served.__getitem__)) == [2, 1]


def test_nobody_is_overtaken_more_often_than_allowed() -> None:
    old, waiting = Asking(0, priority=9), [Asking(0, priority=9)]
    old = waiting[0]
    for arrival in range(1, 20):
        waiting.append(Asking(arrival))
        started = in_order(waiting, nothing, most=5)[0]
        waiting.remove(started)
        note_start(started, waiting)
        if started is old:
            break
    assert (old.overtaken, arrival) == (5, 6)


def test_the_newest_of_the_lowest_priority_gives_way() -> None:
    running = [Asking(1, 1), Asking(2, 0), Asking(3, 1), Asking(4, 0)]
    assert who_gives_way(running) is running[2]
    assert who_gives_way(below(0, running)) is running[2]
    assert below(1, running) == []
    assert who_gives_way([]) is None


def test_who_was_overtaken_often_is_not_parked_for_others() -> None:
    old, new = Asking(1, 5, overtaken=32), Asking(2, 5, overtaken=31)
    assert below(0, [old, new]) == [new]
    assert who_gives_way([old, new]) is new


def test_the_wait_follows_from_the_last_starts() -> None:
    assert estimated_wait(4, [10.0, 10.5, 11.0]) == pytest.approx(2.0)
    assert estimated_wait(4, []) == estimated_wait(4, [1.0]) == 1.0
    assert estimated_wait(10**9, [0.0, 1.0]) == 600.0


def test_two_keys_share_alike_whatever_they_ask_for() -> None:
    """One asks for much more and longer requests; what is served differs by one request."""
    shares, waiting = FairShare(), list[Asking]()
    numbers = itertools.count()
    for key, count in (("greedy", 60), ("modest", 20)):
        shares.join(key, {each.key for each in waiting})
        waiting += [Asking(next(numbers), key=key) for _ in range(count)]
    sizes = {"greedy": 50, "modest": 10}
    while any(each.key == "modest" for each in waiting):
        started = in_order(waiting, shares.served, most=10**9)[0]
        waiting.remove(started)
        shares.charge(started.key, prompt=sizes[started.key], output=5)
        assert abs(shares.served("greedy") - shares.served("modest")) <= 50 + 5 * OUTPUT_WEIGHT
    assert any(each.key == "greedy" for each in waiting), "it is still being served"


def test_who_was_away_does_not_save_up() -> None:
    shares = FairShare()
    shares.join("a", ())
    shares.charge("a", prompt=1000)
    shares.join("b", {"a"})
    assert shares.served("b") == 1000
    shares.charge("b", output=3)
    shares.join("b", {"a", "b"})
    assert shares.served("b") == 1000 + 3 * OUTPUT_WEIGHT, "it is active: nothing changes"
    shares.join("c", ())
    assert shares.served("c") == 0, "nobody is active"


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 9))))
def test_the_order_is_one_of_all_who_wait(given: list[tuple[int, str, int]]) -> None:
    waiting = [Asking(at, *each) for at, each in enumerate(given)]
    found = in_order(waiting, nothing, most=5)
    assert sorted(arrivals(found)) == list(range(len(given)))
    urgent = [each for each in found if each.overtaken >= 5]
    assert found[: len(urgent)] == urgent and arrivals(urgent) == sorted(arrivals(urgent))
