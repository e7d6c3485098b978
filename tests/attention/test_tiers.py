"""Three tiers of rows: what is skipped, estimated and exact, whatever a token sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from caches import cache_of, held_planes
from oracle import max_error
from pairs import pairwise
from suffice import LLM, SamplingParams, native
from suffice.attention.exact import Exact
from suffice.attention.planes import rotated
from suffice.attention.tiers import Tiers
from suffice.backends.cpu.attention import attend
from suffice.cache import KV_DTYPES
from suffice.cache.kv import KVCache
from suffice.errors import InputError
from tiered import (
    GROUPS,
    REP,
    SCALE,
    SIZE,
    filled,
    like_a_model_s,
    queries,
    queries_that_estimates_miss,
    reference,
)


def exact(q: np.ndarray, cache: KVCache) -> np.ndarray:
    return attend(Exact().rule(), q, cache, 0, scale=SCALE)[0]


def check(technique: Tiers, q: np.ndarray, cache: KVCache, visible: np.ndarray, **how: Any) -> None:
    """Compare output, counts and bytes with the reference."""
    out, reads = attend(technique.rule(), q, cache, 0, scale=SCALE, **how)
    wanted = reference(technique, q, cache, visible)
    assert max_error(out, wanted.output) < 2e-2 * np.abs(wanted.output).max()
    for group, found in enumerate(reads):
        keys, values, light = (
            int(part[:, group].sum()) for part in (wanted.keys, wanted.values, wanted.light)
        )
        assert (found.key_rows, found.value_rows) == (keys, values)
        errors = 2 * int(visible.sum()) if technique.bounded else 0
        by_base = int(visible.sum()) + light
        if cache.native.key_type == "planes":  # a part of an exact key
            by_base -= keys
        assert found.sketch_bytes == by_base * (SIZE // 2 + 4) + errors


SETTINGS = [
    *((0.3, 0.0), (0.5, 0.001), (1.0, 0.01), (0.0, 0.005)),
    *((0.2, 0.0, True), (0.5, 0.001, True)),
]


@pytest.mark.parametrize(
    ("setting", "window", "held", "each_isa"),
    pairwise(
        SETTINGS,
        [None, 1, 100, 333],
        [(700, 3, "planes"), (1030, 1, "planes"), (700, 3, "float16")],
        native.isas(),
    ),
    indirect=["each_isa"],
)
def test_windows(
    setting: tuple[Any, ...], window: int | None, held: tuple[int, int, str], each_isa: str
) -> None:
    rows, count, dtype = held
    cache, q = filled(rows, dtype=dtype), queries(count)
    visible = np.tri(count, rows, rows - count, bool)
    if window:
        visible &= ~np.tri(count, rows, rows - count - window, bool)
    check(Tiers(*setting), q, cache, visible, window=window)


@pytest.mark.parametrize("dtype", ["planes", "float32"])
def test_a_tree_of_drafts(dtype: str, each_isa: str) -> None:
    technique, length, parents = Tiers(0.4, 0.002), 600, [-1, 0, 0, 1, -1, 4]
    keys, values = like_a_model_s(length + len(parents))
    how = {"rounding": None, "bases": True, "limit": 1024}
    cache = cache_of(keys[:, :length], values[:, :length], dtype, **how)
    cache.reserve(len(parents))
    cache.append_tentative(keys[None, :, length:], values[None, :, length:], parents)
    masks = np.array([[mask >> j & 1 for j in range(len(parents))] for mask in cache.visible()])
    visible = np.concatenate([np.ones((len(parents), length)), masks], 1).astype(bool)
    q = queries(len(parents))
    out = attend(technique.rule(), q, cache, 0, scale=SCALE)[0]
    k, v = (
        part[0] if part.ndim == 4 else part
        for part in (cache.keys(0, length + 6), cache.values(0, length + 6))
    )
    wanted = technique.reference(
        *(each.astype(np.float64) for each in (q, k, v)),
        scale=SCALE,
        visible=visible,
        stored=held_planes(cache, length + 6),
    )
    assert max_error(out, wanted.output) < 2e-2 * np.abs(wanted.output).max()


@pytest.mark.parametrize("window", [None, 3014])  # alone, row 1 begins a tile later
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("dtype", ["planes", "bfloat16"])
def test_threads_and_other_rows_do_not_change_a_bit(
    dtype: str, bounded: bool, window: int | None
) -> None:
    """There are several pieces, which threads share."""
    cache, q = filled(5000, dtype=dtype), queries(4)
    rule, how = Tiers(0.5, 0.00002, bounded).rule(), {"scale": SCALE, "window": window}
    before, results = native.threads(), []
    for threads in range(1, native.cores() + 1):
        native.set_threads(threads)
        results.append(attend(rule, q, cache, 0, **how)[0])
    native.set_threads(before)
    assert all(np.array_equal(result, results[0]) for result in results)
    cache.truncate(4998)
    alone = attend(rule, q[:, 1:2], cache, 0, **how)[0]
    assert np.array_equal(alone[:, 0], results[0][:, 1])


def test_the_heaviest_row_of_each_head_is_kept(each_isa: str) -> None:
    """Whatever `skip` is: with 1, only rows whose estimated score is a head's largest are read."""
    cache, q = filled(500), queries(1)
    out, reads = attend(Tiers(0.5, 1.0).rule(), q, cache, 0, scale=SCALE)
    assert np.isfinite(out).all() and np.abs(out).max() > 0
    wanted = reference(Tiers(0.5, 1.0), q, cache)
    for group, found in enumerate(reads):
        used = int((wanted.values | wanted.light)[:, group].sum())
        assert 1 <= used <= REP
        assert found.value_rows == int(wanted.values[:, group].sum())
    assert max_error(out, wanted.output) < 2e-2 * np.abs(wanted.output).max()


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_all_rows_in_heavy_blocks_is_exact_attention(dtype: str, each_isa: str) -> None:
    """With a `skip` that skips nothing and no estimates, what is left is rounding."""
    cache, q = filled(300, dtype=dtype), queries(2)
    technique = Tiers(0.0, 1e-30)
    assert not technique.rule().exact
    out, reads = attend(technique.rule(), q, cache, 0, scale=SCALE)
    wanted = exact(q, cache)
    assert max_error(out, wanted) < 2e-4 * np.abs(wanted).max()
    assert [each.key_rows for each in reads] == [299 + 300] * GROUPS


