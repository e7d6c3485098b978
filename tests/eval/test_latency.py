"""Latencies on a runner of known costs, whose clock only moves when it works; the command line."""

from __future__ import annotations

import csv
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Cli, complaint
from fake_engine import EOS, FakeRunner, V, fake_llm
from suffice import LLM
from suffice.errors import InputError
from suffice.eval import latency
from suffice.eval.latency import LatencyCase, Rate, Spread, check_fits, fixed, measure, run, warm_up
from suffice.sampling_params import SamplingParams
from suffice.speculate import Tree
from suffice.trace import Trace

MS = 1e-3
LETTER = 3


class Timed(FakeRunner):
    """A prompt takes 1 ms a token and a decode step 10 ms; a text ends after six tokens."""

    def __init__(self, rule: Any, memory: int) -> None:
        super().__init__(rule, memory)
        self.now = 100.0
        self.trace = Trace(1, 1)

    def prefill(self, sequence: Any, tokens: list[int]) -> np.ndarray:
        self.now += MS * len(tokens)
        return super().prefill(sequence, tokens)

    def verify(self, sequences: list[Any], tokens: list[int], drafts: list[Tree]) -> np.ndarray:
        self.now += 10 * MS
        self.trace.steps += 1
        self.trace.kv_bytes_read += 30 * len(sequences)
        self.trace.weight_bytes_read += 1000
        return super().verify(sequences, tokens, drafts)


def six_tokens(history: list[int]) -> np.ndarray:
    return np.eye(V, dtype=np.float32)[EOS if len(history) >= 6 else LETTER]


def engine(memory: int = 10**9) -> tuple[LLM, Timed]:
    llm = fake_llm()
    runner = Timed(six_tokens, memory)
    return LLM.from_parts(llm.config, runner, llm.tokenizer), runner


def case(batch_size: int, *lengths: int, most: int = 5, ignore_eos: bool = True) -> LatencyCase:
    params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=ignore_eos)
    return LatencyCase("case", batch_size, [[LETTER] * length for length in lengths], params)


def measured(wanted: LatencyCase, repetitions: int = 1) -> Any:
    llm, runner = engine()
    result = measure(llm, wanted, repetitions, clock=lambda: runner.now)
    assert runner.open_sequences == []
    return result


def spread(*values: float) -> Any:
    """Return what the spread of some milliseconds is, by the plain formulas."""
    ranked = sorted(value * MS for value in values)
    place = 0.99 * (len(ranked) - 1)
    below = int(place)
    above = min(below + 1, len(ranked) - 1)
    p99 = ranked[below] + (place - below) * (ranked[above] - ranked[below])
    return pytest.approx((statistics.fmean(ranked), statistics.median(ranked), p99))


def figures(found: Spread) -> Any:
    return dataclasses.astuple(found)


def test_one_at_a_time_the_second_waits_for_the_first() -> None:
    result = measured(case(1, 3, 7))
    assert figures(result.queue_seconds) == spread(0, 43)
    assert figures(result.ttft_seconds) == spread(3, 43 + 7)
    assert figures(result.tpot_seconds) == spread(10, 10)
    assert figures(result.itl_seconds) == spread(*[10] * 8)
    seconds = (3 + 40 + 7 + 40) * MS
    assert result.output_tokens_per_second.mean == pytest.approx(10 / seconds)
    assert result.total_tokens_per_second.mean == pytest.approx(20 / seconds)
    assert result.requests_per_second.mean == pytest.approx(2 / seconds)
    assert result.output_tokens_per_second.deviation is None
    assert (result.kv_bytes_per_token, result.weight_bytes_per_token) == (30, 1000)


def test_together_both_prompts_run_in_one_call() -> None:
    result = measured(case(2, 3, 7))
    assert figures(result.queue_seconds) == spread(0, 0)
    assert figures(result.ttft_seconds) == spread(10, 10)
    assert figures(result.tpot_seconds) == spread(10, 10)
    assert figures(result.itl_seconds) == spread(*[10] * 8)
    assert result.output_tokens_per_second.mean == pytest.approx(10 / (50 * MS))
    assert (result.kv_bytes_per_token, result.weight_bytes_per_token) == (30, 500)


def test_no_more_run_together_than_asked() -> None:
    llm, runner = engine()
    timings = run(llm, case(2, 1, 1, 1, 1, 1), clock=lambda: runner.now)
    assert runner.batches == [2] * 4 + [2] * 4 + [1] * 4
    assert [round((timing.started - 100) / MS) for timing in timings] == [0, 0, 42, 42, 84]


