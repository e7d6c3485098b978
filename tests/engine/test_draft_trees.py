"""Trees of drafts: a branch that is kept has the bits of plain decoding, whichever it is.

Whatever rows of other branches stood between its rows, in whatever blocks, tiles and chunks.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from suffice.attention.calibration import Calibration, LayerInputs
from suffice.attention.exaq import EXAQ
from suffice.decoder import step_rows
from suffice.decoder.step_rows import StepRows
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner, Sequence

LIMIT = 640
# around blocks of 16 rows, tiles of 64 and chunks of 512
LENGTHS = (3, 45, 62, 140, 506)
TECHNIQUES: dict[str, dict[str, Any]] = {
    "exact": {},
    "aet": {"attention": "aet:keys=0.7,values=0.1,globals=16"},
    "aet, by rows": {"attention": "aet:keys=0.7,values=0.1,globals=16,block=1"},
    "art": {"attention": "art:change=0.5,angle=0.5,patience=1,block=16,probe=16"},
    "certified": {"attention": "certified:eps=0.8"},
    "tiers": {"attention": "tiers:eps=0.5,skip=0.01"},
    "skip_softmax": {"attention": "skip_softmax:factor=40,block=16"},
    "quest": {"policy": "quest:budget=48,dense_layers=0"},
    "streaming": {"policy": "streaming:budget=40,sinks=4"},
    "snapkv": {"policy": "snapkv:ratio=0.4,window=8"},
    "coded": {"softmax": EXAQ(2)},
}
STORED = ("bfloat16", "float16", "int8", "kmeans4", "planes", "int8/kmeans4")
SETTINGS = [
    *((name, "llama", "float32") for name in TECHNIQUES),
    *((name, "gemma3", "float32") for name in ("exact", "aet", "certified", "tiers", "streaming")),
    *((name, "llama", dtype) for name in ("exact", "tiers") for dtype in STORED),
    *zip(("aet", "certified", "art"), ("llama",) * 3, ("int8", "bfloat16", "planes"), strict=True),
    *(("exact", "deepseek-v2-lite", dtype) for dtype in ("float32", "bfloat16", "int8")),
    *(("exact", variant, "float32") for variant in ("gpt-oss", *tiny.STATEFUL)),
    *((name, "qwen3.5", "float32") for name in ("certified", "coded")),
    *((name, "deepseek-v2-lite", "bfloat16") for name in ("aet", "certified", "coded")),
]
Made = Callable[[str, str, str], Runner]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Runners of a tiny model by a technique, a variant and a storage type."""
    folders: dict[str, Path] = {}

    def make(name: str, variant: str, dtype: str) -> Runner:
        if variant not in folders:
            folder = tmp_path_factory.mktemp("model")
            own = {"sliding_window": 24} if variant == "gemma3" else {}
            changes = {"max_position_embeddings": LIMIT, "tokenizer": True, **own}
            folders[variant] = tiny.make(folder, variant, **changes)
        chosen = dict(TECHNIQUES[name])
        softmax = chosen.pop("softmax", None)
        model: Any = folders[variant]
        config, runner, _ = load(
            Config.create(model, threads=2, dtype="float32", kv_cache_dtype=dtype, **chosen)
        )
        if softmax is None:
            return runner
        layers = tuple(LayerInputs(1.0, -20.0) for _ in runner.decoder.config.cached)
        heads = runner.decoder.config.heads
        known = Calibration("none", "tiny", "", heads, layers, {}, {})
        return Runner(
            dataclasses.replace(config, softmax=softmax, calibration=known), runner.decoder
        )

    return make


def draw(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(3, tiny.VOCABULARY) for _ in range(count)]


def shape(chance: random.Random, count: int) -> list[int]:
    """Draw a tree: bushy, or long branches side by side."""
    far = chance.choice((2, 4, count))
    return [-1, *(chance.randrange(max(at - far, 0), at) for at in range(1, count))]


def path_to(parents: list[int], row: int) -> list[int]:
    return [*path_to(parents, parents[row]), row] if row >= 0 else []


def run(runner: Runner, sequence: Sequence, tokens: list[int], parents: list[int]) -> np.ndarray:
    """Run a tree of drafts; return the logits after each."""
    runner.reserve(sequence, len(tokens))
    return runner._native.step([StepRows(sequence.cache, tokens, parents, outputs=None)])


def law(runner: Runner, seed: int, length: int) -> None:
    chance = random.Random(seed)
    prompt = draw(chance, length)
    plain, treed = (runner.open(name, LIMIT) for name in ("plain", "treed"))
    for sequence in (plain, treed):
        runner.prefill(sequence, prompt)
    for _ in range(3):
        count = chance.randint(2, 12)
        parents, tokens = shape(chance, count), draw(chance, count)
        found = run(runner, treed, tokens, parents)
        path = path_to(parents, chance.randrange(count))
        runner.commit(treed, path)
        for row in path:
            runner.reserve(plain)
            (expected,) = runner.step([plain], [tokens[row]])
            assert np.array_equal(found[row], expected), (parents, path, row)
    token = draw(chance, 1)
    for sequence in (plain, treed):
        runner.reserve(sequence)
    logits = [runner.step([sequence], token) for sequence in (plain, treed)]
    assert np.array_equal(logits[0], logits[1]), "after the last tree"


@pytest.mark.parametrize(("name", "variant", "dtype"), SETTINGS)
def test_a_kept_branch_has_the_bits_of_plain_decoding(
    made: Made, each_isa: str, name: str, variant: str, dtype: str
) -> None:
    runner = made(name, variant, dtype)
    for seed, length in enumerate(LENGTHS):
        law(runner, seed, length)


def test_other_requests_do_not_show(made: Made) -> None:
    """A tree, another tree, a chain and a prompt in one step, by techniques of their own."""
    runner, chance = made("certified", "llama", "float32"), random.Random(9)
    parents = [[-1, 0, 0, 1, 2, 2], [-1, 0, 0, 0], [-1, 0, 1], [-1]]
    drawn = [draw(chance, len(own)) for own in parents]

    def opened(at: int) -> Sequence:
        sequence = runner.open(str(at), LIMIT)
        runner.prefill(sequence, draw(random.Random(at), 150))
        runner.reserve(sequence, 8)
        return sequence

    def rows_of(at: int) -> StepRows:
        exact = at == 1  # of the trees, the other attends by its technique
        return StepRows(opened(at).cache, drawn[at], parents[at], outputs=None, exact=exact)

    together = runner._native.step([rows_of(at) for at in range(4)])
    alone = [runner._native.step([rows_of(at)]) for at in range(4)]
    assert np.array_equal(together, np.concatenate(alone))


def test_the_law_shows_a_row_of_another_branch(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = step_rows.drafted

    def drafted(batch: Any) -> step_rows.Drafted:
        found = genuine(batch)  # each sees the row before it as well
        masks = [mask | 1 << max(row - 1, 0) for row, mask in enumerate(found.visible)]
        return found._replace(visible=masks)

    monkeypatch.setattr(step_rows, "drafted", drafted)
    runner = made("exact", "llama", "float32")
    with pytest.raises(AssertionError):
        for seed, length in enumerate(LENGTHS):
            law(runner, seed, length)
