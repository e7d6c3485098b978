"""On real (tiny) models: drafts change no bit, whatever technique, policy, cache or batch."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tiny
from engines import sharing
from golden import FOLDER, model_file, sha256
from suffice import LLM, RequestOutput, SamplingParams
from suffice.engine.protocol import Rows
from suffice.engine.runner import Runner
from suffice.speculate import DraftingSample, Tree, Widths

ALWAYS = "ngram:6,adaptive=false"  # whether drafts pay or not
FEW = 200  # token ids that every model here has
PARAMS = [
    SamplingParams(**values, max_tokens=30, seed=seed, ignore_eos=True, logprobs=2)
    for seed, values in enumerate([{"temperature": 0}, {"temperature": 0.9}, {"top_k": 20}])
]


class Known:
    """Drafts the tokens that are known to come, up to a wrong one now and then."""

    def __init__(self, outputs: Sequence[RequestOutput], branch: bool = False) -> None:
        self.texts = [[*out.prompt_token_ids, *out.outputs[0].token_ids] for out in outputs]
        self.branch = branch

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        return [self._tree(s, sum(shape)) for s, shape in zip(samples, shapes, strict=True)]

    def _tree(self, sample: DraftingSample, most: int) -> Tree:
        text = [*sample.state.prompt, *sample.state.output]
        whole = next(known for known in self.texts if known[: len(text)] == text)
        right = whole[len(text) :][:most]
        if self.branch and len(right) > 2:  # a wrong branch before the right one
            wrong = (right[0] + 1) % FEW
            return Tree((wrong, wrong, *right[:-2]), (-1, 0, -1, *range(2, len(right) - 1)))
        rng = random.Random(len(text))
        if right and rng.random() < 0.6:
            place = rng.randrange(len(right))
            right[place] = (right[place] + 1) % FEW
        return Tree.chain(right)

    def forget(self, sample: DraftingSample) -> None:
        pass


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny checkpoints with a tokenizer, by variant."""
    return functools.cache(
        lambda variant: tiny.make(tmp_path_factory.mktemp(variant), variant, tokenizer=True)
    )


@pytest.fixture(scope="module")
def folder(models: Callable[[str], Path]) -> Path:
    return models("llama")


load = sharing(threads=1, dtype="float32")


def runner_of(llm: LLM) -> Runner:
    assert isinstance(llm.runner, Runner)
    return llm.runner


def prompts(count: int = 70) -> list[list[int]]:
    return [[(7 * i + 13 * number) % 190 + 3 for i in range(count)] for number in range(3)]


SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_num_seqs": 1},
    {"quantization": "int8", "kv_cache_dtype": "int8", "dtype": "auto"},
    {"growth": "bmc:rows=4"},
    {"growth": "iterative", "kv_cache_dtype": "bfloat16"},
    {"growth": "upfront", "policy": "quest:budget=48"},
    {"policy": "snapkv:budget=40"},
    {"policy": "streaming:rank_only=true", "attention": "aet:keys=0.7,values=0.1,globals=16"},
    {"attention": "art:change=0.5,angle=0.5,patience=1,block=16,probe=16"},
    {"attention": "certified:eps=0.8,bounded=false"},
    {"attention": "skip_softmax:factor=60,block=16"},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_outputs_are_those_without_drafts_bit_for_bit(
    folder: Path, options: dict[str, Any]
) -> None:
    plain = load(folder, **options).generate(prompts(), PARAMS)
    llm = load(folder, **options, speculative_config=ALWAYS)
    runner_of(llm).proposer = Known(plain)
    found = llm.generate(prompts(), PARAMS)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    assert all(each.speculation.mean_acceptance_length > 2 for each in found)
    assert all(each.speculation.draft_acceptance_rate < 1 for each in found)


@pytest.mark.parametrize("variant", ["llama", "gemma3", "mistral"])
def test_a_branch_that_is_not_the_first_gives_the_same_tokens(variant: str, models: Any) -> None:
    """Their logits may differ by rounding, which is far from turning a choice here."""
    params = [dataclasses.replace(each, logprobs=None) for each in PARAMS]
    plain = load(models(variant)).generate(prompts(), params)
    llm = load(models(variant), speculative_config=ALWAYS)
    runner_of(llm).proposer = Known(plain, branch=True)
    found = llm.generate(prompts(), params)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    assert all(each.speculation.mean_acceptance_length > 3 for each in found)


