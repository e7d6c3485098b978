"""Embeddings: those of transformers' states, and the same bits however they are run.

Tests reading.py and embedded.py.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embedders
import hf_reference
import tiny
from engines import run, sharing
from fake_engine import fake_llm, mixed, runner_of
from native_steps import new_cache
from suffice import LLM, AsyncLLM, EmbeddingRequestOutput, SamplingParams, native
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.native_model import NativeModel
from suffice.decoder.pooling import MODES
from suffice.decoder.step_rows import StepRows
from suffice.decoder.weights import DecoderWeights
from suffice.engine.ranking import cosine
from suffice.engine.reading import Reader, Reading
from suffice.engine.request import Request
from suffice.engine.service import Engine
from suffice.engine.work import Delta, Work
from suffice.errors import InputError
from suffice.quant.none import NoQuant

WORDS = "To be, or not to be, that is the question 0123456789. "
TEXTS = ["jumps over", WORDS, "a b c 日本語", WORDS * 3]
LENGTHS = (131, 40, 97, 2)  # of prompts that begin alike

load = sharing(threads=1, dtype="float32", kv_cache_dtype="float32")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Tiny models that embed by a mode, with what else `write_modules` takes."""
    made: dict[str, Path] = {}

    def folder(variant: str, mode: str, **more: Any) -> Path:
        key = repr((variant, mode, more))
        if key not in made:
            made[key] = tiny.make(
                tmp_path_factory.mktemp("model"),
                variant,
                tokenizer=True,
                max_position_embeddings=512,
            )
            embedders.write_modules(made[key], {"pooling_mode": mode}, **more)
        return made[key]

    return folder


def vectors(llm: LLM, prompts: Any, **options: Any) -> list[np.ndarray]:
    found = llm.embed(prompts, use_tqdm=False, **options)
    return [np.array(each.outputs.embedding) for each in found]


@torch.no_grad()
def states(folder: Path, tokens: list[int]) -> np.ndarray:
    """Return transformers' last states [T, W], after the final norm, in float64."""
    from transformers import AutoModel

    options = {"dtype": torch.float32, "experts_implementation": "eager"}
    model = hf_reference.exact(AutoModel.from_pretrained(folder, **options).eval())
    return np.asarray(model(torch.tensor([tokens])).last_hidden_state[0])


def pooled(rows: np.ndarray, mode: str) -> np.ndarray:
    count = len(rows)
    rising = np.arange(1, count + 1)[:, None]
    return {
        "lasttoken": lambda: rows[-1],
        "cls": lambda: rows[0],
        "max": lambda: rows.max(0),
        "mean": lambda: rows.mean(0),
        "mean_sqrt_len_tokens": lambda: rows.sum(0) / math.sqrt(count),
        "weightedmean": lambda: (rising * rows).sum(0) / rising.sum(),
    }[mode]()


@pytest.mark.parametrize("mode", MODES)
def test_they_are_those_of_transformers(models: Callable[..., Path], mode: str) -> None:
    folder = models("llama", mode)
    llm = load(folder, prefill_chunk=16)
    for text, found in zip(TEXTS, vectors(llm, TEXTS), strict=True):
        wanted = pooled(states(folder, llm.tokenizer.encode(text)), mode)
        assert cosine(found, wanted) >= 0.9999
        np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), atol=2e-6)


@pytest.mark.parametrize("variant", ["qwen3", "qwen3-moe", "gemma3", "gpt2", "opt-no-final-norm"])
def test_families(tmp_path: Path, variant: str) -> None:
    folder = tiny.make(tmp_path, variant, tokenizer=True)
    llm = load(folder)
    tokens = llm.tokenizer.encode(TEXTS[1])
    (found,) = vectors(llm, [tokens])
    assert cosine(found, states(folder, tokens)[-1]) >= 0.9999


def test_states_that_are_projected(tmp_path: Path) -> None:
    llm = load(tiny.make(tmp_path, "opt-post", tokenizer=True))
    with pytest.raises(InputError, match="the model projects its last states: it gives no embed"):
        llm.embed("a")
    assert llm.generate("a", SamplingParams(max_tokens=1), use_tqdm=False)[0].error is None


def test_a_class_without_a_head(tmp_path: Path) -> None:
    """As e5-mistral is stored; it generates nothing."""
    folder = tiny.make(tmp_path, "mistral", tokenizer=True)
    embedders.without_head(folder, "MistralModel")
    eos = embedders.with_eos(folder)
    llm = load(folder)
    (found,) = llm.embed("jumps over", use_tqdm=False)
    tokens = list(found.prompt_token_ids)
    assert tokens[-1] == eos == 2 and found.prompt == "jumps over"
    assert cosine(np.array(found.outputs.embedding), states(folder, tokens)[-1]) >= 0.9999
    for act in (lambda: llm.generate("a"), lambda: llm.score("a")):
        with pytest.raises(InputError, match="has no head: it embeds texts, and generates none"):
            act()
    with pytest.raises(InputError, match="has no head: it embeds texts, and knows no next token"):
        llm.maker.make([3], SamplingParams(), reading=Reading((3,)))


