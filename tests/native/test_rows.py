"""One native call for the rows of several requests gives each what it gets alone, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from suffice.attention import ATTENTIONS, by_head
from suffice.attention.exaq import EXAQ
from suffice.attention.rule import coded_rules
from suffice.backends.cpu.attention import attend
from suffice.backends.cpu.rules import native_rule
from suffice.cache import GROWTHS, alike, row_bytes
from suffice.cache.kv import KVCache
from suffice.native import core
from suffice.policy import POLICIES

LAYERS, GROUPS, HEADS, SIZE, SCALE = 2, 2, 6, 32, 0.3
HELD, NEW = (100, 0, 37), (1, 3, 2)
LEVELS = [[EXAQ(3).layer_levels(1.0 + 0.3 * i, -30.0) for i in range(HEADS)]] * LAYERS


def held_by(policy: Any, dtype: str = "bfloat16", **kept: bool) -> list[KVCache]:
    torch.manual_seed(0)
    caches = []
    for held, new in zip(HELD, NEW, strict=True):
        kept |= dict.fromkeys(policy.keeps, True)
        growth = GROWTHS.build("step:rows=64")
        types = {"key_dtype": dtype, "value_dtype": dtype}
        cache = KVCache(alike(LAYERS, GROUPS, SIZE), growth=growth, limit=999, **types, **kept)
        policy.prepare(cache, [None] * LAYERS)
        cache.reserve(held + new)
        for layer in range(LAYERS):
            cache.append(layer, *torch.randn(2, GROUPS, held, SIZE))
        cache.advance(held)
        caches.append(cache)
    return caches


def numbers(values: Any) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize(
    ("technique", "policy", "coded", "dtype"),
    [
        ("exact", "full", False, "bfloat16"),
        ("exact", "full", True, "bfloat16"),
        ("aet:keys=0.6,values=0.01", "full", False, "bfloat16"),
        ("aet:keys=0.6", "full", True, "bfloat16"),
        ("certified:eps=0.2", "full", False, "bfloat16"),
        ("tiers:eps=0.4,skip=0.01", "full", False, "bfloat16"),
        ("tiers:eps=0.4,skip=0.01", "full", False, "planes"),
        ("exact", "quest:budget=48,dense_layers=1", False, "bfloat16"),
        ("skip_softmax:factor=30,block=16", "quest:budget=48,dense_layers=1", False, "bfloat16"),
        ("art:change=0.5,angle=0.5,patience=1,block=16", "streaming:budget=30", False, "bfloat16"),
    ],
)
def test_a_call_for_several_requests(
    technique: str, policy: str, coded: bool, dtype: str, window: int, each_isa: str
) -> None:
    attention, chosen = ATTENTIONS.build(technique), POLICIES.build(policy)
    rules = coded_rules(by_head.rules(attention, None, LAYERS, GROUPS), LEVELS if coded else [])
    kept = {"sketch": attention.sketched, "bases": attention.based}
    together, *alone = (held_by(chosen, dtype, **kept) for _ in range(1 + GROUPS))
    starts, counts = numbers(HELD), numbers(NEW)
    visible = numbers([(2 << i) - 1 for new in NEW for i in range(new)])
    reads, trace = np.zeros((2, 5, LAYERS, GROUPS), np.int64)
    natives = [cache.native for cache in together]
    for layer in range(LAYERS):
        k, v = torch.randn(2, sum(NEW), GROUPS, SIZE).numpy()
        q = torch.randn(sum(NEW), HEADS, SIZE)
        out = torch.full_like(q, float("nan"))
        core.store_rows(natives, layer, starts, counts, k, v)
        found = core.attend_rows(
            natives,
            layer,
            starts,
            counts,
            q.numpy(),
            visible,
            SCALE,
            window,
            out.numpy(),
            [native_rule(rule) for rule in rules[layer]],
            reads,
        )
        read_bytes, sketch_bytes = 0, 0
        for head, caches in enumerate(alone):  # a call for one request has one rule: of this head
            rule = rules[layer][head]
            of_head, first = slice(head * HEADS // GROUPS, (head + 1) * HEADS // GROUPS), 0
            for cache, new in zip(caches, NEW, strict=True):
                own = slice(first, first + new)
                if layer == 0:
                    cache.draft(list(range(-1, new - 1)))
                pair = (np.ascontiguousarray(part[own].swapaxes(0, 1)) for part in (k, v))
                cache.native.store(layer, cache.length, *pair)
                queries = q[own].numpy().swapaxes(0, 1)
                expected, counted = attend(
                    rule, queries, cache, layer, scale=SCALE, window=window or None
                )
                assert np.array_equal(out[own, of_head], expected.swapaxes(0, 1)[:, of_head])
                read = counted[head]
                rows = read.key_rows, read.value_rows, read.dense_rows, read.per_head_rows
                trace[:, layer, head] += *rows, read.sketch_bytes
                read_bytes += (read.key_rows + read.value_rows) * row_bytes(dtype, SIZE)
                sketch_bytes += read.sketch_bytes
                first += new
        assert (found.kv_bytes, found.sketch_bytes) == (read_bytes, sketch_bytes)
    assert np.array_equal(reads, trace)


def test_boxes_are_made_once_and_follow_the_rows() -> None:
    policy = POLICIES.build("quest:budget=48,dense_layers=0")
    [cache, *_] = held_by(policy)
    q = torch.randn(HEADS, 1, SIZE).numpy()
    attend(None, q, cache, 1, scale=SCALE)  # makes the boxes of the second layer only
    [fresh, *_] = held_by(policy)
    for layer in range(LAYERS):
        one, other = (attend(None, q, each, layer, scale=SCALE)[0] for each in (cache, fresh))
        assert np.array_equal(one, other)
    for each in (cache, fresh):
        each.truncate(40)
        each.append(0, *torch.ones(2, GROUPS, 50, SIZE))
        each.append(1, *torch.ones(2, GROUPS, 50, SIZE))
        each.advance(50)
    [cold, *_] = held_by(policy)
    cold.truncate(0)
    for layer in range(LAYERS):
        cold.append(layer, cache.keys(layer), cache.values(layer))
    cold.advance(90)
    for layer in range(LAYERS):
        one, other = (attend(None, q, each, layer, scale=SCALE)[0] for each in (cache, cold))
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": numbers([1, 3, 1])}, "the counts add up to 5, not to the 6 rows given"),
        ({"counts": numbers([1, 5])}, "one length and one count per cache, of at least one"),
        ({"counts": numbers([0, 4, 2])}, "1 to 32 query rows, not 0"),
        ({"layer": 2}, "there is no such layer"),
        ({"starts": numbers([100, 0, 900])}, "rows 900..902 exceed the capacity of 64"),
        ({"visible": numbers([1, 1])}, "visible needs one entry per query row"),
        ({"out": np.zeros((6, HEADS, 16), np.float32)}, "out must have the shape of q"),
        ({"rules": 1}, "one rule for each key/value head"),
        ({"reads": np.zeros((4, 1, GROUPS), np.int64)}, r"reads must be \[5, layers, kv_heads\]"),
    ],
)
def test_refused_calls(change: dict[str, Any], message: str) -> None:
    caches = held_by(POLICIES.build("full"))
    shape = (sum(NEW), HEADS, SIZE)
    given = {
        "caches": [cache.native for cache in caches],
        "layer": 0,
        "lengths": change.pop("starts", numbers(HELD)),
        "counts": numbers(NEW),
        "q": np.zeros(shape, np.float32),
        "visible": numbers([1, 1, 3, 7, 1, 3]),
        "scale": SCALE,
        "window": 0,
        "out": np.zeros(shape, np.float32),
        "rules": [core.AttentionRule("read_all", {}, 0.0)] * change.pop("rules", GROUPS),
        "reads": np.zeros((5, LAYERS, GROUPS), np.int64),
    }
    with pytest.raises(ValueError, match=message):
        core.attend_rows(**(given | change))


def test_caches_of_one_call_are_alike() -> None:
    [cache, *_] = held_by(POLICIES.build("full"))
    other = KVCache(alike(1, GROUPS, SIZE), growth=GROWTHS.build("double"), limit=99)
    rows = np.zeros((2, GROUPS, SIZE), np.float32)
    with pytest.raises(ValueError, match="caches of one call must be of one model"):
        natives = [cache.native, other.native]
        core.store_rows(natives, 0, numbers([100, 0]), numbers([1, 1]), rows, rows)


def test_refused_rows() -> None:
    [cache, *_] = held_by(POLICIES.build("full"))
    whole = np.zeros((GROUPS, 2, SIZE), np.float32)
    for shape in ((GROUPS, 1, SIZE), (GROUPS, 3, SIZE), (1, 2, SIZE), (GROUPS, 2, 16)):
        other = np.zeros(shape, np.float32)
        for pair in ((whole, other), (other, whole)):
            with pytest.raises(ValueError, match=r"^keys and values must be \[2, [123], 32\]$"):
                cache.native.store(0, 5, *pair)
