"""Short forms of the proofs of benchmarks/serve: texts under faults, clients that leave, a soak."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.serve import asking, disconnects, exactness, servers, soak
from benchmarks.serve.asking import Answer, Ask
from benchmarks.serve.servers import Place

SMALL = asking.Sizes(shared=40, own=8, output=24, beginnings=3)


@pytest.fixture(scope="module")
def place(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(words, words, threads=1)


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "LOG", tmp_path)


def test_texts_under_faults_are_those_undisturbed(place: Place) -> None:
    plan = exactness.Plan(40, seed=3, sizes=SMALL, together=8, pause=0.001, kill_answers=20)
    # Too little for all, and enough for a request of several samples whose drafts reserve rows.
    found = exactness.run(plan, place, ["--kv-cache-bytes", "1280KiB"])
    assert found["errors"] == [] and found["different"] == []
    assert found["equal"] == 40 and found["kills"] >= 1
    assert found["clients_left"] > 0 and found["structured"] > 0 and found["bytes_left"] == 0
    assert found["alone"] == 2
    table = exactness.table({"found": found, "instances": 2})
    assert "| undisturbed requests that also ran alone, and gave the same | 2 |" in table


def test_a_text_that_is_another_one_alone_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(port: int, asks: Iterable[Ask], together: int) -> list[Answer]:
        asked.append(len(list(asks)))
        return [Answer(["alone" if together == 1 else "together"], ["stop"])] * asked[-1]

    asked: list[int] = []
    monkeypatch.setattr(exactness, "answered", answered)
    plan = exactness.Plan(30, sizes=SMALL, alone=10)
    asks = [asking.draw(0, number, SMALL) for number in range(plan.requests)]
    found, some, wrong = exactness.undisturbed(0, plan, asks)
    assert len(found) == 30 and asked == [len({repr(ask.alone()) for ask in asks}), some]
    assert some == len(wrong) == 3 and wrong[0].startswith("another text alone: ")


def test_work_ends_when_clients_leave(place: Place) -> None:
    sizes = disconnects.Sizes(prompt=200, output=700)
    found = disconnects.run(place, 2, sizes)
    assert found["disconnects"] == 14, "of two blockers in the queue, too"
    assert found["left"] == {}
    assert all(sum(steps.values()) >= 2 for steps in found["steps"].values())


def test_steps_after_a_client_left() -> None:
    notes = [
        (1.0, 4, "a", "submit"),
        (1.1, 5, "b", "token"),
        (1.2, 6, "b", "token"),
        (1.3, 7, "b", "token"),
        (1.3, 7, "a", "end"),
        (2.0, 7, "c", "submit"),
        (2.1, 8, "b", "token"),
        (2.2, 9, "b", "token"),
        (2.2, 9, "c", "end"),
    ]
    left = {"a": ("queued", 1.15), "c": ("prompt", 1.9), "never": ("compiling", 1.0)}
    # The step after the 5th ran with it; the 7th, without it, told of its end.
    assert disconnects.steps_after(notes, left) == {"a": 1, "c": 2, "never": 0}


def test_a_short_soak(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "PARTS", 3)
    found = soak.run(place, 600.0, SMALL, clients=6, limit=60)
    assert found["lost"] == [] and found["unplanned"] == 0
    assert found["requests"] >= 60 and found["left"] > 0 and found["engine_lived"]
    assert found["under_way"] == 0 and found["bytes_left"] == 0
    assert {"200", "400"} <= set(found["statuses"])
    assert len(found["rests"]) == soak.PARTS
    assert all(each["front"] > 0 and each["engine"] > 0 for each in found["rests"])


def test_growth_is_of_what_follows_the_warm_up() -> None:
    rests = [{"front": 100}, {"front": 130}, {"front": 110}]
    assert soak.growth(rests, "front") == pytest.approx(0.1)


def test_what_a_client_saw_before_it_left_must_begin_the_text() -> None:
    alone = Answer(["one two"], ["stop"])
    assert not asking.differs(Answer(["one"], [None]), alone, left=True)
    assert asking.differs(Answer(["one x"], [None]), alone, left=True)
    assert asking.differs(Answer(["one"], ["stop"]), alone, left=False)
    assert not asking.differs(Answer(["one two"], ["stop"]), alone, left=False)


def test_the_same_seed_draws_the_same_requests() -> None:
    asks = [asking.draw(1, number, SMALL) for number in range(200)]
    assert asks == [asking.draw(1, number, SMALL) for number in range(200)]
    bodies = [repr(ask.alone()) for ask in asks]
    assert 100 < len(set(bodies)) < 200, "some come again"
    assert any(ask.leave is not None for ask in asks) and any(ask.structured for ask in asks)
