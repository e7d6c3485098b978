"""benchmarks/growth/engine.py, caches.py and shares.py on tiny sizes, and their arithmetic."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.growth import caches, engine, shares, use_cases, varied
from benchmarks.peers import batches
from benchmarks.peers.batches import Case
from benchmarks.peers.client import EngineError
from suffice.cache import alike
from suffice.cache.growth import Double, Step
from suffice.cache.kv import KVCache


def test_growth_in_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.record, "BUILD", tmp_path)
    monkeypatch.setattr(engine, "QUICK", tmp_path)
    monkeypatch.setattr(sys, "argv", ["engine", "--quick"])
    assert engine.main() == 0
    found = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert [each["growth"] for each in found] == list(engine.POLICIES) * len(engine.TINY)
    for each in found:
        assert each["seconds"] == pytest.approx(each["steps"] + each["growing"])
        assert min(each["steps"], each["growing"]) > 0
    counts = {each["growth"]: each["allocations"] for each in found}
    assert counts["upfront"] == 1 and counts["iterative"] == 64 and counts["double"] == 7
    assert "speed of bmc over iterative" in (tmp_path / "engine.md").read_text()


def test_one_model_is_measured_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(case: engine.Case, sampling: engine.Sampling) -> list[dict[str, Any]]:
        row = {"model": case.model, "batch": case.batch, "rows": case.rows, "growth": "bmc"}
        return [
            row | {"seconds": seconds} | dict.fromkeys(("r", "allocations", "growing", "held"), 1)
        ]

    monkeypatch.setattr(engine, "measure", measured)
    monkeypatch.setattr(engine, "verdicts", lambda rows: "")
    monkeypatch.setattr(engine.record, "results", lambda script: tmp_path)
    seconds = 1.0
    for models in ([], ["--models", "gemma3-270m"]):
        monkeypatch.setattr(sys, "argv", ["engine", *models])
        assert engine.main() == 0
        seconds += 1
    rows = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert [(row["model"], row["batch"]) for row in rows] == [
        (case.model, case.batch) for case in engine.CASES
    ]
    assert {row["model"] for row in rows if row["seconds"] == 2.0} == {"gemma3-270m"}


def test_every_growth_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A growth of n rows takes n seconds here: half of them are timed, all are counted."""
    monkeypatch.setattr(engine, "growing", lambda full, growth, rows: float(rows))
    monkeypatch.setattr(engine, "first_seconds", lambda full, growth: 0.5)
    case, full = engine.Case("any", 3, 64), Any
    seconds = engine.growth_seconds(full, Step(8), case, engine.Sampling(growths=7))
    assert engine.capacities(Step(8), 64) == list(range(8, 65, 8))
    assert seconds == 3 * (sum(range(8, 57, 8)) + 0.5)
    assert engine.capacities(Double(), 48) == [1, 2, 4, 8, 16, 32, 48]


def test_the_verdict_is_a_geometric_mean() -> None:
    def rows(model: str, **seconds: float) -> list[dict[str, Any]]:
        case = {"model": model, "batch": 1, "rows": 8}
        return [case | {"growth": name, "seconds": value} for name, value in seconds.items()]

    found = rows("a", bmc=2.0, iterative=8.0, upfront=2.0) + rows("b", bmc=1.0, iterative=1.0,
                                                                  upfront=4.0)  # fmt: skip
    lines = engine.verdicts(found).splitlines()
    assert "1.000 | yes" in lines[2] and "2.000 | yes" in lines[3] and "2.000 | yes" in lines[4]


def test_caches_in_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "QUICK", tmp_path)
    monkeypatch.setattr(sys, "argv", ["caches", "--quick"])
    threads = torch.get_num_threads()
    try:
        assert caches.main() == 0
    finally:
        torch.set_num_threads(threads)
    found = json.loads((tmp_path / "caches.json").read_text())["rows"]
    assert [each["attention"] for each in found] == ["sdpa"] * 4 + ["eager"] * 4
    assert all(each["equal"] == "2 of 2" and each["seconds"] > 0 for each in found)


def test_copies_have_the_policys_capacity() -> None:
    cache = KVCache(alike(1, 1, 16), growth=Step(8), limit=64)
    cache.reserve(20)
    cache.advance(20)
    full = engine.Sequence("full", cache)
    assert engine.copied(full, Step(8), 16, 0).cache.capacity == 16
    assert engine.copied(full, Step(8), 16, 1).cache.capacity == 24