def test_matrices_norms_and_prompts(models: Callable[..., Path]) -> None:
    more = {"dense": (24, "Tanh"), "normalize": False, "usual": "task"}
    folder = models("llama", "mean", **more)
    llm = load(folder)
    (dense,) = llm.runner.pooling.dense

    def wanted(text: str) -> np.ndarray:
        mean = pooled(states(folder, llm.tokenizer.encode(text)), "mean")
        return np.tanh(dense.weight @ mean + dense.bias)

    for name in (None, "query", "document"):
        (found,) = vectors(llm, "jumps over", prompt_name=name)
        before = embedders.PROMPTS[name or "task"]
        np.testing.assert_allclose(found, wanted(before + "jumps over"), atol=2e-5)
        assert not math.isclose(np.linalg.norm(found), 1, rel_tol=1e-3)
    (short,) = vectors(llm, "jumps over", dimensions=5, normalize=True)
    (whole,) = vectors(llm, "jumps over")
    np.testing.assert_allclose(short, whole[:5] / np.linalg.norm(whole[:5]), rtol=1e-6)
    (tokens,) = vectors(llm, [llm.tokenizer.encode("Task: jumps over")])
    assert np.array_equal(tokens, whole), "tokens have no prompt"
    with pytest.raises(InputError, match="dimensions=25: must be from 1 to 24, the entries"):
        llm.embed("a", dimensions=25)
    with pytest.raises(InputError, match="unknown prompt_name 'search'"):
        llm.embed("a", prompt_name="search")
    (told,) = vectors(llm, {"prompt": "jumps over"})
    assert np.array_equal(told, whole)
    with pytest.raises(InputError, match="prompt_name: needs prompts that are text, not token ids"):
        llm.embed(["a", [3]], prompt_name="query")


def test_sentence_transformers_agrees(models: Callable[..., Path]) -> None:
    library = pytest.importorskip("sentence_transformers")
    for mode in MODES:
        folder = models("qwen3", mode, dense=(24, "Identity"), usual="query")
        theirs = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        for found, wanted in zip(vectors(load(folder), TEXTS), theirs, strict=True):
            assert cosine(found, wanted.astype(np.float64)) >= 0.9999


def prompts(llm: LLM) -> list[list[int]]:
    words = llm.tokenizer.encode(WORDS * 9)
    return [[*words[: length - 1], 7 + at] for at, length in enumerate(LENGTHS)]


def made(llm: LLM, *, tokens: tuple[int, ...] = (), reuse: bool = False) -> list[Request]:
    reading = Reading(tokens)
    return [
        llm.maker.make(prompt, SamplingParams(), reading=reading, reuse=reuse)
        for prompt in prompts(llm)
    ]


def read(requests: list[Request]) -> list[bytes | None]:
    assert all(each.error is None for each in requests)
    return [each.reader and each.reader.encoded for each in requests]