def test_a_text_that_ends_early_counts_for_what_it_is() -> None:
    result = measured(case(3, 2, 5, 6, most=9, ignore_eos=False))
    assert (result.requests, result.prompt_tokens, result.output_tokens) == (3, 13, 5 + 2 + 1)
    assert result.context == 6 + 9
    assert figures(result.ttft_seconds) == spread(13, 13, 13)
    # The last ends with its first token: there is nothing between its tokens
    assert figures(result.tpot_seconds) == spread(10, 10)
    assert figures(result.itl_seconds) == spread(*[10] * 5)


def test_a_single_token_has_nothing_after_it() -> None:
    result = measured(case(1, 4, most=1))
    assert figures(result.ttft_seconds) == spread(4)
    assert result.tpot_seconds == result.itl_seconds == Spread(None, None, None)
    assert result.kv_bytes_per_token is result.weight_bytes_per_token is None


def test_repetitions_are_pooled_and_the_warm_up_is_not() -> None:
    llm, runner = engine()
    wanted = case(2, 3, 7, 1)
    warm_up(llm, wanted)
    assert list(map(len, runner.prefilled)) == [3, 7] and runner.batches == [2]
    new: list[int] = []
    result = measure(llm, wanted, 3, new.append, clock=lambda: runner.now)
    assert (result.requests, result.prompt_tokens, result.output_tokens) == (9, 33, 45)
    assert sum(new) == 45, "progress is told of every token"
    assert result.kv_bytes_per_token == 30
    assert result.output_tokens_per_second.deviation == pytest.approx(0, abs=1e-6)
    assert figures(result.ttft_seconds) == spread(*[10, 10, 51] * 3)


def test_rates_and_percentiles_are_their_formulas() -> None:
    rate = Rate.of([10, 10], [1, 2])
    assert (rate.mean, rate.deviation) == pytest.approx((7.5, statistics.stdev([10, 5])))
    values = [((index * 37) % 101) ** 2 for index in range(101)]
    assert figures(Spread.of([value * MS for value in values])) == spread(*values)


def test_tokens_that_come_together_have_one_time() -> None:
    llm, runner = engine()
    (timing,) = run(llm, case(1, 1), clock=lambda: runner.now)
    timing.tokens, timing.stamps = 2, timing.stamps[:2]
    assert timing.stamp(runner.now) == 3
    assert len(timing.gaps) == 2
    assert timing.tpot == pytest.approx((timing.stamps[-1] - timing.stamps[0]) / 4)


def test_a_request_that_fails_is_an_error() -> None:
    llm, runner = engine(memory=11)
    with pytest.raises(InputError, match=r"^case: request 1 needs 12 rows$"):
        run(llm, case(2, 3, 9))
    assert runner.open_sequences == []


def test_an_interruption_gives_memory_back() -> None:
    llm, runner = engine()
    runner.interrupt_after = 1
    with pytest.raises(KeyboardInterrupt):
        run(llm, case(2, 3, 9))
    assert runner.open_sequences == []


def test_fixed_prompts() -> None:
    cases = fixed([(4, 2), (8, 1)], [1, 3], 50)
    assert [(each.name, each.batch_size) for each in cases] == [
        *(("4/2", 1), ("4/2", 3), ("8/1", 1), ("8/1", 3)),
    ]
    for each, length in zip(cases, [4, 4, 8, 8], strict=True):
        assert [len(prompt) for prompt in each.prompts] == [length] * each.batch_size
        assert len(set(map(tuple, each.prompts))) == each.batch_size
        assert {token for prompt in each.prompts for token in prompt} <= set(range(50))
        assert len(set(each.prompts[0])) == length
    assert cases == fixed([(4, 2), (8, 1)], [1, 3], 50)


def test_what_does_not_fit_is_refused() -> None:
    llm, _ = engine()
    check_fits([case(1, 3, 59)], llm)
    with pytest.raises(InputError) as error:
        check_fits([case(1, 3), case(1, 3, 60)], llm)
    assert str(error.value) == (
        "case: request 2 may need 65 tokens (60 and 5 new ones), but the context holds 64"
    )


ARGUMENTS = ("eval", "latency", "-r", "2")


