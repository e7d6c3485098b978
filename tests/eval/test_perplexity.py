"""Perplexity equals transformers', figures against a reference equal plain formulas.

Also tests reference.py and results.py.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hf_reference
import tiny
from commands import Cli
from suffice import LLM
from suffice.errors import InputError
from suffice.eval import perplexity
from suffice.eval.perplexity import PerplexityPlan, PerplexityTally, Scores, measure, windows_of
from suffice.eval.texts import described, line_ends, load_text

TEXT = "The quick brown fox jumps over the lazy dog; 0123456789 owls look on. " * 8
WINDOW = 40


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> LLM:
    return LLM(checkpoint, dtype="float32", kv_cache_dtype="float32", max_model_len=512)


@pytest.fixture(scope="module")
def lossy(checkpoint: Path) -> LLM:
    return LLM(checkpoint, quantization="int8", kv_cache_dtype="int8", max_model_len=512)


def cut(llm: LLM, limit: int | None = None) -> list[list[int]]:
    return windows_of(llm.tokenizer, TEXT, PerplexityPlan(WINDOW, limit), 512)


def last_tally(found: Any) -> PerplexityTally:
    *_, tally = found
    return tally


def last(found: Any) -> Any:
    return last_tally(found).result()


@pytest.mark.parametrize(("mode", "together"), [("decode", 1), ("decode", 3), ("prefill", 1)])
def test_it_is_transformers(llm: LLM, checkpoint: Path, mode: str, together: int) -> None:
    windows = cut(llm)
    assert len(windows) > 4 and len(windows) % 3, "a group must be incomplete"
    model = hf_reference.load(checkpoint, torch.float32)
    losses = []
    for window in windows:
        tokens = torch.tensor(window)
        losses.append(
            torch.nn.functional.cross_entropy(
                hf_reference.logits(model, tokens)[:-1], tokens[1:], reduction="none"
            )
        )
    loss = torch.cat(losses).double()
    result = last(measure(llm.runner, windows, PerplexityPlan(WINDOW, None, mode, together)))
    assert result.predictions == len(loss) == len(windows) * (WINDOW - 1)
    assert result.windows == len(windows)
    assert result.perplexity == pytest.approx(float(loss.mean().exp()), rel=1e-4)
    error = result.perplexity * float(loss.std()) / math.sqrt(len(loss))
    assert result.error == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize("together", [1, 3, 5])
@pytest.mark.parametrize("attention", ["exact", "aet:keys=0.7,values=0.1,globals=0"])
def test_tokens_of_a_step_are_as_if_alone(
    checkpoint: Path, attention: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(checkpoint, dtype="float32", attention=attention)
    windows, plan = cut(llm, 5), PerplexityPlan(WINDOW, 5, together=together)
    steps = llm.runner.trace.steps
    several = last_tally(measure(llm.runner, windows, plan))
    assert llm.runner.trace.steps - steps < 2 * 5 * WINDOW / 24 + 5
    monkeypatch.setattr(perplexity, "STEP_ROWS", 1)
    alone = last_tally(measure(llm.runner, windows, plan))
    assert several.nll == alone.nll, "bit for bit"


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_a_model_does_not_differ_from_itself(llm: LLM, mode: str) -> None:
    against = last(
        measure(llm.runner, cut(llm, 4), PerplexityPlan(WINDOW, 4, mode), llm.runner)
    ).against
    assert against.ratio == 1 and against.ratio_error == 0 and against.agreement == 1
    assert against.divergence == against.divergence_999 == against.change == 0


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_a_lossy_setting_differs(llm: LLM, lossy: LLM, mode: str) -> None:
    windows = cut(llm, 4)
    plan = PerplexityPlan(WINDOW, 4, mode)
    alone = last(measure(lossy.runner, windows, plan))
    result = last(measure(lossy.runner, windows, plan, llm.runner))
    against = result.against
    assert result.perplexity == alone.perplexity
    assert against.ratio == pytest.approx(result.perplexity / against.perplexity, rel=1e-6)
    assert 0 < against.divergence_median < against.divergence_99 <= against.divergence_999
    assert 0 < against.change < 0.1 and 0 < against.ratio_error < 0.1


def test_figures_are_their_formulas() -> None:
    random, count, vocabulary = np.random.default_rng(0), 12, 7
    logits, expected = 3 * random.standard_normal((2, count, vocabulary))
    targets = random.integers(vocabulary, size=count).tolist()
    windows = [index % 3 for index in range(count)]
    tally = PerplexityTally(3)
    tally.add(Scores(windows, targets, logits), Scores(windows, targets, expected))
    result = tally.result()
    assert result.against is not None
    q, p = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (logits, expected))
    rows = np.arange(count)
    nll_q, nll_p = -np.log(q[rows, targets]), -np.log(p[rows, targets])
    divergence = (p * np.log(p / q)).sum(1)
    close = pytest.approx
    against = result.against
    assert result.perplexity == close(np.exp(nll_q.mean()))
    assert against.perplexity == close(np.exp(nll_p.mean()))
    means = [(nll_q - nll_p)[np.array(windows) == window].mean() for window in range(3)]
    assert against.ratio == close(np.exp(np.mean(means)))
    assert against.ratio_error == close(against.ratio * np.std(means, ddof=1) / math.sqrt(3))
    assert against.divergence == close(divergence.mean())
    assert against.divergence_median == close(np.median(divergence))
    assert against.divergence_99 == close(np.percentile(divergence, 99))
    assert against.agreement == close((q.argmax(1) == p.argmax(1)).mean())
    change = q[rows, targets] - p[rows, targets]
    assert against.change == close(math.sqrt((change**2).mean()))


def test_scores_meet_however_they_are_cut() -> None:
    def scores(*sizes: int) -> Any:
        first = 0
        for size in sizes:
            rows = list(range(first, first + size))
            yield Scores(rows, rows, np.array(rows, np.float32)[:, None])
            first += size

    pairs = list(perplexity._paired(scores(3, 4, 2), scores(5, 1, 3)))
    for ours, theirs in pairs:
        assert theirs is not None and ours.targets == theirs.targets == ours.windows
        assert np.array_equal(ours.logits, theirs.logits)
    assert [target for ours, _ in pairs for target in ours.targets] == list(range(9))


class Letters:
    """A tokenizer of letters that begins every text with token 0."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [0] * special + [ord(letter) for letter in text]