SETTINGS: list[dict[str, Any]] = [
    {},
    {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    {"quantization": "int8:act_bits=8", "policy": "snapkv:ratio=0.4,window=8"},
]


@pytest.mark.parametrize("mode", ["lasttoken", "mean"])
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_cuts_neighbours_order_and_threads_change_no_bit(
    models: Callable[..., Path], mode: str, options: dict[str, Any]
) -> None:
    folder = models("llama", mode)
    alone = load(folder, **options)
    wanted: list[bytes | None] = []
    for request in made(alone):
        run(alone, [request])
        wanted += read([request])
    for chunk, threads in ((7, 1), (30, min(2, native.cores())), (128, 1)):
        llm = load(folder, prefill_chunk=chunk, threads=threads, **options)
        requests, others = made(llm)[::-1], made(llm, tokens=(5, 9))
        texts = [llm.maker.make(each, SamplingParams(max_tokens=9)) for each in prompts(llm)]
        run(llm, [each for group in zip(texts, requests, others, strict=True) for each in group])
        assert read(requests)[::-1] == wanted
        logs = [np.frombuffer(each or b"", "<f4") for each in read(others)]
        assert all(len(each) == 2 and (each < 0).all() for each in logs)


def test_a_pool_of_other_rows_would_show(
    models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law bites: a part's rows that are taken twice."""
    genuine = Reader.take

    def twice(self: Reader, rows: np.ndarray) -> None:
        genuine(self, rows)
        genuine(self, rows[:1])

    monkeypatch.setattr(Reader, "take", twice)
    found = []
    for chunk in (7, 30):
        llm = load(models("llama", "mean"), prefill_chunk=chunk)
        requests = made(llm)
        run(llm, requests)
        found.append(read(requests))
    assert found[0] != found[1]


@pytest.mark.parametrize("mode", ["lasttoken", "mean"])
def test_the_store_and_those_who_were_parked(models: Callable[..., Path], mode: str) -> None:
    """An embedding of the last token goes on from the store, others run whole; both leave rows."""
    folder = models("llama", mode)
    wanted = [
        vector.astype("<f4").tobytes() for vector in vectors(load(folder), prompts(load(folder)))
    ]
    llm = load(folder, prefill_chunk=16)
    llm.loop.retained.limit, llm.loop.retained.least = None, 16

    def park(step: int) -> None:
        running = llm.loop.scheduler.running
        if step % 2 == 0 and step < 40 and running:
            llm.loop.memory.park(running[step % len(running)])

    first, again = made(llm, reuse=True), made(llm, reuse=True)
    run(llm, first, park)
    run(llm, again)
    assert read(first) == wanted and read(again) == wanted
    assert sum(each.preemptions for each in first) > 1
    assert [each.cached > 16 for each in again[:3]] == [mode == "lasttoken"] * 3
    text = llm.maker.make(prompts(llm)[0], SamplingParams(max_tokens=2), reuse=True)
    run(llm, [text])
    assert text.cached > 16, "embeddings leave rows to others"


def test_no_more_rows_at_a_time_than_a_step_has(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = fake_llm()
    runner, counts = runner_of(llm), list[int]()
    genuine = runner.run

    def noted(batch: Any) -> Any:
        counts.append(sum(rows.count for rows in batch))
        assert all(rows.states for rows in batch)
        return genuine(batch)

    monkeypatch.setattr(runner, "run", noted)
    (found,) = vectors(llm, [[3, 4] * 25])
    wanted = mixed([3, 4] * 25).astype(np.float64)
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), rtol=1e-6)
    assert counts == [0, 1] and runner.open_sequences == []


def test_what_cannot_be_read() -> None:
    broken = fake_llm(lambda history: mixed(history) + np.inf)
    with pytest.raises(InputError, match="the embedding is not finite"):
        broken.embed([3, 4], use_tqdm=False)
    request = broken.maker.make([3, 4], SamplingParams(), reading=Reading((3,)))
    run(broken, [request])
    assert request.error == "the model's largest logit is inf: its weights may be damaged"
    with pytest.raises(InputError, match="tokens: 14 is not a token id"):
        broken.maker.make([3], SamplingParams(), reading=Reading((14,)))
    assert runner_of(broken).open_sequences == []


def test_an_engine_hands_them_out_with_the_last_delta() -> None:
    found, done = list[Delta](), threading.Event()

    def take(delta: Delta) -> None:
        found.append(delta)
        if delta.final is not None:
            done.set()

    engine = Engine(fake_llm())
    try:
        work = Work("a", (3, 4, 5), SamplingParams(), reading=Reading(dimensions=3), progress=True)
        engine.submit(work, take)
        assert done.wait(20)
    finally:
        engine.close()
    last = found[-1]
    wanted = mixed([3, 4, 5])[:3].astype(np.float64)
    vector = np.frombuffer(last.vector or b"", "<f4")
    np.testing.assert_allclose(vector, wanted / np.linalg.norm(wanted), rtol=1e-6)
    assert (last.tokens, last.finish_reason, last.final and last.final.error) == (
        (),
        "length",
        None,
    )
    assert all(each.vector is None for each in found[:-1])


def test_coroutines(models: Callable[..., Path]) -> None:
    llm = load(models("llama", "mean"))
    wanted = llm.embed(TEXTS, use_tqdm=False, dimensions=9, prompt_name="task")

    async def ask() -> list[EmbeddingRequestOutput]:
        async with AsyncLLM.over(llm) as engine:
            asked = [engine.embed(each, dimensions=9, prompt_name="task") for each in TEXTS]
            with pytest.raises(InputError, match="dimensions=65: must be from 1 to 64"):
                await engine.embed("a", dimensions=65)
            return await asyncio.gather(*asked)

    found = asyncio.run(ask())
    assert [each.outputs for each in found] == [each.outputs for each in wanted]
    assert [each.prompt_token_ids for each in found] == [each.prompt_token_ids for each in wanted]


def test_one_step_gives_logits_and_states(tmp_path: Path) -> None:
    """Of two requests, with any number of threads; rows that come in no order are refused."""
    folder = tiny.make(tmp_path, "llama")
    decoder = DecoderWeights.from_checkpoint(open_checkpoint(folder), NoQuant("float32"))
    tokens = list(range(3, 23))
    found = []
    for threads in (1, min(2, native.cores())):
        native.set_threads(threads)
        model = NativeModel(decoder, 64)
        states_of = np.empty((4, 64), np.float32)
        rows = {"exact": True, "counted": False}
        logits = model.step(
            [
                StepRows(new_cache(decoder), tokens, outputs=2, **rows),
                StepRows(new_cache(decoder), tokens, outputs=4, states=True, **rows),
            ],
            states=states_of,
        )
        assert logits.shape == (2, tiny.VOCABULARY)
        head = decoder.weights["head"]
        found.append((logits.copy(), states_of))
        assert head is not None
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))
    np.testing.assert_allclose(found[0][1], states(folder, tokens)[-4:], atol=2e-5)
    with pytest.raises(ValueError, match=r"states must be \[state_rows, width\]"):
        model.step([StepRows(new_cache(decoder), tokens[:3], states=True)], states=states_of)
