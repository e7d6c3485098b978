"""On a real (tiny) model, in an engine that has too little of everything: each text is its own."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from suffice import LLM, SamplingParams
from suffice.engine.protocol import Rows
from suffice.engine.service import Delta, Engine, EngineStats, Work

REQUESTS = 26


class Receiver:
    def __init__(self, ends_after: int | None) -> None:
        self.ends_after = ends_after  # tokens, after which it is cancelled
        self.text = ""
        self.tokens: list[int] = []
        self.done = threading.Event()
        self.last: Delta | None = None

    def __call__(self, delta: Delta) -> None:
        self.text += delta.text
        self.tokens += delta.tokens
        self.last = delta
        if delta.final is not None:
            self.done.set()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(
        tmp_path_factory.mktemp("tiny"), "llama", tokenizer=True, max_position_embeddings=512
    )


def load(folder: Path, **options: Any) -> LLM:
    return LLM(folder, threads=1, dtype="float32", growth="step:rows=16", **options)


def test_a_step_that_fails_leaves_no_row(folder: Path) -> None:
    runner, found = load(folder).runner, []
    for fails in (False, True):
        sequence = runner.open("a", 20)
        runner.prefill(sequence, [3, 4, 5])
        runner.reserve(sequence, 4)
        if fails:
            with pytest.raises(ValueError, match="outside the vocabulary"):
                runner.run([Rows(sequence, [3, runner.vocabulary])])
        assert (sequence.cache.length, sequence.cache.tentative) == (3, 0)
        found.append(runner.step([sequence], [6]))
    assert np.array_equal(*found)


def works(llm: LLM, seed: int) -> list[Work]:
    """Requests that often begin alike, and are short and long."""
    chance = random.Random(seed)
    words = llm.tokenizer.encode("To be, or not to be, that is the question 0123456789. " * 9)
    found = []
    for number in range(REQUESTS):
        prompt = [*words[: chance.choice((3, 40, 70, 70, 150))], 3 + number % 7, 5 + number % 3]
        params = SamplingParams(
            max_tokens=chance.randint(1, 40),
            seed=number,
            temperature=chance.choice((0.0, 0.8)),
            ignore_eos=True,
            n=1,
        )
        found.append(
            Work(
                str(number),
                tuple(prompt),
                params,
                priority=chance.randint(0, 1),
                key=chance.choice("ab"),
                reuse=chance.random() < 0.8,
            )
        )
    return found


def answered(llm: LLM, asked: list[Work]) -> tuple[list[Receiver], EngineStats]:
    """Ask an engine for everything, end some requests early, and return what came."""
    llm.loop.retained.least = 16
    engine = Engine(llm, max_queue=REQUESTS, step_ms=3)
    chance = random.Random(3)
    receivers: list[Receiver] = []
    for work in asked:
        receivers.append(Receiver(chance.randint(1, 9) if chance.random() < 0.2 else None))
        engine.submit(work, receivers[-1])
        time.sleep(chance.choice((0.0, 0.0, 0.002)))
        for receiver, other in zip(receivers, asked, strict=False):
            if receiver.ends_after is not None and len(receiver.tokens) >= receiver.ends_after:
                engine.cancel(other.id)
    for receiver in receivers:
        assert receiver.done.wait(60)
    stats = engine.stats()
    engine.close()
    assert llm.runner.memory_bytes[0] == 0, "all memory came back"
    return receivers, stats


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("llama", {}),
        ("llama", {"speculative_config": "ngram"}),
        ("llama", {"attention": "aet:keys=0.7,values=0.1,globals=16"}),
        ("llama", {"policy": "h2o:ratio=0.4"}),
        *((variant, {"speculative_config": "ngram"}) for variant in tiny.STATEFUL),
    ],
    ids=str,
)
def test_every_text_is_that_of_a_request_alone(
    variant: str, options: dict[str, Any], tmp_path: Path
) -> None:
    folder = tiny.make(tmp_path, variant, tokenizer=True, max_position_embeddings=512)
    alone = load(folder, **options)
    asked = works(alone, 7)
    probe = alone.runner.open("probe", 512)
    alone.runner.prefill(probe, [3] * 240)
    memory = probe.cache.bytes * 2
    alone.runner.close(probe)

    for _ in range(5):  # which requests meet depends on the machine: until one had to give way
        llm = load(folder, kv_cache_bytes=memory, max_num_seqs=6, **options)
        receivers, stats = answered(llm, asked)
        if stats.preemptions:
            break

    for work, receiver in zip(asked, receivers, strict=True):
        last = receiver.last
        assert last is not None and last.final is not None and last.final.error is None
        (wanted,) = alone.generate([list(work.prompt)], work.params, use_tqdm=False)
        sample = wanted.outputs[0]
        if last.finish_reason == "abort":
            assert list(sample.token_ids[: len(receiver.tokens)]) == receiver.tokens
        else:
            assert (receiver.text, receiver.tokens) == (sample.text, list(sample.token_ids))
    assert stats.preemptions > 0
    assert (stats.prefix_hits > 0) == llm.runner.shares_prompts