def test_drafts_go_beyond_the_trained_positions_of_a_dynamic_rotation(models: Any) -> None:
    folder, params = models("llama-dynamic"), dataclasses.replace(PARAMS[0], max_tokens=20)
    options = {"max_model_len": 32}
    plain = load(folder, **options).generate([[5] * 8], params)
    llm = load(folder, **options, speculative_config=ALWAYS)
    runner_of(llm).proposer = Known(plain)
    (found,) = llm.generate([[5] * 8], params)
    assert found.outputs == plain[0].outputs
    assert found.speculation.num_drafts == found.speculation.steps > 0


@pytest.mark.parametrize("method", ["ngram", "suffix", "suffix:tree=true"])
def test_methods_on_a_text_that_repeats(folder: Path, method: str) -> None:
    text = [[5, 9, 17, 4, 33, 8] * 10]
    params = dataclasses.replace(PARAMS[0], max_tokens=50)
    (plain,) = load(folder).generate(text, params)
    (found,) = load(folder, speculative_config=method).generate(text, params)
    assert found.outputs[0].token_ids == plain.outputs[0].token_ids
    assert found.speculation.num_drafts > 0


def test_drafts_never_force_an_early_allocation(folder: Path) -> None:
    """The paper's figure 6: drafts take spare rows, and their number is cut when few are left."""
    runner = runner_of(load(folder, growth="bmc:rows=8", speculative_config=ALWAYS))
    sequence = runner.open("a", 128)
    runner.prefill(sequence, [5] * 12)
    cache, room, grown = sequence.cache, [], []
    for _ in range(12):
        before = cache.capacity
        room.append(runner.reserve(sequence, drafts=6))
        grown.append(cache.capacity - before)
        runner.run([Rows(sequence, [5], drafts=Tree.chain([6] * room[-1]))])
        runner.commit(sequence, [0])
    assert room == [3, 2, 1, 0, 6, 6, 5, 4, 3, 2, 1, 0]
    assert grown == [0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]


def test_the_cache_grows_by_what_a_step_gives(folder: Path) -> None:
    """Eq. 9: T ~ sqrt(N / m), so steps of four tokens double the rows of an allocation."""
    runner = runner_of(load(folder, growth="bmc:ratio=0.125", speculative_config=ALWAYS))
    rows = {}
    for tokens_per_step in (1.0, 4.0):
        sequence = runner.open("a", 128)
        runner.prefill(sequence, [5] * 63)  # and room for the first token after them
        before = sequence.cache.capacity
        runner.reserve(sequence, rows=2, drafts=5, tokens_per_step=tokens_per_step)
        rows[tokens_per_step] = sequence.cache.capacity - before
    assert rows == {1.0: 32, 4.0: 64}


def test_allocations_are_those_of_plain_decoding(folder: Path) -> None:
    """Requests see no more of them, at the same lengths, whatever is drafted."""
    sizes: dict[str, list[int]] = {}
    for method in ("none", "ngram:6"):
        llm = load(folder, growth="bmc:rows=16", speculative_config=method)
        session = llm.session()
        params = dataclasses.replace(PARAMS[0], max_tokens=40)
        last = list(session.stream(prompts()[0], params))[-1][1]
        assert session._kept.sequence is not None
        sizes[method] = [session._kept.sequence.cache.capacity, *last.outputs[0].token_ids]
        session.close()
    assert sizes["none"] == sizes["ngram:6"]


@pytest.fixture(scope="module")
def real() -> tuple[Callable[..., LLM], dict[str, Any]]:
    """Engines of a real model, and a prompt with its golden tokens."""
    path = model_file("smollm2-135m")
    if path is None:
        pytest.skip("no smollm2-135m: run `suffice pull smollm2-135m`")
    golden = json.loads((FOLDER / "golden_smollm2-135m.json").read_text(encoding="utf-8"))
    assert sha256(path) == golden["sha256"]
    made = sharing(dtype="float32", threads=1, max_model_len=256)
    return functools.partial(made, path), golden["rows"][3]


@pytest.mark.model
@pytest.mark.parametrize("method", ["ngram", "suffix", "suffix:tree=true"])
def test_golden_tokens_of_smollm2(
    method: str, real: tuple[Callable[..., LLM], dict[str, Any]]
) -> None:
    made, row = real
    options = {"method": method.partition(":")[0], "tree": "tree" in method, "adaptive": False}
    if method == "ngram":
        del options["tree"]
    llm = made(speculative_config=options)
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    (output,) = llm.generate([row["tokens"]], params)
    assert list(output.outputs[0].token_ids) == row["generated"][:32]
    assert output.speculation.num_accepted_tokens > 0
