"""The benchmark of drawn tokens: equal work on both sides, rounds in turn, targets judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.engine import sampling
from benchmarks.harness import record
from suffice.errors import InputError
from suffice.eval import bench


def ask(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sampling", *arguments])
    return sampling.SCRIPT.main()


def test_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "BUILD", tmp_path)
    monkeypatch.setattr(sampling, "LEAST", {1: 0.95, 8: 0.95})
    assert ask(monkeypatch, "--quick", "--output", str(tmp_path / "out")) == 0
    found = json.loads((tmp_path / "out" / "sampling.json").read_text())
    assert set(found["settings"]) == set(sampling.SETTINGS)
    for by_count in found["settings"].values():
        assert [int(count) for count in by_count] == list(sampling.LEAST)
        for turns in by_count.values():
            assert len(turns) == 2 and all(min(turn.values()) > 0 for turn in turns)
    drawn = (tmp_path / "out" / "sampling.md").read_text()
    assert "no figure means anything" in drawn
    assert "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, repetition_penalty 1." in drawn


def test_both_sides_have_the_same_settings_but_for_the_drawing() -> None:
    drawn, greedy = sampling.drawn(64, 3), sampling.greedy(64, 3)
    assert not drawn.greedy and greedy.greedy
    assert (drawn.max_tokens, drawn.ignore_eos) == (65, True)
    assert {name for name, value in vars(drawn).items() if value != vars(greedy)[name]} == {
        "temperature"
    }


def output(count: int, seconds: float = 1.0) -> Any:
    return SimpleNamespace(
        error=None,
        outputs=[SimpleNamespace(token_ids=list(range(count)))],
        metrics=SimpleNamespace(decode_seconds=seconds),
    )


def test_a_stream_is_timed_from_its_first_token_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(sampling.time, "perf_counter", lambda: next(clock))
    pieces = [("", output(count)) for count in (1, 2, 4, 9)]
    llm: Any = SimpleNamespace(stream=lambda prompt, params: iter(pieces))
    assert sampling.stream_rate(llm, [1], sampling.drawn(8, 0)) == 4.0, "8 tokens in 2 seconds"


def test_a_batch_is_timed_by_the_steps_after_its_last_prompt() -> None:
    answers = [output(9, 100.0), output(9, 2.0)]
    llm: Any = SimpleNamespace(generate=lambda batch, params, use_tqdm: answers)
    assert sampling.batch_rate(llm, [[1], [2]], sampling.drawn(8, 0)) == 8.0
    answers[0].error = "no memory"
    with pytest.raises(InputError, match="no memory"):
        sampling.batch_rate(llm, [[1], [2]], sampling.drawn(8, 0))


def test_bare_steps_are_as_many_and_as_deep_as_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def measure(runner: Any, cases: Any, repetitions: int, **_: float) -> Any:
        asked.extend((cases, repetitions))
        return iter([SimpleNamespace(mean=7.0)])

    monkeypatch.setattr(bench, "measure", measure)
    llm: Any = SimpleNamespace(
        runner=None, tokenizer=SimpleNamespace(encode=lambda text: list(text.encode()))
    )
    assert sampling.pair(llm, 1, 16)["over"](1) == 7.0
    (prompt,) = sampling.prompts(llm, 1)
    assert asked == [[bench.BenchCase(0, 16, len(prompt), 1)], 1]
    batch = sampling.prompts(llm, 32)
    assert len({tuple(tokens) for tokens in batch}) == 32 and len({*map(len, batch)}) == 1


def test_the_first_round_does_not_count_and_the_order_changes() -> None:
    seen: list[tuple[str, int]] = []

    def rate(name: str) -> sampling.Rate:
        return lambda number: seen.append((name, number)) or float(number)  # type: ignore[func-returns-value]

    turns = sampling.in_turn({"drawn": rate("a"), "over": rate("b")}, 2)
    assert seen == [("b", 0), ("a", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert turns == [{"drawn": 1, "over": 1}, {"drawn": 2, "over": 2}]


def test_targets_are_ratios_of_one_round() -> None:
    rounds = [{"drawn": 96.0, "over": 100.0}, {"drawn": 48.0, "over": 50.0}]
    slow = [{"drawn": 92.0, "over": 100.0}, {"drawn": 184.0, "over": 200.0}]
    data = {"settings": {"int8": {"1": rounds, "8": slow, "32": slow}}}
    found = {row[0]: row[4:] for row in sampling.lines(data)}
    assert found == {
        "`LLM.stream` drawn, over bare steps": [0.95, "0.96 (0.96 to 0.96)", "yes"],
        "`LLM.generate` of 8 drawn, over greedy": [0.95, "0.92 (0.92 to 0.92)", "**no**"],
        "`LLM.generate` of 32 drawn, over greedy": [0.93, "0.92 (0.92 to 0.92)", "**no**"],
    }


def test_bad_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(monkeypatch, "--rounds", "0") == 2
    told = capsys.readouterr().err
    assert told == "sampling: error: --rounds=0, --steps=128: both must be at least 1\n"
