"""On a real (tiny) model: a request's result is its own, to the last bit."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from engines import sharing
from suffice import RequestOutput, SamplingParams, native

PROMPTS = ["The quick", "To be, or not to be, that is the question.", "a", "jumps over", "b c 1"]
PARAMS = [
    SamplingParams(**{"max_tokens": 14, **values}, seed=seed, ignore_eos=True, logprobs=3)
    for seed, values in enumerate(
        [
            {"temperature": 0},
            {"temperature": 0.9},
            {"temperature": 1.2, "top_k": 20},
            {"temperature": 0.8, "top_p": 0.8, "repetition_penalty": 1.2},
            {"temperature": 0.7, "min_p": 0.05, "max_tokens": 9},
        ]
    )
]


load = sharing(threads=1, dtype="float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("tiny"), "llama", tokenizer=True)


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[RequestOutput]:
    llm = load(folder)
    return [llm.generate(p, s)[0] for p, s in zip(PROMPTS, PARAMS, strict=True)]


def test_greedy_tokens_are_those_of_transformers(folder: Path, alone: list[RequestOutput]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.tensor([alone[0].prompt_token_ids])
    expected = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=14,
        min_new_tokens=14,
        pad_token_id=0,
    )
    assert list(alone[0].outputs[0].token_ids) == expected[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (1, {}),
        (2, {}),
        (5, {}),
        pytest.param(
            5,
            {"threads": 2},
            marks=pytest.mark.skipif(native.cores() < 2, reason="needs two cores"),
        ),
        (3, {"growth": "iterative"}),
    ],
    ids=str,
)
def test_a_result_does_not_depend_on_the_batch(
    folder: Path, alone: list[RequestOutput], size: int, options: dict[str, Any]
) -> None:
    order = random.Random(size).sample(range(5), 5)
    llm = load(folder, max_num_seqs=size, **options)
    outputs = llm.generate([PROMPTS[i] for i in order], [PARAMS[i] for i in order])
    for i, output in zip(order, outputs, strict=True):
        assert output.outputs == alone[i].outputs, "tokens, text and log probabilities, bit for bit"


MANY = 33
STORED: list[dict[str, Any]] = [
    {"dtype": "float32"},
    {"dtype": "bfloat16", "kv_cache_dtype": "bfloat16"},
    {"quantization": "int8", "kv_cache_dtype": "float16"},
    {"quantization": "int8:act_bits=8", "kv_cache_dtype": "int8"},
    {"quantization": "int8:act_bits=8,sites=linear"},
    {"quantization": "4bit:act_bits=8"},
    {"quantization": "kmeans:group=64,act_bits=8"},
]


@pytest.mark.parametrize("options", STORED, ids=str)
def test_many_rows_are_those_of_requests_alone(
    each_isa: str, folder: Path, options: dict[str, Any]
) -> None:
    """Steps of 8, 17 and 33 rows: whole blocks of rows and parts of them, one thread or two."""
    prompts = [f"{number} {PROMPTS[number % 5]}" for number in range(MANY)]
    params = [
        dataclasses.replace(PARAMS[number % 5], seed=number, max_tokens=3) for number in range(MANY)
    ]
    one = load(folder, max_num_seqs=1, **options)
    alone = [each.outputs for each in one.generate(prompts, params)]
    assert len({outputs[0].token_ids for outputs in alone}) > MANY // 2
    for count in (8, 17, MANY):
        llm = load(folder, max_num_seqs=count, threads=min(2, native.cores()), **options)
        found = llm.generate(prompts[:count], params[:count])
        assert [each.outputs for each in found] == alone[:count], f"{count} rows"


@pytest.mark.parametrize(
    ("attention", "stored"),
    [
        ("aet:keys=0.7,values=0.1,globals=16", "auto"),
        ("art:change=0.5,angle=0.5,patience=1,block=16,probe=16", "auto"),
        ("certified:eps=0.8,bounded=false", "auto"),
        ("skip_softmax:factor=80,block=16", "auto"),
        ("tiers:eps=0.8,skip=0.01", "auto"),
        ("tiers:eps=0.8,skip=0.01", "planes"),
    ],
)
def test_so_with_techniques_that_leave_something_out(
    folder: Path, attention: str, stored: str
) -> None:
    params = [dataclasses.replace(params, max_tokens=36) for params in PARAMS]
    options = {"attention": attention, "kv_cache_dtype": stored}
    one, many = (load(folder, max_num_seqs=size, **options) for size in (1, 5))
    prompts = [one.tokenizer.encode(prompt * 90)[:86] for prompt in PROMPTS]
    alone = one.generate(prompts, params)
    assert [each.outputs for each in many.generate(prompts, params)] == [
        each.outputs for each in alone
    ]
    read = one.runner.trace
    assert read.value_rows_read < read.rows_held
    assert read.kv_bytes_read < read.kv_bytes_held == many.runner.trace.kv_bytes_held


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_a_prompt_does_not_depend_on_threads_or_on_its_parts(
    folder: Path, options: dict[str, Any]
) -> None:
    """Threads share the preparation of many rows and take each other's products."""
    found, most = [], min(2, native.cores())
    for threads, chunk in ((1, 5), (1, 128), (most, 128), (most, 40)):
        llm = load(folder, threads=threads, prefill_chunk=chunk, **options)
        prompt = llm.tokenizer.encode(PROMPTS[1] * 90)[:100]
        found.append(llm.generate([prompt], PARAMS[0])[0].outputs)
    assert all(outputs == found[0] for outputs in found)