@pytest.mark.parametrize("dtype", ["planes", "bfloat16", "int8"])
def test_less_estimated_is_closer_to_exact(dtype: str, each_isa: str) -> None:
    cache, q = filled(2000, dtype=dtype), queries(8)
    wanted = exact(q, cache)
    errors = [
        float(np.square(attend(Tiers(eps, 0).rule(), q, cache, 0, scale=SCALE)[0] - wanted).mean())
        for eps in (1.0, 0.5, 0.1, 0.01)
    ]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.1 * errors[0]


@pytest.mark.parametrize("dtype", ["planes", "float32"])
def test_estimated_scores_are_those_of_the_bases(dtype: str) -> None:
    """With nothing exact, the output is attention to the bases alone."""
    cache, q = filled(400, dtype=dtype), queries(2)
    out = attend(Tiers(1.0, 0).rule(), q, cache, 0, scale=SCALE)[0]
    keys, values = (rotated(planes.base) for planes in held_planes(cache))
    base = cache_of(keys.astype(np.float32), values.astype(np.float32))
    wanted = exact(q, base)
    assert max_error(out, wanted) < 3e-2 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("dtype", "skip", "fitted", "each_isa"),
    pairwise(
        ["planes", "bfloat16", "float16", "float32", "int8"],
        [0.0, 0.001],
        [False, True],
        native.isas(),
    ),
    indirect=["each_isa"],
)
def test_no_softmax_is_further_away_than_its_bound(
    dtype: str, skip: float, fitted: bool, each_isa: str
) -> None:
    """Whatever the queries: random ones, and those that the codes of some keys miss most."""
    technique = Tiers(0.3, skip, bounded=True)
    ratios = []
    for seed in range(2):
        how = {} if fitted else {"rounding": None}
        cache = cache_of(*like_a_model_s(800, seed), dtype, bases=True, **how)
        for q in (queries(24, seed + 9), queries_that_estimates_miss(cache, seed)):
            found = np.full((5, 24, GROUPS * REP), np.nan, np.float32)
            attend(technique.rule(), q, cache, 0, scale=SCALE, audit=found)
            missing, _, bound, shift, shift_bound = found.astype(np.float64)
            assert (missing <= bound + 1e-5).all() and (bound <= technique.eps).all()
            assert (shift <= shift_bound + 1e-5).all()
            seen = missing > 1e-4
            ratios += (bound[seen] / missing[seen]).tolist()
    # Where the measure of keys is not fitted to queries, the bound is far from what they lose.
    assert 1 < np.median(ratios) < (100 if fitted else 1000)