def test_the_command_line_runs_every_case(cli: Cli, checkpoint: Path) -> None:
    asked = ("-m", str(checkpoint), "--lengths", "8/4,5/1", "-b", "1,2")
    ran = cli(*ARGUMENTS, *asked, "-o", "json")
    record = json.loads(ran.out)
    assert ran.code == 0 and record["kind"] == "speed" and not record["interrupted"]
    assert record["config"]["max_num_seqs"] == 2 and str(checkpoint) not in ran.out
    cases = record["result"]["cases"]
    assert [(each["case"], each["batch_size"]) for each in cases] == [
        *(("8/4", 1), ("8/4", 2), ("5/1", 1), ("5/1", 2)),
    ]
    assert [each["output_tokens"] for each in cases] == [8, 16, 2, 4]
    assert [each["context"] for each in cases] == [12, 12, 6, 6]
    assert all(each["peak_memory_bytes"] > 0 for each in cases)
    assert record["reads"]["steps"] == 2 * 3 + 2 * 3, "the warm-up is left out"
    kv, weights = ("kv_bytes_per_token", "weight_bytes_per_token")
    assert cases[1][kv] == cases[0][kv] == record["reads"]["kv_bytes_read"] / (6 + 12)
    assert cases[1][weights] == cases[0][weights] / 2
    table = cli(*ARGUMENTS, *asked).out.splitlines()
    assert len(table) == 2 + 4 and "- / - / -" in table[4]
    rows = list(csv.DictReader(cli(*ARGUMENTS, *asked, "-o", "csv").out.splitlines()))
    assert [row["context"] for row in rows] == ["12", "12", "6", "6"]
    assert rows[0]["tpot_seconds_p99"] and not rows[2]["tpot_seconds_p99"]


def test_prompts_of_a_file_go_through_the_chat_template(
    cli: Cli, checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "asked.jsonl"
    texts = ["To be, or not to be", "owls", "3", "left out"]
    path.write_text("\n".join(json.dumps({"question": text}) for text in texts))
    asked = ("--prompts", str(path), "--limit", "3", "--max-tokens", "4")
    ran = cli(*ARGUMENTS, *asked, "-m", str(checkpoint), "-o", "json")
    record = json.loads(ran.out)
    (case,) = record["result"]["cases"]
    assert ran.code == 0 and (case["case"], case["batch_size"]) == ("asked.jsonl", 32)
    tokenizer = LLM(checkpoint).tokenizer
    prompts = [
        tokenizer.chat([{"role": "user", "content": text}], add_generation_prompt=True)
        for text in texts[:3]
    ]
    assert (case["requests"], case["prompt_tokens"]) == (6, 2 * sum(map(len, prompts)))
    assert case["context"] == max(map(len, prompts)) + 4
    assert str(tmp_path) not in ran.out, "a path says where somebody works"


def test_an_interruption_prints_the_cases_that_are_done(
    cli: Cli, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(llm: LLM, case: LatencyCase, *arguments: Any) -> Any:
        if case.name == stop:
            raise KeyboardInterrupt
        return measure(llm, case, *arguments)

    monkeypatch.setattr(latency, "measure", interrupted)
    asked = ("-m", str(checkpoint), "--lengths", "8/4,5/1", "-o", "json")
    stop = "5/1"
    ran = cli(*ARGUMENTS, *asked)
    record = json.loads(ran.out)
    assert ran.code == 130 and record["interrupted"]
    assert "interrupted: these figures are of what was done until then\n" in ran.err
    assert [each["case"] for each in record["result"]["cases"]] == ["8/4"]
    stop = "8/4"
    ran = cli(*ARGUMENTS, *asked)
    assert ran.code == 130 and not ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--lengths", "128x128"),
            "--lengths=128x128: '128x128' must be PROMPT/OUTPUT tokens, each at least 1, "
            "such as 128/1920",
        ),
        (("--lengths", "8/4,8/0"), "--lengths=8/4,8/0: '8/0' must be PROMPT/OUTPUT tokens"),
        (("--lengths", "8/4,"), "--lengths=8/4,: '' must be PROMPT/OUTPUT tokens"),
        (("--batch-size", "1,0"), "--batch-size=0: must be at least 1"),
        (("--batch-size", "two"), "--batch-size=two: 'two' must be a whole number"),
        (("-r", "0"), "--repetitions=0: must be at least 1"),
        (("-o", "xlm"), "unknown output 'xlm'"),
        (("--limit", "3"), "--limit=3: needs --prompts"),
        (("--max-tokens", "3"), "--max-tokens=3: needs --prompts"),
        (("--prompts", "gsm8"), "Did you mean 'gsm8k'"),
        (("--prompts", "gsm8k", "--lengths", "8/4"), "--lengths and --prompts: give one of them"),
        (("--prompts", "gsm8k", "--limit", "0"), "--limit=0: must be at least 1"),
        (("--prompts", "gsm8k", "--max-tokens", "0"), "--max-tokens=0: must be at least 1"),
        (("--prompts", "none.txt"), "none.txt: cannot be read: No such file"),
        (
            ("--lengths", "8/4,30/4", "-c", "32"),
            "30/4: request 1 may need 34 tokens (30 and 4 new ones), but the context holds 32",
        ),
    ],
)
def test_bad_input(cli: Cli, checkpoint: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in complaint(cli("eval", "latency", "-m", str(checkpoint), *arguments))


def test_bad_lines_are_named(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "good"}\n\n{"prompt": \n')
    said = complaint(cli("eval", "latency", "-m", str(checkpoint), "--prompts", str(path)))
    assert said.startswith(f"{path}, line 3: is not JSON (")