def test_use_cases_are_compared_by_geometric_means() -> None:
    speeds = {"bf16": [40.0, 60.0], "the file": [80.0, 80.0], "vllm": [20.0, 20.0]}
    cases = {"chat-1": speeds | {"transformers": [10.0, 20.0]},
             "long-1": {name: [10.0, 10.0] for name in speeds}}  # fmt: skip
    data = {"cases": cases, "rounds": 2, "threads": 2}
    assert use_cases.ratios(data, "chat-1", "bf16", "vllm") == [2.0, 3.0]
    assert use_cases.mean_ratio(data, "bf16", "vllm") == pytest.approx((2.5 * 1.0) ** 0.5)
    assert use_cases.mean_ratio(data, "bf16", "transformers") == pytest.approx(3.5)
    text = use_cases.report(data)
    assert "| bf16 | vllm | 1.36 | 1.58 | yes |" in text
    assert "| the file | vllm | 2.5 | 2.00 | **no** |" in text
    assert "1.59 | 1.61 |" in text and use_cases.engines_of("long-1")[-1] == "vllm"


def test_cases_are_stored_one_by_one_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, int]] = []

    class Engines:
        def __init__(self, options: Any) -> None:
            self.closed, self.without = False, options.without
            opened.append(self)

        def seconds(self, name: str, case: Case, seed: int) -> float:
            asked.append((name, case.count))
            if case.count == 1920:
                raise EngineError("it fell over")
            return 0.5

        def close(self) -> None:
            self.closed = True

    opened: list[Engines] = []
    monkeypatch.setattr(batches, "Engines", Engines)

    def run(*cases: str) -> int:
        given = ["use_cases", "--rounds", "1", "--output", str(tmp_path), "--cases", *cases]
        monkeypatch.setattr(sys, "argv", given)
        return use_cases.COMPARISON.main()

    assert run("chat-8") == 0
    assert asked[:4] == [(name, 2) for name in use_cases.engines_of("chat-8")], "none counts"
    assert run("chat-1", "answers-1") == 1 and opened[-1].closed
    assert "it fell over" in capsys.readouterr().err
    asked.clear()
    assert run("chat-32", "--without", "vllm") == 0
    assert "vllm" not in {name for name, _ in asked} and ("transformers", 128) in asked
    cases = json.loads((tmp_path / "use_cases.json").read_text())["cases"]
    assert cases.pop("chat-32").keys() == {"bf16", "the file", "transformers"}
    assert list(cases) == ["chat-1", "chat-8"], "in the order of the table"
    assert cases["chat-1"]["vllm"] == [256.0] and cases["chat-8"]["bf16"] == [2048.0]


def test_requests_of_different_lengths_count_what_was_asked_for() -> None:
    case = varied.Varied.of(((3, 5), (40, 20)))
    asked = case.asked(1, 500, quick=False)
    assert [len(prompt) for prompt in asked["prompts"]] == [3, 40] and asked["count"] == [5, 20]
    assert case.per_second(2.0) == 12.5 and (case.prompt, case.batch, case.count) == (40, 2, 20)
    speeds = {"bf16": [40.0], "the file": [80.0], "transformers": [20.0]}
    data = {"cases": {"gsm8k-8": speeds}, "rounds": 1, "threads": 2, "hf_dtype": "float32"}
    text = varied.report(data)
    assert "| 8 | suffice, bf16 | 40 (40 to 40) | - | 2 (2 to 2) |" in text
    assert "transformers in float32" in text


def test_the_parts_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["shares", "--quick", "--output", str(tmp_path)])
    assert shares.main() == 0
    rows = json.loads((tmp_path / "shares.json").read_text())["rows"]
    assert [(each["growth"], each["depth"]) for each in rows] == [
        (growth, depth) for depth in (16, 46) for growth in ("iterative", "upfront")
    ]
    for each in rows:
        parts = each["update"], each["attention"]
        assert min(parts) > 0 and sum(parts) < each["layers"] < each["all"]
    text = (tmp_path / "shares.md").read_text()
    assert "| paper, iterative | 60 to 70 % | 15 to 20 % |" in text
    assert text.count("| 16 |") == text.count("| 46 |") == 1


def test_layers_that_were_not_timed_count_too() -> None:
    found = shares.scaled({"update": 1.0, "attention": 2.0, "layers": 4.0, "all": 5.0}, 2)
    assert found == {"update": 16.0, "attention": 32.0, "layers": 64.0, "all": 65.0}
    rows = [{"growth": "iterative", **found}, {"growth": "upfront", **found, "update": 0.0}]
    assert shares.shares_of(rows, "iterative") == {
        "update": pytest.approx(16 / 65),
        "attention": pytest.approx(32 / 65),
        "rest": pytest.approx(17 / 65),
    }