@pytest.mark.parametrize("dtype", ["planes", "bfloat16", "int8"])
def test_the_bound_is_close_where_it_can_be(dtype: str, each_isa: str) -> None:
    """Of two keys, one has a query along all that its base plane lacks."""
    ratios = []
    for seed in range(20):
        keys, values = like_a_model_s(2, seed)
        cache = cache_of(keys, values, dtype, rounding=None, bases=True)
        base = np.empty_like(keys)
        cache.native.load(0, 0, base, None, base=True)
        lost = (cache.keys(0) - base)[:, :1]
        q = np.repeat(lost / np.square(lost).sum(-1, keepdims=True) / (2 * SCALE), REP, 0)
        found = np.full((5, 1, GROUPS * REP), np.nan, np.float32)
        technique = Tiers(1, 0, bounded=True)
        reads = attend(technique.rule(), q, cache, 0, scale=SCALE, audit=found)[1]
        missing, _, bound = found[:3].astype(np.float64)
        assert (missing <= bound + 1e-5).all()
        wanted = reference(technique, q, cache).distance[0].tolist()
        assert [each.missing for each in reads] == pytest.approx(wanted, rel=2e-2)
        ratios += (bound / missing).ravel().tolist()
    assert min(ratios) < 3


@pytest.mark.parametrize(
    ("dtype", "kind", "each_isa"),
    pairwise(
        ["planes", "bfloat16", "float32", "int8"],
        ["normal", "turned unit", "unit", "opposite"],
        native.isas(),
    ),
    indirect=["each_isa"],
)
def test_no_output_is_further_away_than_its_bound(dtype: str, kind: str, each_isa: str) -> None:
    """Whatever the values: their bases lack the most where a rotated value has one element."""
    random = np.random.default_rng(3)
    keys, values = like_a_model_s(300)
    if kind == "turned unit":
        values = rotated(np.eye(SIZE)[random.integers(0, SIZE, (GROUPS, 300))]).astype(np.float32)
    elif kind == "unit":
        values = np.eye(SIZE, dtype=np.float32)[random.integers(0, SIZE, (GROUPS, 300))]
    elif kind == "opposite":
        values = np.sign(random.standard_normal((GROUPS, 300, 1))) * values[:, :1]
    cache = cache_of(keys, np.ascontiguousarray(values, np.float32), dtype, bases=True)
    for eps, skip in ((1.0, 0.0), (0.5, 0.001), (0.1, 0.0001)):
        found = np.full((5, 8, GROUPS * REP), np.nan, np.float32)
        technique = Tiers(eps, skip, bounded=True)
        reads = attend(technique.rule(), queries(8), cache, 0, scale=SCALE, audit=found)[1]
        shift, bound = found[3:].astype(np.float64)
        assert (shift <= bound + 1e-5).all() and shift.max() > 1e-4
        by_group = bound.reshape(8, GROUPS, REP).max((0, 2))
        assert [each.shift for each in reads] == pytest.approx(by_group.tolist())


@pytest.mark.parametrize("dtype", ["planes", "bfloat16", "float32", "int8"])
def test_the_bound_on_the_output_is_close_where_it_can_be(dtype: str, each_isa: str) -> None:
    """Keys of zeros have no errors; values that are all the same are all moved alike."""
    for row in (rotated(np.eye(SIZE))[5], like_a_model_s(1)[1][0, 0]):
        keys = np.zeros((GROUPS, 40, SIZE), np.float32)
        values = np.broadcast_to(row, keys.shape).astype(np.float32)
        cache = cache_of(keys, values, dtype, rounding=None, bases=True)
        found = np.full((5, 1, GROUPS * REP), np.nan, np.float32)
        attend(Tiers(1, 0, bounded=True).rule(), queries(1), cache, 0, scale=SCALE, audit=found)
        shift, bound = found[3:].astype(np.float64)
        assert (shift > 0.05).all() and (shift < 0.4).all()
        assert (shift <= bound + 1e-5).all() and (bound < 1.08 * shift).all()


