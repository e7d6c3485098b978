"""Engines of models with latent attention: the laws of results, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiny
from engines import sharing
from suffice import LLM, SamplingParams
from suffice.attention import ATTENTIONS
from suffice.cache import JOINT_DTYPES
from suffice.errors import InputError

load = sharing(threads=2, dtype="float32")
LENGTHS = (3, 150, 640)  # less than a part of a prompt, more, and more than a chunk of attention
PROMPTS = [[(7 * i * i + 3 * i) % tiny.VOCABULARY for i in range(length)] for length in LENGTHS]
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
EXACT = [
    *(f"attention={name}" for name in ("aet", "art", "certified", "skip_softmax")),
    *(f"policy={name}:budget=1024" for name in ("h2o", "pyramidkv", "quest", "snapkv")),
    "policy=streaming:budget=1024,sinks=4",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(
        tmp_path_factory.mktemp("tiny"),
        "deepseek-v2-lite",
        tokenizer=True,
        max_position_embeddings=1024,
    )


def outputs(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[Any]:
    """Return tokens, texts and log probabilities."""
    return [each.outputs for each in llm.generate(prompts, GREEDY)]


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[Any]:
    llm = load(folder, max_num_seqs=1, threads=1)
    return [outputs(llm, [prompt])[0] for prompt in PROMPTS]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threads": 1, "prefill_chunk": 16},
        {"max_num_seqs": 2, "growth": "iterative"},
        {"speculative_config": "ngram"},
    ],
    ids=str,
)
def test_a_result_is_that_of_a_request_alone(
    folder: Path, alone: list[Any], options: dict[str, Any]
) -> None:
    assert outputs(load(folder, **options)) == alone


@pytest.mark.parametrize("dtype", JOINT_DTYPES)
def test_a_beginning_that_is_known_changes_no_bit(folder: Path, dtype: str) -> None:
    longer = [*PROMPTS[1], 5, 6, 7]
    llm = load(folder, kv_cache_dtype=dtype)
    fresh = outputs(llm, [longer])[0]
    with llm.session() as session:
        first, then = (
            list(session.stream(prompt, GREEDY))[-1][1] for prompt in (PROMPTS[1], longer)
        )
    assert first.num_cached_tokens == 0
    assert then.num_cached_tokens == len(PROMPTS[1])
    assert then.outputs == fresh


@pytest.mark.parametrize("setting", EXACT)
def test_what_leaves_nothing_out_is_exact(folder: Path, alone: list[Any], setting: str) -> None:
    seam, _, value = setting.partition("=")
    option: Any = value
    if seam == "attention":
        option = ATTENTIONS.load(value).exact_limit()
    found = outputs(load(folder, **{seam: option}))
    tokens = [[each.token_ids for each in own] for own in found]
    assert tokens == [[each.token_ids for each in own] for own in alone]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "tiers:eps=0.01"}, "attention=tiers reads 4-bit copies of keys"),
        ({"kv_cache_dtype": "kmeans4"}, "'kmeans4': this model stores keys and values as one row"),
        ({"kv_cache_dtype": "planes"}, "'planes': this model stores keys and values as one row"),
        ({"kv_cache_dtype": "int8/float16"}, "'int8/float16': this model stores keys and values"),
        (
            {"speculative_config": "self:attention=tiers"},
            "speculative_config=self reads 4-bit copies of keys",
        ),
    ],
    ids=str,
)
def test_what_the_cache_cannot_have_is_refused(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value)


def test_bytes_of_a_request_are_those_of_its_rows(folder: Path) -> None:
    runner = load(folder, kv_cache_dtype="bfloat16", growth="upfront").runner
    sequence = runner.open("one", 64)
    assert sequence.cache.row_bytes == 3 * 64 * 2  # layers, entries, bytes
    assert runner.bytes_of(1024) == 1024 * 3 * 64 * 2
    runner.close(sequence)