def test_windows() -> None:
    tokenizer: Any = Letters()
    with pytest.raises(InputError, match="the text has 0 tokens: give a longer one"):
        windows_of(tokenizer, "", PerplexityPlan(4), 9)
    two = [[0, 97, 98, 99], [0, 100, 101, 102]]
    assert windows_of(tokenizer, "abcdefg", PerplexityPlan(4), 9) == two
    assert windows_of(tokenizer, "abcdefg", PerplexityPlan(4, 1), 9) == two[:1]
    for window, limit, message in (
        (1, None, "--window=1: must be at least 2"),
        (10, None, "--window=10: must not be more than the context length, 9"),
        (9, None, "the text has 7 tokens: --window=9 must not be more than 8"),
        (4, 0, "--limit=0: must be at least 1 window"),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            windows_of(tokenizer, "abcdefg", PerplexityPlan(window, limit), 9)


def test_texts(tmp_path: Path) -> None:
    good = tmp_path / "good.txt"
    good.write_text("owls", encoding="utf-8")
    assert load_text(str(good)) == "owls"
    (tmp_path / "wiki.test.raw").write_text("birds", encoding="utf-8")
    assert load_text("wikitext2", str(tmp_path)) == "birds"
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "sub").mkdir()
    (tmp_path / "zeros").write_bytes(b"a\0b")
    for name, folder, message in (
        (str(tmp_path / "empty"), None, "empty is empty"),
        (str(tmp_path / "binary"), None, r"binary is not text \(UTF-8\): byte 0"),
        (str(tmp_path / "zeros"), None, "zeros is not text: it has zero bytes"),
        (str(tmp_path / "none.txt"), None, "none.txt: cannot be read: No such file"),
        ("wikitex2", None, "Did you mean 'wikitext2'"),
        ("wikitext2", str(tmp_path / "empty"), "empty: there is no such folder"),
        ("wikitext2", str(tmp_path / "sub"), "has no wikitext2-test-raw.txt or wiki.test.raw: put"),
    ):
        with pytest.raises(InputError, match=message):
            load_text(name, folder)


ARGUMENTS = ("eval", "perplexity", "--window", str(WINDOW), "--limit", "3")


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def test_the_command_line_says_all_that_is_known(cli: Cli, checkpoint: Path, text: str) -> None:
    asked = ("--text", text, "-m", str(checkpoint), "--quant", "int8", "--against", "exact")
    ran = cli(*ARGUMENTS, *asked, "-o", "json")
    record = json.loads(ran.out)
    assert ran.code == 0 and record["kind"] == "perplexity" and not record["interrupted"]
    assert record["schema"] == 1 and record["machine"]["cpu"] and record["versions"]["numpy"]
    assert (
        record["config"]["quant"] == "Int8(act_bits=16, sites='qkv+o+gate_up')"
        and len(record["config"]["hash"]) == 16
    )
    assert str(checkpoint) not in ran.out and text not in ran.out, (
        "a path says where somebody works"
    )
    result = record["result"]
    assert result["windows"] == 3 and result["predictions"] == 3 * (WINDOW - 1)
    table = cli(*ARGUMENTS, *asked).out
    (row,) = [line for line in table.splitlines() if line.startswith("| perplexity  ")]
    assert [float(cell) for cell in row.split("|")[2:4]] == [
        pytest.approx(result[name], rel=1e-5) for name in ("perplexity", "error")
    ]
    reads = record["reads"]
    assert "| bytes of KV and metadata read | 1 |" in " ".join(table.split())
    assert reads["steps"] == 5 and reads["kv_bytes_read"] == reads["kv_bytes_held"] > 0
    lines = cli(*ARGUMENTS, *asked, "-o", "csv").out.splitlines()
    assert lines[0] == "measure,value,standard error" and lines[1] == "windows,3,"


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("a\nb\n", "LF"),
        ("a\r\nb\r\n", "CRLF"),
        ("a\rb", "CR"),
        ("a\r\nb\n", "mixed"),
        ("a\rb\nc", "mixed"),
        ("a b", "none"),
    ],
)
def test_line_ends_are_told(text: str, ends: str) -> None:
    assert line_ends(text) == ends
    assert described("a.txt", text, [[1, 2]])["line_ends"] == ends


