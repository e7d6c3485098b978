"""Token by token, what is attended to is what the policy's definition says.

Also tests h2o.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import policy_models
from caches import as_multiplied, held, in_pairs
from oracle import max_error
from rows import SCALE, SIZE, Rows, softmax
from suffice.attention import ATTENTIONS
from suffice.attention.traversal import traverse
from suffice.backends.cpu.attention import attend
from suffice.cache import KV_DTYPES
from suffice.cache.kv import KVCache
from suffice.policy import POLICIES
from suffice.policy.full import Full
from suffice.policy.observation import observed_scores
from suffice.policy.quest import Quest
from suffice.policy.snapkv import SnapKV
from suffice.policy.streaming import Streaming

TOLERANCE = 2e-5
# Of types with which queries and weights are rounded; bfloat16 is only where it is multiplied in
# pairs.
ROUNDED = {"int8": 1e-3, "planes": 3e-2, "kmeans4": 3e-2, "bfloat16": 4e-3}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("prompt", [0, 1, 300])
@pytest.mark.parametrize(("budget", "sinks"), [(40, 4), (21, 0), (64, 20)])
def test_streaming_sees_sinks_and_window(
    prompt: int, budget: int, sinks: int, each_isa: str
) -> None:
    policy, rows = Streaming(budget=budget, sinks=sinks), Rows(500)
    cache, most = rows.cache(policy), 0
    if prompt:
        rows.prompt(policy, cache, prompt)
    for token in range(prompt, 500):
        out, reads = rows.step(policy, cache, token)
        seen = policy.seen(token, budget)
        assert max_error(out, rows.output(token, [seen, seen])) < TOLERANCE
        assert reads[0].dense_rows == token + 1
        assert len(seen) <= reads[0].key_rows <= len(seen) + 4 * 16
        most = max(most, cache.held(0))
    assert most <= budget + 2 * 64 + 16 or prompt == 300 == most
    assert cache.held(0) <= budget + 64 + 2 * 16
    assert cache.capacity <= 500 + 2 * 64, "the memory stays what the window needs"


@pytest.mark.parametrize("prompt", [0, 5, 150])
@pytest.mark.parametrize("budget", [2, 17, 40])
def test_h2o_keeps_what_weighed_most(prompt: int, budget: int, each_isa: str) -> None:
    policy, rows = POLICIES.build(f"h2o:budget={budget}"), Rows(300)
    cache = rows.cache(policy)
    models = [policy_models.HeavyHitters(budget) for _ in rows.k]
    if prompt:
        rows.prompt(policy, cache, prompt)
        keys = rows.k[:, :prompt]
        queries = policy_models.heads_of(rows.q[:, :prompt], keys)
        for own, key, model in zip(queries, keys, models, strict=True):
            masses = sum(policy_models.softmax(each, key, SCALE).sum(0) for each in own)
            model.start(np.asarray(masses))
    for token in range(prompt, 300):
        seen = [[*model.tokens(), token] for model in models]
        out, reads = rows.step(policy, cache, token)
        assert max_error(out, rows.output(token, seen)) < TOLERANCE, token
        assert reads[0].dense_rows == token + 1
        for group, model in enumerate(models):
            weights = np.zeros(len(seen[group]))
            for head in range(group * rows.group, (group + 1) * rows.group):
                weights += rows.weights(token, head, seen[group])
            model.step(token, dict(zip(seen[group], weights.tolist(), strict=True)))
    assert cache.held(0) <= budget + 1 + 64 + 2 * 16


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_quest_reads_the_blocks_of_the_highest_bound(dtype: str, each_isa: str) -> None:
    policy, rows = Quest(budget=64, dense_layers=0), Rows(400, seed=3)
    cache = rows.cache(policy, dtype)
    rows.prompt(policy, cache, 300)
    for token in range(300, 400):
        out, reads = rows.step(policy, cache, token)
        k, v = held(cache)
        for group in range(2):
            own = slice(group * rows.group, (group + 1) * rows.group)
            chosen = policy.select(rows.q[own, token], k[group], 4)
            read = [row for b in chosen for row in range(16 * b, min(16 * b + 16, token + 1))]
            q = as_multiplied(rows.q[own, token], cache, SCALE)
            weights = softmax(SCALE * q.astype(np.float64) @ k[group, read].T)
            exact = weights @ v[group, read].astype(np.float64)
            rounded = dtype != "bfloat16" or in_pairs(dtype)
            limit = ROUNDED.get(dtype, TOLERANCE) if rounded else TOLERANCE
            assert max_error(out[own], exact) < limit * np.abs(exact).max()
            assert reads[group].key_rows == len(read)
            assert reads[group].dense_rows == token + 1
            assert reads[group].sketch_bytes == token // 16 * 2 * SIZE * 4


def test_quest_of_drafts_is_quest_of_tokens() -> None:
    policy, rows = Quest(budget=64, dense_layers=0), Rows(330)
    one, other = rows.cache(policy), rows.cache(policy)
    for cache in (one, other):
        rows.prompt(policy, cache, 300)
    singly = np.stack([rows.step(policy, one, token)[0] for token in range(300, 330)], axis=1)
    other.reserve(30)
    other.append_tentative(rows.k[None, :, 300:], rows.v[None, :, 300:], list(range(-1, 29)))
    together = attend(None, rows.q[:, 300:], other, 0, scale=SCALE)[0]
    assert np.array_equal(singly, together)


TECHNIQUES = [
    "aet:keys=0.7,values=0.05",
    "aet:keys=0.7,values=0.05,block=1",
    "art:change=0.5,angle=0.5,patience=2,block=16",
    "art:change=0.5,angle=0.5,patience=1",
    "art:change=0",
    "exact",
]


def left(cache: KVCache) -> tuple[np.ndarray, ...]:
    return tuple(each.astype(np.float64) for each in held(cache))


def ranked(rows: Rows, policy: Any, prompt: int) -> tuple[KVCache, list[list[int]]]:
    """Return a cache after a prompt, and the order that its policy gave each head's blocks."""
    cache, orders = rows.cache(policy), []
    rank = cache.rank
    cache.rank = lambda layer, order: (orders.append(order.tolist()), rank(layer, order))  # type: ignore[method-assign]
    rows.prompt(policy, cache, prompt)
    return cache, orders[0]


