"""The benchmark of speculative decoding on a tiny model and a few prompts of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny
from benchmarks.harness import record
from benchmarks.peers.engines import transformers
from benchmarks.speculate import cells, speed, step_cost
from suffice.errors import InputError
from suffice.speculate.stats import DraftStats

GREEDY = "qa at temperature 0"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return tiny.shallow(folder, max_position_embeddings=512)


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A file of prompts of three categories, one of them of MT-bench."""
    rows = [
        {"question_id": at, "category": category, "turns": [text, "never asked"]}
        for at, (category, text) in enumerate(
            [("qa", "a b a b a b"), ("qa", "c d"), ("writing", "b b b"), ("rag", "a " * 900)]
        )
    ]
    lines = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "spec-bench-questions.jsonl").write_text(lines)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, model: Path, folder: Path, *more: str) -> int:
    arguments = ["speed", "--model", str(model), "--out", str(folder), "--threads", "1"]
    arguments += ["--context", "200", "--max-tokens", "24"]
    monkeypatch.setattr(sys, "argv", [*arguments, *more])
    return speed.main()


def found(folder: Path) -> tuple[dict[str, Any], str]:
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text()), path.with_suffix(".md").read_text()


def details(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.details.json.gz")
    return record.read_details(folder, path.name.partition(".")[0])


def test_a_run_goes_on_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch, model: Path, asked: Path
) -> None:
    folder = asked / "out"
    settings = ["--data-dir", str(asked), "--settings", "ngram:4,adaptive=false"]
    assert run(monkeypatch, model, folder, *settings, "--limit", "1", "--temperatures", "0") == 0
    first, drawn = found(folder)
    assert set(first["cells"]) == {GREEDY, "conversation at temperature 0"}, "one is too long"
    cell = first["cells"][GREEDY]["ngram:4,adaptive=false"]
    (prompt,) = details(folder)[GREEDY]["ngram:4,adaptive=false"]
    assert prompt["question"] == 0 and prompt["same"] and cell["prompts"] == cell["same"] == 1
    assert cell["plain"] == prompt["plain"] and cell["other"] == prompt["other"]
    assert cell["plain"]["tokens"] == cell["other"]["tokens"] <= 23
    assert cell["accepted"] <= cell["drafted"] > 0 < cell["steps"]
    assert "| qa | 1 |" in drawn and "Temperature 0:" in drawn
    more = [*settings, "suffix + iterative", "--limit", "2", "--temperatures", "0", "1"]
    assert run(monkeypatch, model, folder, *more) == 0
    then, drawn = found(folder)
    again = then["cells"]["conversation at temperature 0"]
    assert (
        again["ngram:4,adaptive=false"]
        == first["cells"]["conversation at temperature 0"]["ngram:4,adaptive=false"]
    ), "it had all its prompts"
    assert then["cells"][GREEDY]["ngram:4,adaptive=false"]["prompts"] == 2
    single = details(folder)
    assert single.keys() == then["cells"].keys(), "those of the first run are kept"
    assert len(single[GREEDY]["ngram:4,adaptive=false"]) == 2
    sampled = then["cells"]["qa at temperature 1"]
    assert set(sampled) == {"ngram:4,adaptive=false", "suffix + iterative"}
    assert all(cell["same"] == cell["prompts"] for cell in sampled.values()), "the same seed"
    assert "Temperature 1:" in drawn
    assert run(monkeypatch, model, folder, *more, "--kv-cache-dtype", "float32") == 2


