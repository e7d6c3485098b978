"""Requests are lm-evaluation-harness's, figures their formulas, complaints one line.

Also tests task_data.py and the flags in options.py.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Cli, complaint
from suffice.errors import InputError
from suffice.eval import tasks
from suffice.eval.tasks import TASKS, Question, TasksResult, TasksTally, chosen, measure, summed_up
from task_rows import PIQA, ROWS, Rows, real_piqa, their_task, write_lines


def questions(name: str, rows: Rows, folder: Path) -> list[Question]:
    write_lines(folder / f"{name}.jsonl", rows)
    return TASKS[name].load(str(folder), None)


def requests(question: Question) -> list[tuple[str, str]]:
    return list(zip(question.contexts, question.continuations, strict=True))


@pytest.mark.filterwarnings("ignore")  # of lm_eval and what it imports
@pytest.mark.parametrize("name", TASKS)
def test_requests_and_answers_are_the_harness_s(name: str, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    same_as_harness(name, ROWS[name], tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_requests_of_real_rows_are_the_harness_s(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    same_as_harness("piqa", real_piqa(1000), tmp_path)


def same_as_harness(name: str, rows: Rows, folder: Path) -> None:
    """Compare requests, and what both make of the same log likelihoods."""
    theirs = their_task(name, rows, folder)
    random = np.random.default_rng(0)
    found = questions(name, rows, folder)
    assert len(found) == len(rows) == len(theirs.eval_docs)
    for question, doc in zip(found, theirs.eval_docs, strict=True):
        asked = theirs.construct_requests(doc, theirs.fewshot_context(doc, 0))
        assert requests(question) == [instance.args for instance in asked]
        for _ in range(4):
            logs = (-random.uniform(1, 40, len(asked))).tolist()
            scores = theirs.process_results(doc, [(log, False) for log in logs])
            tally = TasksTally(TASKS[name])
            tally.add(question, logs)
            result = tally.result()
            assert (result.acc, result.acc_norm) == (scores["acc"], scores.get("acc_norm"))


def test_requests(tmp_path: Path) -> None:
    first = {name: questions(name, rows, tmp_path)[0] for name, rows in ROWS.items()}
    assert requests(first["piqa"])[1] == (
        "Question: How do you dry a wet coat?\nAnswer:",
        " Put it in the lake.",
    )
    assert requests(first["hellaswag"])[0] == (
        "Making tea: How to make tea. Boil water. Take a pot. The water",
        " is hot and steams.",
    )
    assert requests(first["winogrande"]) == [
        ("The fox outran the dog because the fox", " was quick ."),
        ("The fox outran the dog because the dog", " was quick ."),
    ]
    assert requests(first["boolq"])[1] == (
        "Owls are birds.\nThey fly.\nQuestion: is an owl a bird?\nAnswer:",
        " yes",
    )
    assert [first[name].gold for name in ("arc_easy", "boolq", "openbookqa")] == [1, 1, 0]
    assert [each.gold for each in questions("winogrande", ROWS["winogrande"], tmp_path)] == [0, 1]


def test_figures_are_their_formulas() -> None:
    tally = TasksTally(TASKS["piqa"])
    same = ["", ""]
    for lengths, gold, logs in (
        ([4, 2], 0, [-4.0, -3.0]),  # only normalised right
        ([4, 2], 1, [-4.0, -3.0]),  # only plainly right
        ([1, 1], 0, [-2.0, -2.0]),  # the first of equal ones counts
        ([0, 9], 1, [-1.0, -8.0]),  # an empty answer has no mean per character
    ):
        tally.add(Question(same, same, lengths, gold), logs)
    result = tally.result()
    assert (result.questions, result.acc, result.acc_norm) == (4, 0.5, 0.75)
    assert result.acc_stderr == pytest.approx(math.sqrt(0.25 * 4 / 3) / 2)
    assert result.acc_norm_stderr == pytest.approx(math.sqrt(3 / 16 * 4 / 3) / 2)
    one = TasksTally(TASKS["boolq"])
    one.add(Question(same, same, [2, 3], 1), [-2.0, -1.0])
    assert one.result() == TasksResult("boolq", 1, 1.0, None, None, None)
    mean = summed_up([result, TasksResult("boolq", 6, 1.0, 0.3, None, None)]).mean
    assert (mean.questions, mean.acc, mean.acc_norm) == (10, 0.75, 0.75)
    assert mean.acc_stderr == pytest.approx(math.hypot(result.acc_stderr or 0, 0.3) / 2)
    assert summed_up([result, one.result()]).mean.acc_stderr is None


def test_names() -> None:
    assert [task.name for task in chosen("piqa, boolq")] == ["piqa", "boolq"]
    for names, message in (
        ("piqua", "unknown task 'piqua'. Did you mean 'piqa'"),
        ("", "unknown task ''"),
        ("piqa,boolq,piqa", "'piqa' is given twice"),
    ):
        with pytest.raises(InputError, match=message):
            chosen(names)


def test_labels_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    rows = [{name: row[name] for name in ("goal", "sol1", "sol2")} for row in PIQA]
    write_lines(tmp_path / "piqa-valid.jsonl", rows)
    labels = tmp_path / "piqa-valid-labels.lst"
    labels.write_text("".join(f"{row['label']}\n" for row in PIQA))
    found = TASKS["piqa"].load(str(tmp_path), 3)
    assert [question.gold for question in found] == [row["label"] for row in PIQA[:3]]
    labels.write_text("0\n1\n")
    with pytest.raises(InputError, match=r"has 2 labels, but piqa-valid.jsonl has 12 rows"):
        TASKS["piqa"].load(str(tmp_path), 3)
    write_lines(tmp_path / "piqa-valid.jsonl", PIQA[:2])
    with pytest.raises(InputError, match=r"line 1: the field 'label' is given twice"):
        TASKS["piqa"].load(str(tmp_path), 3)


def test_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(*arguments: Any, **options: Any) -> Rows:
        asked.append((*arguments, options["split"]))
        if arguments[1] is None:
            raise ConnectionError("no way\nout")
        return ROWS["arc_easy"]

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(TASKS["arc_easy"].load(None, 1)) == 1
    with pytest.raises(
        InputError, match=r"'piqa' cannot be fetched \(no way out\): put piqa.jsonl"
    ):
        TASKS["piqa"].load(None, None)
    assert asked == [
        ("allenai/ai2_arc", "ARC-Easy", "test"),
        ("baber/piqa", None, "validation"),
    ]


def test_a_label_may_be_a_truth_value(tmp_path: Path) -> None:
    rows = [ROWS["boolq"][0] | {"label": label} for label in (True, False)]
    write_lines(tmp_path / "boolq.jsonl", rows)
    assert [each.gold for each in TASKS["boolq"].load(str(tmp_path), None)] == [1, 0]


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("piqa", '{"goal": "a", "sol1": ', "line 2: is not JSON (Expecting value at character 23"),
        ("piqa", "[1]", "line 2: is not a JSON object"),
        ("piqa", '{"goal": "a", "sol1": "b"}', "line 2: the field 'sol2' is missing"),
        ("piqa", '{"goal": 1}', "line 2: the field 'sol1' is missing"),
        (
            "piqa",
            '{"goal": 1, "sol1": "a", "sol2": "b"}',
            "line 2: the field 'goal' must be a text",
        ),
        (
            "piqa",
            '{"goal": "a", "sol1": "a", "sol2": "b", "label": 2}',
            "line 2: the field 'label' is '2', but must be one of 0, 1",
        ),
        (
            "piqa",
            '{"goal": "a", "sol1": "a", "sol2": "b", "label": "01"}',
            "line 2: the field 'label' is '01', but must be one of 0, 1",
        ),
        (
            "boolq",
            '{"question": "a", "passage": "b", "label": ""}',
            "line 2: the field 'label' is '', but must be one of 0, 1",
        ),
        ("piqa", "[" * 100_000, "line 2: has a number too long, or is nested too deep"),
        ("piqa", '{"goal": ' + "1" * 5000 + "}", "line 2: has a number too long, or is nested"),
        (
            "arc_easy",
            '{"question": "a", "choices": {"text": ["a"], "label": []}, "answerKey": "A"}',
            "line 2: the field 'choices' has 1 texts and 0 labels",
        ),
        (
            "openbookqa",
            '{"question_stem": "a", "choices": ["a"]}',
            "line 2: the field 'choices.text' is missing",
        ),
        ("winogrande", '{"sentence": "no"}', "line 2: the field 'sentence' has no blank, '_'"),
    ],
)
def test_bad_rows(cli: Cli, tmp_path: Path, name: str, line: str, message: str) -> None:
    path = write_lines(tmp_path / f"{name}.jsonl", ROWS[name][:1])
    path.write_text(path.read_text() + line + "\n")
    said = complaint(cli("eval", "tasks", "--tasks", name, "--data-dir", str(tmp_path)))
    assert said.startswith(str(path)) and message in said


def test_bad_flags(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "piqa.jsonl", PIQA)
    for arguments, message in (
        (("--tasks", "piqua"), "Did you mean 'piqa'"),
        (("--tasks", "arc_easy"), "has no arc_easy.jsonl: put the rows there"),
        (("--data-dir", str(tmp_path / "no")), "has no piqa.jsonl or piqa-valid.jsonl"),
        (("--limit", "0"), "--limit=0: must be at least 1 question"),
        (("--mode", "decod"), "Did you mean 'decode'"),
        (("-b", "0"), "--batch-size=0: must be at least 1"),
        (("-o", "xml"), "unknown output 'xml'"),
        (("-c", "8"), "tokens does not fit: the context holds 8"),
    ):
        model = ("-m", str(checkpoint), "--data-dir", str(tmp_path))
        assert message in complaint(cli("eval", "tasks", *model, *arguments))


@pytest.fixture
def asked(checkpoint: Path, tmp_path: Path) -> tuple[str, ...]:
    for name in ("piqa", "boolq"):
        write_lines(tmp_path / f"{name}.jsonl", ROWS[name])
    model = ("-m", str(checkpoint), "--data-dir", str(tmp_path))
    return ("eval", "tasks", "--tasks", "piqa,boolq", *model)


def test_the_command_line_says_all_that_is_known(cli: Cli, asked: tuple[str, ...]) -> None:
    ran = cli(*asked, "--limit", "10", "-b", "3", "-o", "json")
    record = json.loads(ran.out)
    assert ran.code == 0 and record["kind"] == "tasks" and not record["interrupted"]
    assert record["asked"]["tasks"] == "piqa,boolq" and asked[-1] not in ran.out
    assert record["reads"]["steps"] > 0
    piqa, boolq = record["result"]["tasks"]
    assert (piqa["questions"], boolq["questions"]) == (10, 2) and boolq["acc_norm"] is None
    assert record["result"]["mean"]["acc"] == pytest.approx((piqa["acc"] + boolq["acc"]) / 2)
    lines = cli(*asked, "--limit", "10", "--mode", "prefill", "-o", "csv").out.splitlines()
    assert lines[0] == "task,questions,acc,acc_stderr,acc_norm,acc_norm_stderr"
    assert lines[1].startswith(f"piqa,10,{piqa['acc']}") and lines[3].startswith("mean,12,")
    assert "| boolq |" in cli(*asked).out


def test_an_interruption_prints_what_is_done(
    cli: Cli, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(runner: Any, task: Any, *arguments: Any) -> Any:
        for count, tally in enumerate(measure(runner, task, *arguments), 1):
            yield tally
            if count == limit[task.name]:
                raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "measure", interrupted)
    limit = {"piqa": 99, "boolq": 1}
    ran = cli(*asked, "-o", "json")
    record = json.loads(ran.out)
    assert ran.code == 130 and record["interrupted"]
    assert [each["questions"] for each in record["result"]["tasks"]] == [12, 1]
    limit["piqa"] = 5
    record = json.loads(cli(*asked, "-o", "json").out)
    assert [each["questions"] for each in record["result"]["tasks"]] == [5]
