"""The timing core, on a runner that counts and a clock that only moves when it works."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from suffice.errors import InputError
from suffice.eval.bench import BenchCase, cases, check_context, measure
from suffice.trace import Trace


class Counted:
    """A runner whose prefill takes 1 ms a token and whose steps take 10 ms."""

    vocabulary = 100

    def __init__(self) -> None:
        self.now = 0.0
        self.trace = Trace(1, 1)
        self.lengths: dict[int, int] = {}
        self.new = itertools.count()
        self.steps: list[list[int]] = []

    def open(self, request_id: str, limit: int) -> int:
        sequence = next(self.new)
        self.lengths[sequence] = 0
        return sequence

    def fork(self, sequence: int) -> int:
        copy = next(self.new)
        self.lengths[copy] = self.lengths[sequence]
        self.now += 5.0  # must not be counted
        return copy

    def prefill(self, sequence: int, tokens: list[int]) -> None:
        self.lengths[sequence] += len(tokens)
        self.now += 0.001 * len(tokens)

    def reserve(self, sequence: int) -> None:
        pass

    def step(self, sequences: list[int], tokens: list[int]) -> None:
        self.steps.append([self.lengths[sequence] for sequence in sequences])
        for sequence in sequences:
            self.lengths[sequence] += 1
        self.now += 0.01
        self.trace.kv_bytes_read += 30 * len(sequences)
        self.trace.weight_bytes_read += 1000

    def close(self, sequence: int) -> None:
        del self.lengths[sequence]


def run(*wanted: BenchCase, repetitions: int = 2) -> tuple[Counted, list[Any]]:
    runner = Counted()
    results = measure(runner, wanted, repetitions, 1e6, clock=lambda: runner.now)
    return runner, list(results)


def test_decoding_counts_every_token_and_byte_but_the_first_run() -> None:
    runner, [result] = run(BenchCase(prompt=0, generate=4, depth=7, batch=2))
    assert result.seconds == pytest.approx((0.04, 0.04))
    assert result.mean == pytest.approx(200)
    assert (result.kv_bytes_per_token, result.weight_bytes_per_token) == (30, 500)
    assert result.roof_fraction == pytest.approx(530 * 200 / 1e6)
    assert runner.steps == [[7, 7], [8, 8], [9, 9], [10, 10]] * 3
    assert runner.lengths == {}, "every sequence was closed"


def test_a_prompt_is_run_after_the_cached_tokens() -> None:
    runner, [result] = run(BenchCase(prompt=50, generate=0, depth=20, batch=1))
    assert result.seconds == pytest.approx((0.05, 0.05))
    assert result.case.name == "pp50 @ d20"
    assert (result.kv_bytes_per_token, result.roof_fraction) == (0, 0)
    assert not runner.steps


def test_one_repetition_has_no_deviation() -> None:
    _, [result] = run(BenchCase(0, 4, 0, 1), repetitions=1)
    assert (result.case.name, result.deviation) == ("tg4", 0)


def test_cases_are_named_as_llama_bench_does() -> None:
    names = [case.name for case in cases([512], [64], [0, 3000], 1, 3)]
    assert names == ["pp512", "tg64", "pp512 @ d3000", "tg64 @ d3000"]
    assert [case.name for case in cases([0], [64], [0], 1, 3)] == ["tg64"]
    names = [case.name for case in cases([128, 512], [16, 64], [0, 8], 1, 3)]
    flat = ["pp128", "pp512", "tg16", "tg64"]
    assert names == flat + [f"{name} @ d8" for name in flat]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([-1], [64], [0], 1, 3), "-p/--n-prompt=-1: must be at least 0"),
        (([512], [64], [0, -5], 1, 3), "-d/--n-depth=-5: must be at least 0"),
        (([512], [64], [0], 1, 0), "-r/--repetitions=0: must be at least 1"),
        (([512], [64], [0], 0, 3), "-b/--batch-size=0: must be at least 1"),
        (
            ([0], [0], [0], 1, 3),
            "nothing to measure: give -p or -n above 0 and at least one depth",
        ),
    ],
)
def test_senseless_cases_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError) as error:
        cases(*arguments)
    assert str(error.value) == message


def test_what_does_not_fit_the_context_is_refused() -> None:
    wanted = cases([512], [64], [0, 3000], 1, 3)
    check_context(wanted, 3512)
    with pytest.raises(InputError) as error:
        check_context(wanted, 3511)
    assert str(error.value) == "pp512 @ d3000 needs 3512 tokens, but the context holds 3511"
