"""LongBench's samples: prompts, cut in the middle; answers are scored, compared and printed.

Also tests longbench_prompts.py, answers.py and the flags in options.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Cli, complaint
from fake_engine import EOS, FakeRunner
from ruler_reader import CONTEXT, Letters
from suffice.cli.options import ModelFlags
from suffice.engine.config import Config
from suffice.engine.llm import LLM
from suffice.errors import InputError
from suffice.eval import longbench
from suffice.eval.longbench import TASKS, LongBenchPlan, Sample, groups, load_samples, measure
from suffice.eval.longbench_prompts import PROMPTS, prompt_of
from suffice.trace import Trace

STARTS = re.compile(r"<model>|Type:")  # where an answer starts
ROW = {"context": "It rains. [[{}]]", "input": "What is it?", "answers": ["blue sky"], "length": 9}


class Parrot(FakeRunner):
    """Answers with what stands in double brackets in its prompt."""

    vocabulary = 128

    def __init__(self, memory: int = 10**9, changed: str = "") -> None:
        super().__init__(self.next, memory)
        self.trace = Trace(1, 1)
        self.changed = changed

    def next(self, history: list[int]) -> np.ndarray:
        text = bytes(history).decode("ascii")
        found = re.search(r"\[\[(.*?)\]\]", text, re.DOTALL)
        answer = found[1].replace("red", self.changed or "red") if found else ""
        said = STARTS.split(text)[-1]
        token = ord(answer[len(said)]) if len(said) < len(answer) else EOS
        return 10 * np.eye(self.vocabulary, dtype=np.float32)[token]


def parrot(**options: Any) -> LLM:
    config = Config.create("fake", growth="iterative", threads=1).resolved("float32", CONTEXT)
    return LLM.from_parts(config, Parrot(**options), Letters(template=True))


def write(folder: Path, name: str, said: list[str], **more: Any) -> str:
    rows = [ROW | {"context": ROW["context"].format(text)} | more for text in said]
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder)


def test_every_task_has_a_prompt_with_both_fields() -> None:
    assert PROMPTS.keys() == TASKS.keys() and len(TASKS) == 21
    alone = {"gov_report", "multi_news", "vcsum", "passage_count", "lcc"}  # they ask no question
    for name in TASKS:
        text = prompt_of(name, "{brace} CONTEXT", "QUESTION")
        assert text.count("{brace} CONTEXT") == 1
        assert text.count("QUESTION") == (name not in alone), name
        lead, _, rest = text.partition("{brace} CONTEXT")
        assert len(lead.strip()) > 10 and not text.endswith(" ")
        if TASKS[name].chat:
            assert len(rest.replace("QUESTION", "").strip()) > 2, "told once more"


def test_a_long_prompt_loses_its_middle() -> None:
    tokenizer = Letters(template=True)
    sample = Sample("hotpotqa", 0, "".join(map(chr, range(33, 127))) * 20, ("x",), ())
    assert sample.tokens(tokenizer, 4000) == tokenizer.encode(f"<user>{sample.prompt}<model>")
    for length in (500, 501, 600):
        text = tokenizer.decode(sample.tokens(tokenizer, length))
        inner = text.removeprefix("<user>").removesuffix("<model>")
        assert length - 32 - 1 <= len(text) <= length - 32
        half = len(inner) // 2
        assert sample.prompt.startswith(inner[:half]) and sample.prompt.endswith(inner[half:])
    with pytest.raises(InputError, match="--length=45: leaves no room for prompts of hotpotqa"):
        sample.tokens(tokenizer, 45)


def test_few_shot_and_code_have_no_template() -> None:
    tokenizer = Letters(template=True)
    bare = {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
    for name in TASKS:
        text = tokenizer.decode(Sample(name, 0, "abc", ("x",), ()).tokens(tokenizer, 800))
        assert text == ("abc" if name in bare else "<user>abc<model>")


def test_the_best_of_the_right_answers_counts_and_lines_after_the_first_do_not() -> None:
    sample = Sample("hotpotqa", 0, "", ("red", "blue sky"), ())
    assert sample.score("the blue sky") == 100 and sample.score("green") == 0
    few = Sample("trec", 0, "", ("City",), ("City", "Date"))
    assert few.score("\nCity\nDate") == 100 and few.score("Date\nCity") == 0
    assert Sample("triviaqa", 0, "", ("x",), ()).score("x\nQuestion: y") == 100
    assert Sample("qmsum", 0, "", ("x",), ()).score("x\ny") == pytest.approx(200 / 3)


def test_rows_of_a_folder(tmp_path: Path) -> None:
    folder = write(tmp_path, "longbench-multi_news", ["a", "b", "c"])
    write(tmp_path, "trec", ["d"], all_classes=["City"], answers=["City"])
    plan = LongBenchPlan(["multi_news", "trec"], 2000, samples=2)
    found = load_samples(plan, folder)
    assert [(each.task, each.index) for each in found] == [
        ("multi_news", 0),
        ("multi_news", 1),
        ("trec", 0),
    ]
    assert found[2].classes == ("City",) and found[0].classes == ()
    assert found[1].prompt == prompt_of("multi_news", "It rains. [[b]]", "What is it?")
    assert [len(group) for group in groups(found, 2)] == [2, 1]
    assert [len(group) for group in groups(found, 5)] == [2, 1], "of one task each"
    with pytest.raises(InputError, match=r"has no longbench-qasper.jsonl or qasper.jsonl"):
        load_samples(LongBenchPlan(["qasper"], 2000), folder)
    write(tmp_path, "lsht", ["d"])
    with pytest.raises(InputError, match="the field 'all_classes' must be the list of classes"):
        load_samples(LongBenchPlan(["lsht"], 2000), folder)
    write(tmp_path, "qasper", ["d"], answers=[])
    with pytest.raises(InputError, match="line 1: the field 'answers' is empty"):
        load_samples(LongBenchPlan(["qasper"], 2000), folder)


SAID = ["blue sky", "sky blue", "red sky", "red"]
F1 = [100, 100, 50, 0]


@pytest.mark.parametrize("together", [1, 3, 8])
def test_a_parrot_gets_what_its_answers_are_worth(tmp_path: Path, together: int) -> None:
    plan = LongBenchPlan(["hotpotqa", "musique"], 2000)
    write(tmp_path, "hotpotqa", SAID)
    samples = load_samples(plan, write(tmp_path, "musique", SAID[:1]))
    *_, tally = measure(parrot(), samples, plan.length, together)
    result = tally.result()
    assert [answer.text for answer in result.answers] == [*SAID, SAID[0]]
    assert [answer.score for answer in result.answers] == [*F1, 100]
    first, second = result.scores
    assert (first.task, first.score, first.samples) == ("hotpotqa", 62.5, 4)
    assert first.error == pytest.approx(np.std(F1, ddof=1) / 2)
    assert second.score == 100 and second.error is None
    assert result.mean.score == 81.25 and result.mean.samples == 5 and tally.score == 70


def test_no_memory_is_said(tmp_path: Path) -> None:
    plan = LongBenchPlan(["hotpotqa"], 2000)
    samples = load_samples(plan, write(tmp_path, "hotpotqa", SAID))
    message = r"request 0 needs \d+ rows \(prompts in memory: 1, --batch-size\)"
    with pytest.raises(InputError, match=message):
        list(measure(parrot(memory=100), samples, plan.length, 1))


@pytest.fixture
def parrots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command line use a model that says blue for red, and an exact one that does not."""
    monkeypatch.setattr(
        ModelFlags,
        "load",
        lambda self, seed=None: parrot(changed="blue" if self.inexact() else ""),
    )


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write(tmp_path, "hotpotqa", SAID)
    return write(tmp_path, "musique", SAID[:1])


