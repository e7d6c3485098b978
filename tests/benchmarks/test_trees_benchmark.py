"""Sequoia's trees by brute force, and the benchmark of trees and chains on a tiny model."""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny
from benchmarks.speculate import cells, sequoia, trees, trees_report
from suffice.speculate.stats import DraftStats

Ranks = tuple[int, ...]  # of a draft and of those on the way to it


def trees_of(count: int, depths: int, ranks: int) -> set[frozenset[Ranks]]:
    """Return every tree of `count` drafts that has each draft's parent and the siblings before."""
    found = {frozenset[Ranks]()}
    for _ in range(count):
        found = {
            tree | {path}
            for tree in found
            for parent in [(), *tree]
            for rank in range(ranks)
            if len(parent) < depths
            and (path := (*parent, rank)) not in tree
            and (rank == 0 or (*parent, rank - 1) in tree)
        }
    return found


def accepted(tree: frozenset[Ranks], rates: sequoia.Rates) -> float:
    total = 0.0
    for path in tree:
        chance = 1.0
        for depth, rank in enumerate(path):
            chance *= rates[min(depth, len(rates) - 1)][rank]
        total += chance
    return total


def random_rates(rng: random.Random, depths: int, ranks: int) -> list[list[float]]:
    whole = [[rng.random() for _ in range(ranks)] for _ in range(depths)]  # in no order
    return [[rate / sum(level) * 0.95 for rate in level] for level in whole]


@pytest.mark.parametrize("seed", range(8))
def test_each_shape_is_the_best_of_its_kind(seed: int) -> None:
    rates = random_rates(random.Random(seed), 3, 3)
    best, ours, chains = (
        kind(rates, 5)
        for kind in (sequoia.best_trees, sequoia.best_with_siblings, sequoia.best_chains)
    )
    for count in range(6):
        every = trees_of(count, 5, 3)
        assert best[count] == pytest.approx(max(accepted(tree, rates) for tree in every))
        # Only first siblings have children.
        caterpillars = [tree for tree in every if all(not any(path[:-1]) for path in tree)]
        assert ours[count] == pytest.approx(max(accepted(tree, rates) for tree in caterpillars))
        chain = frozenset((0,) * depth for depth in range(1, count + 1))
        assert chains[count] == pytest.approx(accepted(chain, rates))


def test_more_freedom_expects_more() -> None:
    rates = random_rates(random.Random(9), 4, 5)
    best, ours, chains = (
        kind(rates, 31)
        for kind in (sequoia.best_trees, sequoia.best_with_siblings, sequoia.best_chains)
    )
    assert len(best) == len(ours) == len(chains) == 32
    for tree, own, chain in zip(best, ours, chains, strict=True):
        assert tree >= own - 1e-12 and own >= chain - 1e-12
    assert best[31] > ours[31] > chains[31]
    assert all(after >= before for before, after in itertools.pairwise(best))


def test_the_numbers_of_trees() -> None:
    assert [len(trees_of(count, 9, 9)) for count in range(5)] == [1, 1, 2, 5, 14], "Catalan"


def found(folder: Path) -> tuple[dict[str, Any], str]:
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text()), path.with_suffix(".md").read_text()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return tiny.shallow(folder, max_position_embeddings=512)


def run(monkeypatch: pytest.MonkeyPatch, model: Path, folder: Path, *more: str) -> int:
    rows = [
        {"question_id": at, "category": category, "turns": [text]}
        for at, (category, text) in enumerate([("qa", "a b a b a b"), ("rag", "c d c d c")])
    ]
    folder.mkdir(exist_ok=True)
    (folder / "spec-bench-questions.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    arguments = ["trees", "--model", str(model), "--out", str(folder / "out"), "--threads", "1"]
    arguments += ["--data-dir", str(folder), "--context", "200", "--max-tokens", "24"]
    monkeypatch.setattr(sys, "argv", [*arguments, *more])
    return trees.main()


def test_trees_and_chains_of_a_tiny_model(
    monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    families = ["suffix, all checked", "self, all checked", "self"]
    assert run(monkeypatch, model, tmp_path, "--temperatures", "0", "--families", *families) == 0
    data, drawn = found(tmp_path / "out")
    places = data["cells"]
    assert set(places) == {"qa at temperature 0", "rag at temperature 0"}
    for cells_of in places.values():
        ways = cells_of["self, all checked"]["ways"]
        none, chain, two, three = ways.values()
        assert none["drafted"] == none["accepted"] == 0 < none["steps"] == none["tokens"]
        assert 0 < chain["drafted"] < two["drafted"] < three["drafted"]
        assert 0 < chain["accepted"] <= two["accepted"]
        assert all(way["same"] == 1 and way["seconds"] > 0 for way in ways.values())
        ranks = cells_of["rates"]["ranks"]
        assert len(ranks[0]) >= 3 and all(right <= seen for row in ranks for seen, right in row)
        assert sum(right for _, right in ranks[0]) > 0
    assert "Temperature 0, self, all checked:" in drawn and "Sequoia's tree" in drawn
    assert "the bar is 0.97" in drawn
    assert len(list((tmp_path / "out").glob("*.png"))) == 2
    again = data["cells"]
    assert run(monkeypatch, model, tmp_path, "--temperatures", "0", "--families", *families) == 0
    assert found(tmp_path / "out")[0]["cells"] == again, "nothing is measured twice"
    more = ["--temperatures", "0", "1", "--families", "suffix", "--categories", "qa", "--no-rates"]
    assert run(monkeypatch, model, tmp_path, *more) == 0
    data, drawn = found(tmp_path / "out")
    assert (
        "Temperature 1, suffix:" in drawn and "suffix" not in data["cells"]["rag at temperature 0"]
    )
    sampled = data["cells"]["qa at temperature 1"]["suffix"]["ways"]
    assert all(way["same"] == 1 for way in sampled.values()), "the same seed"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--limit", "0"], "--limit: must be at least 1"),
        (["--deep", "177"], "--deep 177: must be 1 to 176, --context less --max-tokens"),
        (["--clock", "cpu", "--threads", "2"], "--clock cpu: counts the time of one thread"),
    ],
)
def test_bad_options(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    assert run(monkeypatch, Path("no-model"), tmp_path, *more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_every_way_answers_every_prompt_and_the_order_rotates() -> None:
    calls: list[str] = []

    def answers(name: str) -> Any:
        def answer(question: Any) -> Any:
            calls.append(name)
            return [1, 2 + (name == "c")], 1, 2.0, DraftStats(steps=1)

        return answer

    asked = [cells.Question(at, [3]) for at in range(2)]
    *_, cell = trees.in_turn({name: answers(name) for name in "abc"}, asked)
    assert calls == ["a", "b", "c", "b", "c", "a"]
    assert cell["prompts"] == 2 and cell["ways"]["a"]["seconds"] == 4
    assert [cell["ways"][name]["same"] for name in "abc"] == [2, 2, 0]


def test_rates_are_those_of_all_cells_together() -> None:
    parts = [{"ranks": [[(40, 20), (40, 10)], [(30, 30)], [(29, 29)]]}, {"ranks": [[(60, 30)]]}]
    assert trees_report.rates_of(parts) == [[0.5, 0.25], [1.0]], "the third depth is too rare"
