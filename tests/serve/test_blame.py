"""Whom the deaths of engines are blamed on: blame.py."""

from __future__ import annotations

import pytest

from suffice.serve.processes import wire
from suffice.serve.processes.blame import MOST_BLAMED, SUSPECT, Blame
from suffice.serve.processes.pending import Ticket


class Engine:
    """What is sent to it, in each of its lives."""

    def __init__(self, places: int = 16) -> None:
        self.sent: list[str] = []
        self.blame = Blame(lambda ticket: self.sent.append(ticket.work.id), places)

    def begin(self, tickets: list[Ticket]) -> list[str]:
        self.sent.clear()
        self.blame.begin(tickets)
        return self.sent


def ticket(name: str, samples: int = 1, priority: int = 0, tries: int = 0) -> Ticket:
    work = wire.Submit(name, [1], {}, priority=priority)
    return Ticket(work, samples, 0, None, tries=tries)  # type: ignore[arg-type]


def test_only_requests_with_a_place_are_blamed() -> None:
    engine = Engine(places=3)
    given = [ticket("a", 2, 1), ticket("b", 2, 1), ticket("c", 1, 1), ticket("d", 1, 0)]
    assert engine.begin(given) == ["a", "b", "c", "d"]
    assert engine.blame.died() == []
    assert [each.tries for each in given] == [1, 0, 0, 1]


def test_of_several_without_a_token_none_is_to_blame() -> None:
    engine, given = Engine(), [ticket("a"), ticket("b")]
    engine.begin(given)
    assert engine.blame.died() == []
    assert [(each.tries, each.blamed) for each in given] == [(1, 0), (1, 0)]


def test_the_suspected_are_tried_one_by_one_after_the_others() -> None:
    engine = Engine()
    one, two, new = ticket("one", tries=SUSPECT), ticket("two", tries=SUSPECT), ticket("new")
    late = ticket("late")
    assert engine.begin([one, two, new]) == ["new"]
    engine.blame.passed(new)
    assert engine.sent == ["new", "one"]
    engine.blame.add(late)
    assert engine.sent == ["new", "one"], "it waits for those before it"
    engine.blame.passed(one)
    engine.blame.passed(two)
    assert engine.sent == ["new", "one", "two", "late"]


@pytest.mark.parametrize("held", [False, True])
def test_one_that_ends_lets_the_next_in(held: bool) -> None:
    engine = Engine()
    one, two = ticket("one", tries=SUSPECT), ticket("two", tries=SUSPECT)
    engine.begin([one, two])
    engine.blame.passed(two if held else one)
    assert engine.sent == (["one"] if held else ["one", "two"])


def test_blame_goes_around() -> None:
    engine = Engine()
    given = [ticket(str(at), tries=SUSPECT) for at in range(3)]
    tried: list[str] = []
    lost: list[Ticket] = []
    while not lost:
        tried += engine.begin(given)
        lost = engine.blame.died()
    assert tried == ["0", "1", "2"] * 2 + ["0"] and lost == [given[0]]
    assert lost[0].blamed == MOST_BLAMED