def asked(folder: str, *more: str) -> tuple[str, ...]:
    return ("eval", "longbench", "--tasks", "hotpotqa,musique", "--data-dir", folder, *more)


def test_the_command_line(cli: Cli, parrots: None, folder: str) -> None:
    record = json.loads(cli(*asked(folder, "-o", "json")).out)
    assert record["kind"] == "longbench" and record["asked"]["length"] == CONTEXT
    assert record["asked"]["data_dir"] == Path(folder).name
    assert [score["score"] for score in record["result"]["scores"]] == [62.5, 100]
    assert record["result"]["against"] is None and len(record["result"]["answers"]) == 5
    assert cli(*asked(folder, "-o", "csv", "--samples", "2")).out.splitlines() == [
        "task,samples,score,standard error",
        "hotpotqa,2,100.0,0.0",
        "musique,1,100.0,",
        "mean,3,100.0,",
    ]


def test_a_setting_is_compared_sample_by_sample(
    cli: Cli, parrots: None, folder: str, checkpoint: Path
) -> None:
    setting = ("-m", str(checkpoint), "--attention", "art", "--against", "exact")
    out = cli(*asked(folder, *setting, "-o", "json")).out
    result = json.loads(out)["result"]
    better = [0, 0, 50, 200 / 3]  # blue sky, blue
    (first, second), against = result["scores"], result["against"]
    assert first["score"] == pytest.approx(np.mean(F1) + np.mean(better)) and second["score"] == 100
    assert [score["score"] for score in against["scores"]] == [62.5, 100]
    assert against["differences"][0]["score"] == pytest.approx(np.mean(better))
    assert against["differences"][0]["error"] == pytest.approx(np.std(better, ddof=1) / 2)
    assert against["difference"]["score"] == pytest.approx(np.mean(better) / 2)
    head, *rows = cli(*asked(folder, *setting, "-o", "csv")).out.splitlines()
    assert head.endswith("standard error,reference,difference,its standard error")
    assert rows[1] == "musique,1,100.0,,100.0,0.0,"