def test_prompts_deep_in_a_text(
    monkeypatch: pytest.MonkeyPatch, model: Path, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (asked / "wikitext2-test-raw.txt").write_text("a b c d " * 60)
    settings = ["--data-dir", str(asked), "--settings", "self", "--temperatures", "0"]
    assert run(monkeypatch, model, asked / "out", *settings, "--deep", "100", "--limit", "2") == 0
    cells, drawn = found(asked / "out")
    (cell,) = [cell["self"] for cell in cells["cells"].values()]
    (prompts,) = [cell["self"] for cell in details(asked / "out").values()]
    assert cell["prompts"] == cell["same"] == len(prompts) == 2
    assert prompts[0]["question"] == 0 < prompts[1]["question"], "they begin at different places"
    assert cell["drafted"] > 0
    assert "| WikiText-2, 100 | 2 |" in drawn
    (asked / "wikitext2-test-raw.txt").write_text("a b c")
    assert run(monkeypatch, model, asked / "out", *settings, "--deep", "99") == 2
    assert "--deep 99: the text has" in capsys.readouterr().err


def test_greedy_tokens_that_differ_fail(
    monkeypatch: pytest.MonkeyPatch, model: Path, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = cells.compared

    def wrong(*parts: Any) -> Any:
        for cell in whole(*parts):
            yield cell | {"same": cell["same"] - 1}

    monkeypatch.setattr(speed, "compared", wrong)
    settings = ["--data-dir", str(asked), "--settings", "ngram", "--temperatures", "0"]
    assert run(monkeypatch, model, asked / "out", *settings, "--limit", "1") == 1
    assert "tokens differ from plain decoding: qa at temperature 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "--data-dir: the folder with the questions' file is needed"),
        (["--data-dir", ".", "--categories", "q"], "unknown category 'q'. Did you mean 'qa'"),
        (["--data-dir", ".", "--settings", "ngrm"], "unknown speculator 'ngrm'. Did you mean"),
        (["--data-dir", ".", "--settings", "ngram + bcm"], "unknown growth 'bcm'. Did you mean"),
        (["--limit", "0"], "--limit: must be at least 1"),
        (["--deep", "177"], "--deep 177: must be 1 to 176, --context less --max-tokens"),
        (["--rows", "--clock", "cpu", "--threads", "2"], "--clock cpu: counts the time of this"),
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
    assert not list(tmp_path.iterdir())


def test_lines_that_are_no_questions(asked: Path) -> None:
    (asked / "spec-bench-questions.jsonl").write_text('{"category": "qa"}')
    with pytest.raises(InputError, match="line 1: needs question_id, category, and turns"):
        cells.questions("spec-bench", asked, None, 1, 10)  # type: ignore[arg-type]


def test_speed_bench_has_categories_and_results_of_its_own(
    monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    rows = [
        {"question_id": f"{at:032x}", "category": category, "messages": [message] * 2}
        for at, category in enumerate(["coding", "stem", "coding"])
        for message in [{"role": "user", "content": "a b a b"}]
    ]
    file = tmp_path / "qualitative.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    more = ["--questions", "speed-bench", "--settings", "ngram", "--temperatures", "0"]
    assert run(monkeypatch, model, tmp_path / "out", "--data-dir", str(tmp_path), *more) == 0
    data, _ = found(tmp_path / "out")
    assert {place: cells["ngram"]["prompts"] for place, cells in data["cells"].items()} == {
        "coding at temperature 0": 2,
        "stem at temperature 0": 1,
    }
    assert [path.name for path in (tmp_path / "out").glob("*speed-bench.json")]
    file.write_text(json.dumps(rows[0] | {"category": "none"}))
    assert run(monkeypatch, model, tmp_path / "out", "--data-dir", str(tmp_path), *more) == 2


def test_each_way_answers_each_prompt_and_takes_turns_in_going_first() -> None:
    calls: list[str] = []

    def answers(name: str, seconds: float) -> Any:
        def answer(question: Any) -> Any:
            calls.append(name)
            return [1, 2], 1, seconds, DraftStats(steps=1)

        return answer

    asked = [cells.Question(at, [3]) for at in range(2)]
    plain = answers("plain", 1.0)
    *_, cell = cells.compared(plain, answers("other", 2.0), asked)
    assert calls == ["plain", "other", "other", "plain"] and cell["steps"] == 2
    assert cells.speed_up([cell]) == 0.5
    calls.clear()
    list(cells.compared(plain, plain, asked))
    assert len(calls) == 4, "a way is also compared with itself"


def test_figures_of_cells() -> None:
    def prompt(tokens: int, plain: float, other: float) -> dict[str, Any]:
        ways = {"plain": plain, "other": other}
        timed = {way: {"tokens": tokens, "seconds": s} for way, s in ways.items()}
        return {**timed, "same": True, "repeated": other / 2}

    measured = [
        cells.summed([prompt(10, 1.0, 0.5), prompt(30, 3.0, 1.5)]) | {"steps": 20, "accepted": 20},
        cells.summed([prompt(20, 2.0, 2.0)]) | {"steps": 20, "accepted": 0},
    ]
    assert (measured[0]["prompts"], measured[0]["same"], measured[0]["repeated"]) == (2, 2, 0.5)
    assert cells.speed(measured, "plain") == 10
    assert cells.speed_up(measured[:1]) == 2
    assert cells.speed_up(measured) == 1.5
    assert cells.tokens_per_step(measured) == 1.5
    assert cells.tokens_per_step([{"steps": 0, "accepted": 0}]) is None
    assert cells.repeated([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(0.2)
    assert cells.repeated([1, 2, 3]) == 0


def test_costs_of_rows(monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(step_cost, "ROWS", (1, 3))
    more = ["--rows", "--quick", "--weights", "int8", "none"]
    assert run(monkeypatch, model, tmp_path, *more) == 0
    data, drawn = found(tmp_path)
    assert set(data["times"]) == {"int8, 24", "none, 24"}
    times = data["times"]["int8, 24"]
    assert set(times["step"]) == {"1", "3"} and min(times["step"].values()) > 0
    assert times["attention"]["3"] + times["head"]["3"] + times["layers"]["3"] == pytest.approx(
        times["step"]["3"]
    )
    assert "| int8, 24 | 1 |" in drawn


@pytest.mark.parametrize("assisted", [False, True])
def test_transformers_drafts_give_its_greedy_tokens(model: Path, assisted: bool) -> None:
    options = {"model": str(model), "threads": 1, "dtype": "float32", "attention": "sdpa"}
    options |= {"assisted": assisted}
    engine = transformers.Transformers(options)
    prompt = [5, 9, 17, 4, 33, 8] * 6
    answer = engine.look_up(prompt, 16, 4)
    whole = engine.decode([prompt], 15)["tokens"]
    assert answer["tokens"] == whole[: len(answer["tokens"])]
    assert 0 < answer["timed"] < len(answer["tokens"]) <= 16
    assert answer["seconds"] > 0