@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}], ids=str)
def test_a_prompt_of_experts_has_larger_parts_of_the_same_bits(
    options: dict[str, Any], tmp_path: Path, folder: Path
) -> None:
    """A part reads each expert once for all of its tokens."""
    changes = {"num_experts_per_tok": 4, "max_position_embeddings": 400}
    mixture = tiny.make(tmp_path, "qwen3-moe", tokenizer=True, **changes)
    found, sizes = [], []
    for chunk in (512, 128, 60):
        llm = load(mixture, prefill_chunk=chunk, **options)
        prompt = llm.tokenizer.encode(PROMPTS[1] * 90)[:300]
        found.append(llm.generate([prompt], PARAMS[0])[0].outputs)
        sizes.append(llm.runner.tile_rows)
    assert sizes == [512, 128, 60] and load(folder).runner.tile_rows == 128
    assert all(outputs == found[0] for outputs in found)


def test_samples_of_one_prompt_are_those_of_separate_requests(folder: Path) -> None:
    llm = load(folder)
    params = SamplingParams(n=3, seed=4, max_tokens=10, ignore_eos=True, logprobs=0)
    (together,) = llm.generate(PROMPTS[1], params)
    (alone,) = llm.generate(
        PROMPTS[1], SamplingParams(seed=4, max_tokens=10, ignore_eos=True, logprobs=0)
    )
    assert together.outputs[0] == alone.outputs[0]
    assert len({sample.token_ids for sample in together.outputs}) == 3


def test_a_session_gives_the_tokens_of_fresh_requests(folder: Path) -> None:
    llm = load(folder)
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    talk = [{"role": "user", "content": PROMPTS[1]}]
    with llm.session() as session:
        for turn in ("a b c", "jumps"):
            answer = list(session.chat(talk, greedy))[-1][1]
            (fresh,) = llm.chat(talk, greedy)
            assert answer.outputs == fresh.outputs
            assert answer.prompt_token_ids == fresh.prompt_token_ids
            talk += [
                {"role": "assistant", "content": answer.outputs[0].text},
                {"role": "user", "content": turn},
            ]
        assert answer.num_cached_tokens > 20


def test_out_of_memory_loses_only_the_request_that_asked(folder: Path) -> None:
    from suffice.engine.runner import Runner

    llm = load(folder, growth="iterative")
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    short = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    assert isinstance(llm.runner, Runner)
    sequence = llm.runner.open("probe", 128)
    llm.runner.prefill(sequence, [3] * 32)
    memory = sequence.cache.bytes
    llm.runner.close(sequence)
    poor = load(folder, growth="iterative", kv_cache_bytes=memory)
    greedy, hungry = poor.generate([[5, 6], [7, 8]], [short, params])
    assert greedy.error is None
    assert greedy.outputs == llm.generate([[5, 6]], short)[0].outputs
    assert hungry.error is not None
    assert hungry.outputs[0].finish_reason == "abort"
    got = hungry.outputs[0].token_ids
    assert 0 < len(got) < 60
    assert got == llm.generate([[7, 8]], params)[0].outputs[0].token_ids[: len(got)]
    assert poor.generate([[5, 6]], short)[0].error is None, "the memory came back"


def test_only_a_speculator_takes_memory_for_drafts(folder: Path) -> None:
    for speculator, most in (("none", 0), ("ngram:3", 3)):
        assert load(folder, speculative_config=speculator).runner.most_drafts == most


def test_streamed_text_is_the_text_of_all_tokens(folder: Path) -> None:
    llm = load(folder)
    for seed in range(4):
        params = SamplingParams(seed=seed, temperature=1.5, max_tokens=40, ignore_eos=True)
        pieces = list(llm.stream("a", params))
        output = pieces[-1][1].outputs[0]
        assert "".join(delta for delta, _ in pieces) == output.text
        assert output.text == llm.tokenizer.decode(list(output.token_ids), skip_special=True)
