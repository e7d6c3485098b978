"""Tiles of a prompt that attend to their heaviest blocks: reference, native code, engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from caches import cache_of
from oracle import assert_matches
from suffice import LLM, SamplingParams, native
from suffice.attention import prompt_tiles
from suffice.attention.exact import Exact
from suffice.attention.prompt_tiles import TileRead, looks
from suffice.backends.cpu.attention import attend
from suffice.errors import InputError

SIZE = 32


def rows(length: int, tokens: int, heads: int = 6, groups: int = 2, seed: int = 0) -> Any:
    """Return q, k, v with a few keys that matter."""
    random = np.random.default_rng(seed)
    q = random.standard_normal((heads, tokens, SIZE), np.float32)
    k, v = random.standard_normal((2, groups, length, SIZE), np.float32)
    q += 2 * random.standard_normal((heads, 1, SIZE), np.float32)  # tokens of a tile look alike
    return q, k, v


def run(q: Any, k: Any, v: Any, unread: float, dtype: str = "float32") -> tuple[Any, list[Any]]:
    """Return the native output and reads of a tile, which is the last rows of a cache."""
    cache = cache_of(k, v, dtype)
    return attend(None, q, cache, 0, scale=SIZE**-0.5, unread=unread)


def read(q: Any, k: Any, v: Any, unread: float) -> TileRead:
    return prompt_tiles.attend(q, k, v, scale=SIZE**-0.5, unread=unread)


@pytest.mark.parametrize("unread", [0.05, 0.3])
@pytest.mark.parametrize(("length", "tokens"), [(1500, 32), (1537, 7), (2041, 1), (1041, 17)])
def test_native_is_the_reference(each_isa: str, length: int, tokens: int, unread: float) -> None:
    q, k, v = rows(length, tokens)
    expected = read(q, k, v, unread)
    output, reads = run(q, k, v, unread)
    np.testing.assert_allclose(output, expected.output, rtol=1e-4, atol=1e-5)
    ends = np.arange(length - tokens, length)[:, None] + 1
    before = np.clip(ends - 16 * np.arange(expected.blocks.shape[-1]), 0, 16)  # [T, blocks]
    counts = [int((before * blocks).sum()) for blocks in expected.blocks]
    assert [each.key_rows for each in reads] == counts
    assert all(each.dense_rows == ends.sum() for each in reads)
    assert not expected.blocks.all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "kmeans4", "planes"])
def test_every_type_of_keys_and_values(dtype: str) -> None:
    q, k, v = rows(1600, 32)
    cache = cache_of(k, v, dtype)
    held = cache.keys(0), cache.values(0)
    output, _ = attend(None, q, cache, 0, scale=SIZE**-0.5, unread=0.2)
    exact, _ = attend(None, q, cache, 0, scale=SIZE**-0.5)
    rough = np.abs(exact - Exact().reference(q, *held, scale=SIZE**-0.5).output[:, -32:]).max()
    assert np.abs(output - read(q, *held, 0.2).output).max() <= 0.05 + 4 * rough


def test_a_tile_with_few_keys_reads_all_bit_for_bit() -> None:
    q, k, v = rows(64 * 16, 32)
    tile, reads = run(q, k, v, 0.5)
    exact, all_rows = run(q, k, v, 0.0)
    assert np.array_equal(tile, exact)
    assert [each.key_rows for each in reads] == [each.key_rows for each in all_rows]


def test_nearly_nothing_unread_is_exact_attention() -> None:
    q, k, v = rows(1500, 32)
    double = Exact().reference(
        *(x.astype(np.float64) for x in (q, k, v)),
        scale=SIZE**-0.5,
        visible=np.arange(1500) <= np.arange(1468, 1500)[:, None],
    )
    assert_matches(run(q, k, v, 1e-7)[0], double.output, run(q, k, v, 0.0)[0])


@pytest.mark.parametrize("unread", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_no_more_is_left_than_allowed(unread: float, seed: int) -> None:
    """What the looking tokens leave is at most `unread`, with hardly more blocks than it takes."""
    q, k, v = rows(2000, 32, seed=seed)
    found = read(q, k, v, unread)
    for group in range(2):
        own = q[3 * group : 3 * group + 3][looks(3, 32)].astype(np.float64)
        scores = SIZE**-0.5 * own @ k[group].T
        at = np.nonzero(looks(3, 32))[1]
        scores[np.arange(2000) > np.arange(1968, 2000)[at, None]] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        masses = p.mean(0).reshape(-1, 16).sum(-1)  # 125 blocks
        left = masses[~found.blocks[group]].sum()
        assert left <= unread * (1 + 1e-6)
        free = np.sort(np.delete(masses, [0, *range(1968 // 16, 125)]))[::-1]
        always = masses.sum() - free.sum()
        fewest = int((always + free.cumsum() < 1 - unread).sum()) + 1
        assert found.blocks[group].sum() <= 1.1 * (fewest + 4)


def test_who_looks() -> None:
    """Every fourth token in every second head, in turn, and the last token in all heads."""
    assert [row.nonzero()[0].tolist() for row in looks(3, 12)] == [[7, 11], [3, 11], [7, 11]]
    assert looks(1, 9).nonzero()[1].tolist() == [3, 7, 8]


def test_looking_at_one_token_alone_leaves_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law above is not empty: the first token's blocks are not those of the others."""
    q, k, v = rows(2000, 32)
    whole = read(q, k, v, 0.1)
    first = np.arange(32) == 0
    monkeypatch.setattr(prompt_tiles, "looks", lambda heads, _: np.tile(first, (heads, 1)))
    assert (read(q, k, v, 0.1).blocks != whole.blocks).any()