def test_a_smaller_bound_reads_more(each_isa: str) -> None:
    cache, q = filled(2000), queries(8)
    read = []
    for eps in (0.5, 0.2, 0.05, 0.0):
        found = attend(Tiers(eps, 0.0001, bounded=True).rule(), q, cache, 0, scale=SCALE)[1]
        read.append(sum(each.key_rows for each in found))
    assert read == sorted(read) and read[0] < read[1] < read[2]
    assert read[3] == GROUPS * sum(range(1993, 2001))


@pytest.mark.parametrize("types", [("bfloat16", "bfloat16"), ("planes", "int8"), ("kmeans4",) * 2])
def test_a_cache_without_bases_is_refused(types: tuple[str, str]) -> None:
    keys, values = like_a_model_s(40)
    cache = cache_of(keys, values, types[0], value_dtype=types[1], rounding=None)
    with pytest.raises(ValueError, match="the cache has no bases of its keys and values"):
        attend(Tiers().rule(), queries(1), cache, 0, scale=SCALE)
    attend(Tiers.exact_limit().rule(), queries(1), cache, 0, scale=SCALE)


@pytest.mark.parametrize(("eps", "skip"), [(-0.1, 0), (1.1, 0), (1e-9, 0), (0.5, -1), (0.5, 1.5)])
def test_refused_options(eps: float, skip: float) -> None:
    with pytest.raises(InputError, match=r"^tiers: (eps|skip)=.*: must be "):
        Tiers(eps, skip)


@pytest.mark.parametrize("dtype", ["planes", "auto"])
def test_a_model_drafts_for_itself_in_tiers(dtype: str, tmp_path: Path) -> None:
    """Drafts are checked by all rows, exactly: they change no token, and some are right."""
    folder = tiny.make(tmp_path, "llama", tokenizer=True, max_position_embeddings=512)
    options = {"threads": 1, "dtype": "float32", "kv_cache_dtype": dtype}
    prompt = [(11 * i * i) % 190 + 3 for i in range(250)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    drafts = {
        "method": "self",
        "attention": "tiers:eps=0.9,skip=0.001",
        "recent": 0,
        "quantization": None,
        "adaptive": False,
    }
    plain = LLM(folder, **options).generate([prompt], params)[0]
    found = LLM(folder, speculative_config=drafts, **options).generate([prompt], params)[0]
    assert found.outputs == plain.outputs
    assert found.speculation.num_accepted_tokens > 0


@pytest.mark.parametrize("dtype", ["planes", "auto"])
def test_what_a_run_reads_is_counted(dtype: str, tmp_path: Path) -> None:
    folder = tiny.make(tmp_path, "llama", tokenizer=True, max_position_embeddings=512)
    options = {"threads": 1, "dtype": "float32", "kv_cache_dtype": dtype}
    prompt = [(7 * i * i) % 190 + 3 for i in range(300)]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    llm = LLM(folder, attention="tiers:eps=0.5,skip=0.003", audit=1, **options)
    llm.generate([prompt], params)
    trace = llm.runner.trace
    row = trace.kv_bytes_held // (2 * trace.rows_held)
    exact = (trace.key_rows_read + trace.value_rows_read) * row
    assert trace.kv_bytes_read == exact + trace.sketch_bytes_read
    assert trace.rows[4].sum() == trace.sketch_bytes_read
    size = llm.runner.decoder.config.head_size
    by_base = trace.rows_held - (trace.key_rows_read if dtype == "planes" else 0)
    assert trace.sketch_bytes_read > by_base * size // 2
    assert trace.kv_bytes_read < trace.kv_bytes_held
    assert trace.audit is not None and trace.audit.tokens > 0
