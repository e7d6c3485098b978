"""Needles by selectors: drafts change no answer, which ends when it has what is expected."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from benchmarks.attention import selecting, selector_ruler
from benchmarks.attention.selectors import SELECTORS
from sample_text import OWLS
from suffice.eval.ruler import RulerPlan

LENGTH, NEW_TOKENS = 512, 16


@pytest.fixture(scope="module", autouse=True)
def short_answers() -> Iterator[None]:
    """End answers earlier."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selector_ruler, "NEW_TOKENS", NEW_TOKENS)
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("needles") / "model"
    return tiny.shallow(folder, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def answers(model: Path) -> selector_ruler.Answers:
    decoder, tokenizer, _ = selecting.opened(str(model), torch.device("cpu"))
    decoder.choose_channels(tokenizer.encode(OWLS * 4))
    return selector_ruler.Answers(decoder, tokenizer)


@pytest.fixture(scope="module")
def asked(answers: selector_ruler.Answers) -> selector_ruler.Asked:
    return answers.ask(next(RulerPlan(["niah_single_1"], [LENGTH], 1).drafts()))


def stepped(
    answers: selector_ruler.Answers, asked: selector_ruler.Asked, setting: str
) -> tuple[list[int], list[float]]:
    """Return a greedy answer, a token at a time, and the bytes of each step."""
    tokens, read, cache = [asked.first], [], asked.cache
    while len(tokens) < NEW_TOKENS and tokens[-1] not in answers.tokenizer.eos_ids:
        found = answers.decoder.select(tokens[-1:], cache, SELECTORS.build(setting))
        tokens.append(int(found.logits.argmax()))
        read.append(float(found.read))
    cache.truncate(len(asked.prompt))
    return tokens, read


@pytest.mark.parametrize("setting", ["exact", "twilight:mass=0.5", "sparq:rows=0.1", "looks"])
def test_an_answer_is_that_of_steps(
    answers: selector_ruler.Answers, asked: selector_ruler.Asked, setting: str
) -> None:
    tokens, read = stepped(answers, asked, setting)
    text = answers.tokenizer.decode(tokens, skip_special=True)
    assert len(tokens) > 10
    for expected in (text, text[: len(text) // 2]):
        steps = next(
            count
            for count in range(len(tokens))
            if expected in answers.tokenizer.decode(tokens[: count + 1], skip_special=True)
        )
        wanted = dataclasses.replace(asked, expected=(expected,))
        found = answers.answer(wanted, SELECTORS.build(setting))
        assert found.score == 100
        assert found.read == pytest.approx(sum(read[:steps]), rel=1e-3)
    wrong = dataclasses.replace(asked, expected=(text[: len(text) // 2], "no such text"))
    found = answers.answer(wrong, SELECTORS.build(setting))
    assert found.score == 50
    assert found.read == pytest.approx(sum(read), rel=1e-3)
    assert asked.cache.length == len(asked.prompt)


def test_the_expected_answer_is_drafted(
    answers: selector_ruler.Answers, asked: selector_ruler.Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = answers.tokenizer.encode(f" {asked.expected[0]}", special=False)
    select, passes = answers.decoder.select, []
    monkeypatch.setattr(
        answers.decoder, "select", lambda given, *rest: passes.append(given) or select(given, *rest)
    )
    answers.answer(dataclasses.replace(asked, first=right[0]), SELECTORS.build("exact"))
    assert passes[0][: len(right)] == right and len(right) > 3
    most = max(map(len, passes))
    assert 4 < most <= selector_ruler.DRAFTS and len(passes) < NEW_TOKENS


def test_parts_of_a_prompt_are_as_good_as_the_whole(
    answers: selector_ruler.Answers, asked: selector_ruler.Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selector_ruler, "CHUNK", 100)
    found = answers.ask(next(RulerPlan(["niah_single_1"], [LENGTH], 1).drafts()))
    assert (found.prompt, found.first) == (asked.prompt, asked.first)
    for layer in range(found.cache.layers):
        own, whole = (each.cache.keys(layer) for each in (found, asked))
        np.testing.assert_allclose(own, whole, rtol=0.02, atol=0.02)


def test_a_run_stores_cells_and_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.txt").write_text(OWLS * 10)

    def run(*settings: str) -> int:
        given = ["--model", str(model), "--calibrate", str(tmp_path / "other.txt")]
        given += ["--tasks", "niah_single_1", "--lengths", str(LENGTH), "--samples", "2"]
        given += ["--threads", "1", "--out", str(tmp_path), "--settings", *settings]
        monkeypatch.setattr(sys, "argv", ["selector_ruler", *given])
        return selector_ruler.main()

    asked: list[object] = []
    ask = selector_ruler.Answers.ask
    monkeypatch.setattr(
        selector_ruler.Answers, "ask", lambda own, draft: asked.append(draft) or ask(own, draft)
    )
    assert run("sparq:rows=0.1") == 0
    assert len(asked) == 2, "each prompt once"
    path = tmp_path / "selector_ruler_model.json"
    cells = json.loads(path.read_text())["cells"]["niah_single_1 at 512"]
    exact, sparq = cells["exact"], cells["sparq:rows=0.1"]
    assert exact["kv_bytes_read"] == exact["kv_bytes_held"] > 0
    assert 0 < sparq["kv_bytes_read"] / sparq["kv_bytes_held"] < 0.6
    assert sparq["samples"] == exact["samples"] == 2
    table = path.with_suffix(".md").read_text()
    assert "| `exact` | 0.0 ± 0.0 | 1.000 | 0.0 ± 0.0 |" in table
    assert run("sparq:rows=0.1") == 0
    assert len(asked) == 2, "nothing is measured again"
    capsys.readouterr()
    assert run("sparq:row=0.1") == 2
    error = capsys.readouterr().err
    assert "has no option 'row'" in error and error.count("\n") == 1