def test_threads_change_no_bit() -> None:
    q, k, v = rows(2040, 32)
    before = native.threads()
    found = []
    for count in range(1, native.cores() + 1):
        native.set_threads(count)
        found.append(run(q, k, v, 0.1)[0])
    native.set_threads(before)
    assert all(np.array_equal(each, found[0]) for each in found)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return tiny.make(folder, "llama", tokenizer=True, max_position_embeddings=4096)


PROMPTS = ["the quick brown fox " * 170, "a tale of two " * 120, "short", "0123456789 " * 130]
TILED = "tiers:eps=0,skip=0,prompt=0.2"


def answers(model: Path, prompts: list[str] = PROMPTS, **options: Any) -> list[Any]:
    llm = LLM(model, attention=options.pop("attention", TILED), **options)
    found = llm.generate(prompts, SamplingParams(max_tokens=6, temperature=0, logprobs=2))
    return [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in found]


def test_results_depend_on_nothing_but_the_prompt(model: Path) -> None:
    together = answers(model)
    assert together == [answers(model, [each])[0] for each in PROMPTS]
    for options in ({"prefill_chunk": 33}, {"prefill_chunk": 96}, {"threads": 1}):
        assert together == answers(model, **options), options
    exact = answers(model, attention="exact")
    assert together != exact and together[2] == exact[2]


def test_steps_of_a_service_change_nothing(model: Path) -> None:
    alone = answers(model, PROMPTS[:2])
    llm = LLM(model, attention=TILED)
    llm.loop.turns.step_seconds = 0.0  # as few tokens of a prompt as possible in a step
    sampling = SamplingParams(max_tokens=6, temperature=0, logprobs=2)
    found = llm.generate(PROMPTS[:2], sampling)
    assert alone == [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in found]


@pytest.mark.parametrize("variant", ["gemma3", "neox", "gpt-oss"])
def test_windows_and_spare_logits(variant: str, tmp_path: Path) -> None:
    folder = tiny.make(tmp_path, variant, tokenizer=True, max_position_embeddings=4096)
    prompts = ["a b c " * 300]
    near = answers(folder, prompts, attention="tiers:eps=0,skip=0,prompt=0.0000001")
    exact = answers(folder, prompts, attention="exact")
    assert [tokens for tokens, _ in near] == [tokens for tokens, _ in exact]


def test_the_trace_says_what_prompts_read(model: Path) -> None:
    llm = LLM(model, attention=TILED)
    llm.generate(PROMPTS[:1], SamplingParams(max_tokens=2))
    trace = llm.runner.trace
    assert 0 < trace.tile_rows_read < trace.tile_rows_held
    assert trace.plain()["tile_rows_read"] == trace.tile_rows_read
    exact = LLM(model)
    exact.generate(PROMPTS[:1], SamplingParams(max_tokens=2))
    assert exact.runner.trace.tile_rows_held == 0


@pytest.mark.parametrize("value", ["-0.1", "1", "1.5", "nan"])
def test_shares_outside_of_0_to_1_are_refused(model: Path, value: str) -> None:
    with pytest.raises(InputError, match="must be in"):
        LLM(model, attention=f"tiers:prompt={value}")


@pytest.mark.parametrize(
    ("attention", "guarantee"),
    [
        ("tiers:eps=0,skip=0", "exact"),
        (TILED, "none"),
        ("tiers:bounded=true,prompt=0.1", "bound, prompt approximate"),
        ("tiers:sample=4,prompt=0.1", "probable, prompt approximate"),
    ],
)
def test_what_is_known_after_such_a_prompt_is_of_what_it_left(
    model: Path, attention: str, guarantee: str
) -> None:
    """Steps that read everything are not called exact, and a bound is of the keys as they are."""
    runner = LLM(model, attention=attention).runner
    assert runner.guarantee() == guarantee
    whole = {"none": "exact"}.get(guarantee, guarantee.partition(",")[0])
    assert runner.guarantee(prompt_read=True) == whole


def test_requests_cannot_have_prompts_of_their_own(model: Path) -> None:
    llm = LLM(model)
    with pytest.raises(InputError, match="must be that of all requests"):
        llm.runner.allow(llm.config.with_attention("tiers:prompt=0.1"))