def test_an_interruption_prints_what_is_done(
    cli: Cli, parrots: None, folder: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:  # the setting, after the reference
            yield next(measure(*arguments))
            raise KeyboardInterrupt
        yield from measure(*arguments)

    monkeypatch.setattr(longbench, "measure", interrupted)
    setting = ("-m", str(checkpoint), "--attention", "art", "--against", "exact")
    ran = cli(*asked(folder, *setting, "-o", "json", "-b", "3"))
    record = json.loads(ran.out)
    assert ran.code == 130 and record["interrupted"]
    assert [score["samples"] for score in record["result"]["scores"]] == [3]
    assert [score["samples"] for score in record["result"]["against"]["differences"]] == [3]


def test_a_real_engine(cli: Cli, checkpoint: Path, folder: str) -> None:
    asked_of = asked(folder, "-m", str(checkpoint), "--length", "200", "-o", "json")
    record = json.loads(cli(*asked_of, "--attention", "art", "--against", "exact").out)
    assert record["reads"]["steps"] > 0 and len(record["result"]["answers"]) == 5
    for answer in record["result"]["answers"]:
        assert 100 < answer["prompt_tokens"] + 32 <= 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tasks", "multi_new"), "unknown task 'multi_new'. Did you mean 'multi_news'"),
        (("--tasks", "lcc,all"), "unknown task 'all'"),
        (("--tasks", "lcc,lcc"), "--tasks: lcc is given twice"),
        (("--length", "90"), "--length=90: must be at least 96 for hotpotqa, whose answers have"),
        (("--length", "0"), "--length=0: must be at least 96"),
        (("--length", "9000"), "--length=9000: must not be more than the context length, 8192"),
        (("--samples", "0"), "--samples=0: must be at least 1 of each task"),
        (("-b", "0"), "--batch-size=0: must be at least 1 prompt"),
        (("--against", "exact"), "--against exact: would compare"),
        (("--against", "exct"), "unknown reference (--against) 'exct'. Did you mean 'exact'"),
        (("-o", "xml"), "unknown output 'xml'"),
    ],
)
def test_bad_input(
    cli: Cli,
    parrots: None,
    folder: str,
    checkpoint: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    assert message in complaint(cli(*asked(folder, "-m", str(checkpoint)), *arguments))


def test_data_that_is_missing_is_said(cli: Cli, parrots: None, tmp_path: Path) -> None:
    message = complaint(cli(*asked(str(tmp_path))))
    assert "has no longbench-hotpotqa.jsonl or hotpotqa.jsonl: put the rows there" in message