@pytest.mark.parametrize("setting", ["snapkv:budget=100,window=8", "pyramidkv:budget=250"])
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_techniques_run_over_what_is_left(setting: str, technique: str) -> None:
    policy, rows, chosen = POLICIES.build(setting), Rows(300), ATTENTIONS.build(technique)
    cache, orders = ranked(rows, policy, 280)
    assert cache.held(0) < 280
    states = [chosen.new_state() for _ in rows.k] if technique != "exact" else None
    more: Any = {} if technique == "exact" else {"orders": orders}
    for token in range(280, 300):
        out, reads = rows.step(policy, cache, token, chosen)
        k, v = left(cache)
        expected = chosen.reference(
            rows.q[:, token : token + 1].astype(np.float64),
            k,
            v,
            scale=SCALE,
            states=states,
            **more,
        )
        assert max_error(out, expected.output[:, 0]) < TOLERANCE
        assert reads[0].key_rows == int(expected.keys[0, 0].sum())


@pytest.mark.parametrize("budget", [100, 101, 116])
def test_ranks_survive_an_eviction(budget: int) -> None:
    """Blocks of the rows that are left come by the largest score of a row in them."""
    policy, rows = SnapKV(budget=budget, window=8), Rows(300)
    whole = rows.cache(Full())
    rows.prompt(Full(), whole, 280)
    q = rows.q[:, 272:280]
    scores = observed_scores(q, held(whole)[0], scale=SCALE, kernel=5, pool="max")
    cache, orders = ranked(rows, policy, 280)
    assert cache.held(0) == budget
    for own, order in zip(scores, orders, strict=True):
        best = np.sort(np.argsort(-own, kind="stable")[: budget - 8])
        tops = [own[best[at : at + 16]].max() for at in range(0, (budget - 8) // 16 * 16, 16)]
        assert sorted(order) == [*range(len(tops))] and order != sorted(order, reverse=True)
        assert [tops[block] for block in order] == sorted(tops, reverse=True)


@pytest.mark.parametrize(
    "setting",
    [
        "snapkv:rank_only=true,window=8",
        "h2o:rank_only=true",
        "snapkv:ratio=0.8,window=8",
        "pyramidkv:ratio=0.8,window=8",
        "snapkv:ratio=1",
    ],
)
def test_art_reads_in_the_order_of_importance(setting: str) -> None:
    policy, rows = POLICIES.build(setting), Rows(300, seed=1)
    art = ATTENTIONS.build("art:change=0.5,angle=0.5,patience=2,block=16")
    cache, orders = ranked(rows, policy, 260)
    assert orders[0] != sorted(orders[0], reverse=True), "another order than newest first"
    stopped = 0
    for token in range(260, 300):
        out, reads = rows.step(policy, cache, token, art)
        q = rows.q[:, token : token + 1].astype(np.float64)
        expected = traverse(art, q, *left(cache), scale=SCALE, orders=orders)
        assert max_error(out, expected.output[:, 0]) < TOLERANCE
        for group in range(2):
            assert reads[group].key_rows == int(expected.keys[0, group].sum())
            stopped += reads[group].key_rows < cache.held(0)
    assert stopped > 10


@pytest.mark.parametrize("keep", [False, True])
def test_art_never_misses_the_sinks(keep: bool) -> None:
    policy = Streaming(rank_only=True) if keep else Streaming(budget=200)
    rows = Rows(300)
    rows.k[:, :4] = 0
    rows.v[:, :4] = 1000.0
    art = ATTENTIONS.build("art:change=1e9,angle=2,patience=1,block=16")  # stops at the first look
    cache = rows.cache(policy)
    rows.prompt(policy, cache, 290)
    for token in range(290, 300):
        out, reads = rows.step(policy, cache, token, art)
        assert (np.abs(out).max(-1) > 1.0).all(), "a sink's value is in every output"
        assert reads[0].key_rows <= 32
    out, _ = attend(art.rule(), rows.q[:, 299:], _whole(rows), 0, scale=SCALE)
    assert (np.abs(out).max(-1) < 20.0).all(), "without the policy art stops before it gets there"


def _whole(rows: Rows) -> KVCache:
    cache = rows.cache(Full())
    rows.prompt(Full(), cache, 300)
    return cache


@pytest.mark.parametrize("block", [1, 16])
def test_the_state_of_aet_follows_its_blocks_when_rows_move(block: int) -> None:
    """Streaming moves rows within the cache; a cache in which none has moved gives the same."""
    policy, rows = Streaming(budget=100), Rows(700)
    aet: Any = ATTENTIONS.build(f"aet:keys=0.8,values=0,globals=32,locals=8,block={block}")
    cache, roomy = rows.cache(policy), rows.cache(policy)
    roomy.reserve(700)
    for token in range(700):
        moved, _ = rows.step(policy, cache, token, aet)
        unmoved, _ = rows.step(policy, roomy, token, aet)
        assert max_error(moved, unmoved) < TOLERANCE, token
    assert cache.held(0) < 300 and roomy.held(0) == 700
