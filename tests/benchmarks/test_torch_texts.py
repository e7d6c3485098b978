"""Many texts in one pass of PyTorch: each is as the engine has it alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from benchmarks.harness import torch_texts
from benchmarks.harness.torch_texts import Layout, TextsDecoder, answered, likelihoods, passes
from suffice import LLM
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError
from suffice.eval.likelihood import Likelihood, LikelihoodPlan, Pair, context_length, score
from suffice.eval.tasks import TASKS, encoded, measure
from suffice.quant.none import NoQuant
from task_rows import PIQA, write_lines

pytestmark = pytest.mark.usefixtures("one_thread")
# Windows, caps, spare logits, tables of positions, experts, layers without a rotation.
VARIANTS = ("llama", "gemma3", "gemma2", "gpt-oss", "opt", "mixtral", "neox", "smollm3")


def opened(folder: Path) -> tuple[LLM, TextsDecoder]:
    llm = LLM(folder, dtype="float32", kv_cache_dtype="float32", threads=1)
    return llm, TextsDecoder.from_checkpoint(open_checkpoint(folder), NoQuant("float32"))


def drawn(count: int, longest: int = 40) -> list[Pair]:
    """Pairs of unequal lengths, some of a single token each."""
    random = np.random.default_rng(0)
    sizes = zip(random.integers(1, longest, count), random.integers(1, 7, count), strict=True)
    every = [[random.integers(3, 200, size).tolist() for size in pair] for pair in sizes]
    return [Pair(*each) for each in [*every, [[5], [7]]]]


def run(decoder: TextsDecoder, pairs: list[Pair]) -> list[Likelihood]:
    found = dict(each for together in likelihoods(decoder, pairs) for each in together)
    return [found[index] for index in range(len(pairs))]


@pytest.mark.parametrize("variant", VARIANTS)
def test_likelihoods_are_the_engine_s(variant: str, tmp_path: Path) -> None:
    llm, decoder = opened(tiny.make(tmp_path, variant, tokenizer=True))
    pairs = drawn(12)
    expected = dict(score(llm.runner, pairs, LikelihoodPlan("prefill")))
    found = run(decoder, pairs)
    assert len(list(passes([len(pair.context) for pair in pairs]))) == 1, "all run together"
    for index, each in enumerate(found):
        assert each.log == pytest.approx(expected[index].log, rel=1e-5, abs=1e-3), index
        assert each.greedy == expected[index].greedy


def test_the_greedy_continuation_is_known(tmp_path: Path) -> None:
    llm, decoder = opened(tiny.make(tmp_path, "llama", tokenizer=True))
    context = [9, 5, 3]
    best: list[int] = []
    for _ in range(3):
        (logits,) = llm.runner.prefill_all(llm.runner.open("x", 8), context + best)
        best.append(int(logits[-1].argmax()))
    pairs = [Pair(context, best), Pair(context, [*best[:2], best[2] ^ 1])]
    assert [each.greedy for each in run(decoder, pairs)] == [True, False]


@pytest.mark.parametrize("variant", ["llama", "mistral"])
def test_a_text_does_not_depend_on_the_others(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, decoder = opened(tiny.make(tmp_path, variant, tokenizer=True))
    pairs = drawn(20)
    together = run(decoder, pairs)
    monkeypatch.setattr(torch_texts, "ROWS", 3)  # logits in several parts
    for alone, expected in zip(
        [decoder.follow([pair])[0] for pair in pairs], together, strict=True
    ):
        assert alone.log == pytest.approx(expected.log, abs=2e-4)


def test_texts_with_the_same_inputs_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, decoder = opened(tiny.make(tmp_path, "llama", tokenizer=True))
    context = [9, 5, 3, 8]
    pairs = [Pair(context, [4]), Pair([7, 7], [3]), Pair(context, [6]), Pair(context[:-1], [8, 2])]
    expected = dict(score(llm.runner, pairs, LikelihoodPlan("prefill")))
    layouts = []
    monkeypatch.setattr(
        Layout,
        "of",
        lambda lengths, device, of=Layout.of: layouts.append(lengths) or of(lengths, device),
    )
    found = run(decoder, pairs)
    assert [sorted(lengths) for lengths in layouts] == [[2, 4]]
    assert [each.log for each in found] == pytest.approx(
        [expected[index].log for index in range(4)], rel=1e-5
    )


def test_passes_hold_texts_of_about_one_length() -> None:
    lengths = np.random.default_rng(1).integers(1, 300, 500).tolist()
    found = list(passes([*lengths, 5000], 1000))
    assert sorted(index for members in found for index in members) == list(range(501))
    assert found[0] == [500], "one that is too long for a pass runs alone"
    sizes = [[lengths[index] for index in members] for members in found[1:]]
    assert all(max(own) * len(own) <= 1000 for own in sizes)
    padding = 1 - sum(map(sum, sizes)) / sum(max(own) * len(own) for own in sizes)
    assert padding < 0.03 and len(found) < 1.1 * sum(lengths) / 1000 + 20


def test_a_layout_knows_each_token_s_place() -> None:
    layout = Layout.of([3, 1, 2], torch.device("cpu"))
    assert layout.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert layout.padded.tolist() == [[0, 1, 2], [3, 3, 3], [4, 5, 5]]
    assert layout.places.tolist() == [0, 1, 2, 3, 6, 7]
    assert layout.padded.flatten()[layout.places].tolist() == [0, 1, 2, 3, 4, 5]


def test_answers_are_in_the_order_of_questions(tmp_path: Path) -> None:
    llm, decoder = opened(tiny.make(tmp_path / "model", "llama", tokenizer=True))
    write_lines(tmp_path / "piqa.jsonl", PIQA)
    task = TASKS["piqa"]
    questions = task.load(str(tmp_path), None)
    pairs = encoded(llm.tokenizer, questions, context_length(llm))
    *_, expected = measure(llm.runner, task, questions, pairs, LikelihoodPlan("prefill"))
    found = answered(decoder, llm.tokenizer, task, questions, "none")
    assert 0 < sum(found.right) < len(PIQA), "some answers are wrong, some right"
    assert found.right == expected.right and found.right_normalised == expected.right_normalised


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (Pair([5] * 120, [6] * 20), "139 tokens are more than the model has positions"),
        (Pair([5, 100_000], [6]), "token 100000 is outside the vocabulary"),
    ],
)
def test_texts_that_a_model_cannot_run(pair: Pair, message: str, tmp_path: Path) -> None:
    _, decoder = opened(tiny.make(tmp_path, "opt", tokenizer=True))
    with pytest.raises(InputError, match=message):
        decoder.follow([Pair([5], [6]), pair])