def test_a_result_says_its_text_s_line_ends(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "windows.txt"
    path.write_bytes(b"The owls sleep by day.\r\n" * 60)
    asked = ("--text", str(path), "-m", str(checkpoint), "--limit", "1")
    record = json.loads(cli(*ARGUMENTS, *asked, "-o", "json").out)
    assert record["asked"]["text_line_ends"] == "CRLF"
    assert cli(*ARGUMENTS, *asked, "-o", "csv").out.endswith("line ends of the text,CRLF,\n")


def test_another_model_may_be_the_reference(
    cli: Cli, checkpoint: Path, text: str, tmp_path: Path
) -> None:
    other = tiny.make(
        tmp_path, "qwen3", tokenizer=True, max_position_embeddings=64, initializer_range=0.3
    )
    model = ("--text", text, "-m", str(checkpoint))
    record = json.loads(cli(*ARGUMENTS, *model, "--against", str(other), "-o", "json").out)
    alone = json.loads(cli(*ARGUMENTS, "--text", text, "-m", str(other), "-o", "json").out)
    against = record["result"]["against"]
    assert against["perplexity"] == pytest.approx(alone["result"]["perplexity"])
    assert against["ratio"] != 1 and record["asked"]["against"] == other.name


def test_references_that_cannot_be_compared_with(
    cli: Cli, checkpoint: Path, text: str, tmp_path: Path
) -> None:
    def refusal(*arguments: str) -> str:
        ran = cli(*ARGUMENTS, "--text", text, "-m", str(checkpoint), *arguments)
        assert ran.code == 2 and ran.err.count("\n") == 1
        return ran.err

    for against in ("exact", str(checkpoint)):
        assert (
            f"--against {against}: would compare {checkpoint} with itself: add what is to be "
            "measured, such as --quant int8, or name another model"
        ) in refusal("--against", against)
    assert "with itself" not in cli(*ARGUMENTS, "--against", str(checkpoint), "-ctk", "int8").err
    folder = tmp_path / "other"
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32}))
    assert "--window=40: must not be more than 32, the context length of the ref" in refusal(
        "--against", str(folder)
    )
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    names = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    last, before = names[-1], names[-2]
    vocab = tokenizer["model"]["vocab"]
    vocab[last], vocab[before] = vocab[before], vocab[last]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps(config))
    said = refusal("--against", str(folder))
    assert f"--against {folder}: has another vocabulary (" in said


def test_an_interruption_prints_what_is_done(
    cli: Cli, checkpoint: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> Any:
        for count, tally in enumerate(measure(*arguments, **options)):
            yield tally
            if count == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(perplexity, "measure", interrupted)
    ran = cli(*ARGUMENTS, "--text", text, "-m", str(checkpoint), "-o", "json", "-b", "2")
    record = json.loads(ran.out)
    assert ran.code == 130 and record["interrupted"]
    assert record["result"]["predictions"] == 2 * 24 and record["result"]["windows"] == 2


def test_bad_input(cli: Cli, checkpoint: Path, text: str) -> None:
    model = ("-m", str(checkpoint), "--text", text)
    for arguments, message in (
        (("--mode", "decod"), "Did you mean 'decode'"),
        (("-b", "0"), "--batch-size=0: must be at least 1 window"),
        (("--against", "exakt"), "Did you mean 'exact'"),
        (("-o", "xml"), "unknown output 'xml'"),
        (("-c", "32"), "--window=40: must not be more than the context length, 32"),
        (("--window", "x"), "'x' is not a whole number"),
        (("--data-dir", "nowhere", "--text", "wikitext2"), "nowhere: there is no such folder"),
    ):
        ran = cli(*ARGUMENTS, *model, *arguments)
        assert ran.code == 2 and message in ran.err and ran.err.count("\n") == 1 and not ran.out
