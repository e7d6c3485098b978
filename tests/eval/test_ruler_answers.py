"""RULER through the engine and the command line: who reads scores, who does not does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Cli, complaint
from ruler_reader import CONTEXT, reader
from suffice.cli.options import ModelFlags
from suffice.engine.llm import LLM
from suffice.errors import InputError
from suffice.eval import ruler
from suffice.eval.ruler import NEW_TOKENS, TASKS, Draft, RulerPlan, check, measure


def last(llm: LLM, plan: RulerPlan) -> Any:
    *_, tally = measure(llm, plan)
    return tally.result()


@pytest.mark.parametrize("template", [False, True])
def test_a_model_that_reads_gets_everything(template: bool) -> None:
    plan = RulerPlan(list(TASKS), (1500, 2000), samples=2, together=3)
    result = last(reader(4, template=template), plan)
    assert len(result.answers) == plan.total and len(result.scores) == 16
    assert {score.score for score in (*result.scores, *result.means, result.mean)} == {100}
    assert result.mean.error == 0 and result.mean.samples == plan.total
    for answer in result.answers:
        assert answer.prompt_tokens + NEW_TOKENS <= answer.length
        assert all(needle.value in answer.text for needle in answer.expected)


def test_a_model_that_reads_a_part_gets_a_part() -> None:
    result = last(reader(1), RulerPlan(list(TASKS), (1500,), samples=2))
    scores = {score.task: score.score for score in result.scores}
    assert scores.pop("niah_multivalue") == scores.pop("niah_multiquery") == 25
    assert set(scores.values()) == {100}


def test_a_model_that_reads_nothing_gets_nothing() -> None:
    assert last(reader(0), RulerPlan(list(TASKS), (1500,), samples=2)).mean.score == 0


def test_the_batch_changes_nothing() -> None:
    results = [
        last(reader(1), RulerPlan(("niah_multivalue",), (1500,), 4, 0, n)) for n in (1, 3, 8)
    ]
    assert results[0] == results[1] == results[2]


def test_no_memory_is_said() -> None:
    message = r"request 0 needs \d+ rows \(prompts in memory: 1, --batch-size\)"
    with pytest.raises(InputError, match=message):
        last(reader(1, memory=100), RulerPlan(("niah_single_1",), (1500,), 1))


def test_lengths_are_checked_first() -> None:
    llm = reader(1)
    with pytest.raises(InputError, match=r"--lengths=9000: must not be more than .* 8192"):
        check(RulerPlan(["niah_single_1"], (1500, 9000), 1), llm.tokenizer, CONTEXT)
    with pytest.raises(InputError, match="--lengths=600: too short for niah_multiquery") as raised:
        check(
            RulerPlan(["niah_single_2", "niah_multiquery"], (1500, 600), 2), llm.tokenizer, CONTEXT
        )
    least = int(str(raised.value).split()[-1])
    draft = Draft("niah_multiquery", 600, 0, 0)
    assert least == len(draft.tokens(llm.tokenizer, 1)) + NEW_TOKENS
    draft.length = least
    assert len(draft.fitted(llm.tokenizer)) == least - NEW_TOKENS, "it just fits"


ARGUMENTS = ("eval", "ruler", "--lengths", "1500", "--samples", "2")
TWO = ("--tasks", "niah_single_1,niah_multiquery")


@pytest.fixture
def reads_one(monkeypatch: pytest.MonkeyPatch) -> LLM:
    """Make the command line use a model that finds one value."""
    llm = reader(1)
    monkeypatch.setattr(ModelFlags, "load", lambda self, seed=None: llm)
    return llm


def test_the_command_line(cli: Cli, reads_one: LLM) -> None:
    record = json.loads(cli(*ARGUMENTS, *TWO, "-o", "json").out)
    result = record["result"]
    assert record["kind"] == "ruler" and record["asked"]["samples"] == 2
    assert [score["score"] for score in result["scores"]] == [100, 25]
    assert result["means"][0] == {**result["mean"], "length": 1500}
    assert result["mean"]["score"] == 62.5 and result["mean"]["error"] == 0
    assert len(result["answers"]) == 4
    answer = result["answers"][3]
    assert answer["task"] == "niah_multiquery" and answer["index"] == 1 and answer["score"] == 25
    assert sum(needle["value"] in answer["text"] for needle in answer["expected"]) == 1
    assert cli(*ARGUMENTS, *TWO, "-o", "csv").out.splitlines() == [
        "task,length,score,standard error,samples",
        "niah_single_1,1500,100.0,0.0,2",
        "niah_multiquery,1500,25.0,0.0,2",
        "mean,1500,62.5,0.0,4",
        "mean,,62.5,0.0,4",
    ]
    rows = cli(*ARGUMENTS).out.splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == [*TASKS, "mean", "mean"]


def test_an_interruption_prints_what_is_done(
    cli: Cli, reads_one: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Any:
        yield next(measure(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(ruler, "measure", interrupted)
    ran = cli(*ARGUMENTS, *TWO, "-o", "json", "-b", "3")
    record = json.loads(ran.out)
    assert ran.code == 130 and record["interrupted"]
    assert [score["samples"] for score in record["result"]["scores"]] == [2, 1]


def test_a_real_engine(cli: Cli, checkpoint: Path) -> None:
    asked = ("--tasks", "niah_single_1,niah_single_2", "-m", str(checkpoint), "--quant", "int8")
    record = json.loads(cli(*ARGUMENTS, *asked, "-o", "json").out)
    assert record["result"]["mean"]["score"] == 0, "its weights are random"
    assert (
        record["config"]["quant"] == "Int8(act_bits=16, sites='qkv+o+gate_up')"
        and record["reads"]["steps"] > 0
    )
    for answer in record["result"]["answers"]:
        assert 1350 < answer["prompt_tokens"] + NEW_TOKENS <= 1500
        assert answer["text"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--tasks", "niah_singel_1"),
            "unknown task 'niah_singel_1'. Did you mean 'niah_single_1'",
        ),
        (("--tasks", "niah_single_1,all"), "unknown task 'all'"),
        (("--tasks", "niah_single_1,niah_single_1"), "--tasks: niah_single_1 is given twice"),
        (("--tasks", ""), "unknown task ''"),
        (("--lengths", "1500,"), "--lengths=1500,: '' must be a whole number"),
        (("--lengths", "1500,1500"), "--lengths: 1500 is given twice"),
        (("--lengths", "300"), "--lengths=300: too short for niah_single_1, whose template,"),
        (("--lengths", "9000"), "--lengths=9000: must not be more than the context length, 8192"),
        (("--samples", "0"), "--samples=0: must be at least 1 of each task"),
        (("--samples", "two"), "'two' is not a whole number"),
        (("-b", "0"), "--batch-size=0: must be at least 1 prompt"),
        (("-o", "xml"), "unknown output 'xml'"),
    ],
)
def test_bad_input(cli: Cli, reads_one: LLM, arguments: tuple[str, ...], message: str) -> None:
    assert message in complaint(cli(*ARGUMENTS, *arguments))
