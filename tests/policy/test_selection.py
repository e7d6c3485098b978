"""What each policy keeps of a prompt is what a model of it in numpy keeps."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import policy_models
from rows import SCALE, SIZE, Rows, rows_of
from suffice.policy import POLICIES
from suffice.policy.choice import block_order
from suffice.policy.observation import PRODUCT, observed_scores
from suffice.policy.pyramidkv import PyramidKV
from suffice.policy.quest import Quest


def kept(setting: str, rows: Rows, count: int) -> list[list[int]]:
    policy = POLICIES.build(setting)
    cache = rows.cache(policy)
    rows.prompt(policy, cache, count)
    return rows_of(cache, rows.k)


@pytest.mark.parametrize(("groups", "rep"), [(1, 1), (1, 3), (2, 8), (3, 1)])
@pytest.mark.parametrize(
    ("window", "kernel", "pool"), [(8, 5, "max"), (3, 7, "avg"), (20, 1, "max")]
)
def test_snapkv(groups: int, rep: int, window: int, kernel: int, pool: str) -> None:
    options = f"window={window},kernel={kernel},pool={pool}"
    for count, budget in ((120, 40), (57, 20), (41, 40), (40, 40), (21, 20)):
        rows = Rows(count, groups, rep, seed=count)
        q, k = rows.q, rows.k
        expected = policy_models.snapkv(q, k, SCALE, budget, window, kernel, pool)
        assert kept(f"snapkv:budget={budget},{options}", rows, count) == expected


@pytest.mark.parametrize("pool", ["max", "avg"])
def test_equal_scores_keep_the_window_and_the_oldest(pool: str) -> None:
    rows = Rows(100)
    rows.q[:] = 0
    kept_rows = kept(f"snapkv:budget=40,window=8,pool={pool}", rows, 100)
    edge = 0 if pool == "max" else 2  # at the border an average counts zeros
    last = [*range(edge, 32 + edge), *range(92, 100)]
    assert kept_rows == [last, last]


def test_a_ratio_is_of_the_prompt() -> None:
    rows = Rows(101)
    by_ratio = kept("snapkv:ratio=0.4,window=8", rows, 101)
    assert by_ratio == kept("snapkv:budget=40,window=8", rows, 101)
    assert kept("snapkv:ratio=0.01,window=8", rows, 101) == [list(range(93, 101))] * 2
    assert kept("snapkv:window=8", rows, 101) == kept("snapkv:budget=50,window=8", rows, 101)
    assert kept("snapkv:ratio=1,window=8", rows, 101) == [list(range(101))] * 2


@pytest.mark.parametrize("setting", ["snapkv:ratio=0.1", "pyramidkv", "h2o:ratio=0.1", "streaming"])
def test_a_prompt_of_one_token_stays(setting: str) -> None:
    assert kept(setting, Rows(1), 1) == [[0], [0]]


def test_quest_reads_all_in_its_first_layers() -> None:
    limited: list[int] = []
    cache: Any = SimpleNamespace(set_visible=lambda layer, blocks: limited.append(layer))
    Quest(budget=64, dense_layers=2).prepare(cache, (None, None, 32, None, None))
    assert limited == [3, 4], "the layer with a window has its own limit"


def test_pyramidkv_budgets() -> None:
    for prompt, budget, layers in itertools.product(
        (200, 550, 700, 5000), (140, 300, 388, 1200), (2, 7, 30)
    ):
        policy = PyramidKV(budget=budget)
        found = policy.budgets(prompt, layers)
        mean, past = budget - 128, prompt - 128
        if prompt <= budget:
            assert found == [prompt] * layers
        elif prompt < 2 * mean:
            assert found == [budget] * layers
        else:
            low = mean // 20
            high = 2 * mean - low
            if high > past:
                high, low = past, 2 * mean - past
            assert (found[0], found[-1]) == (high + 128, low + 128)
            assert found == sorted(found, reverse=True)
            assert budget <= np.mean(found) < budget + 1
            assert max(found) <= prompt and min(found) >= 128


def test_pyramidkv_keeps_what_snapkv_keeps_with_each_layer_s_budget() -> None:
    rows = Rows(120)
    layer = PyramidKV(budget=40, window=8).budgets(120, 1)[0]
    expected = policy_models.snapkv(rows.q, rows.k, SCALE, layer, 8, 5, "max")
    assert kept("pyramidkv:budget=40,window=8", rows, 120) == expected


@pytest.mark.parametrize(("groups", "rep"), [(1, 1), (2, 3)])
def test_h2o(groups: int, rep: int) -> None:
    for count, budget in ((300, 41), (57, 20), (20, 20), (7, 20)):
        rows = Rows(count, groups, rep, seed=count)
        q, k = rows.q, rows.k
        expected = []
        for queries, keys in zip(policy_models.heads_of(q, k), k, strict=True):
            masses = sum(policy_models.softmax(each, keys, SCALE).sum(0) for each in queries)
            model = policy_models.HeavyHitters(budget)
            model.start(np.asarray(masses))
            expected.append(model.tokens())
        assert kept(f"h2o:budget={budget}", rows, count) == expected


def test_streaming() -> None:
    for count, budget, sinks in ((100, 20, 4), (20, 20, 4), (21, 20, 0), (5, 20, 4)):
        first = list(range(sinks)) if count > budget else []
        expected = [*first, *range(count - min(count, budget) + len(first), count)]
        found = kept(f"streaming:budget={budget},sinks={sinks}", Rows(count), count)
        assert found == [expected] * 2


@pytest.mark.parametrize(
    "setting", ["snapkv:rank_only=true", "pyramidkv:rank_only=true", "h2o:rank_only=true"]
)
def test_keep_keeps(setting: str) -> None:
    assert kept(setting, Rows(300), 300) == [list(range(300))] * 2


def test_blocks_are_ranked_by_their_best_row() -> None:
    scores = np.zeros((2, 70), np.float32)
    scores[0, 40], scores[0, 3], scores[1, 63], scores[1, 69] = 2.0, 1.0, 5.0, 9.0
    assert block_order(scores, 16).tolist() == [[2, 0, 1, 3], [3, 0, 1, 2]]


def test_fewer_new_tokens_than_the_window_are_the_window() -> None:
    rows = Rows(50)
    q = rows.q[:, -5:]
    found = observed_scores(q, rows.k, scale=SCALE, kernel=1, pool="max")
    expected = [
        sum(policy_models.softmax(each, keys, SCALE).mean(0) for each in queries)[:45] / 2
        for queries, keys in zip(policy_models.heads_of(q, rows.k), rows.k, strict=True)
    ]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-4, atol=1e-7)


def test_products_stay_on_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    products, matmul = [], np.matmul

    def counted(a: np.ndarray, b: np.ndarray, **options: Any) -> np.ndarray:
        products.append(a.shape[-2] * a.shape[-1] * b.shape[-1])
        return matmul(a, b, **options)

    monkeypatch.setattr(np, "matmul", counted)
    rows = Rows(900)
    observed_scores(rows.q[:, -128:], rows.k, scale=SCALE, kernel=1, pool="max")
    assert len(products) > 2 * 128 // 32 and max(products) <= PRODUCT < 32 * SIZE * 900


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("snapkv:budget=31", {}, "snapkv: budget=31: must be at least 32 tokens, the window"),
    ("pyramidkv:budget=100", {}, "pyramidkv: budget=100: must be at least 128 tokens, the window"),
    ("h2o:budget=1", {}, "h2o: budget=1: must be at least 2 tokens, a heavy and a recent one"),
    (
        "streaming:budget=4",
        {},
        "streaming: budget=4: must be at least 5 tokens, the sinks and one more",
    ),
    ("quest:budget=47", {}, "quest: budget=47: must be at least 48 tokens, 3 blocks of 16"),
    ("snapkv:ratio=0", {}, "snapkv: ratio=0.0: must be above 0 and at most 1"),
    ("h2o:ratio=nan", {}, "h2o: ratio=nan: must be above 0 and at most 1"),
    ("quest:ratio=1.5", {}, "quest: ratio=1.5: must be above 0 and at most 1"),
    (
        "snapkv:budget=64,ratio=0.2",
        {},
        "snapkv: budget=64 and ratio=0.2: give only one of them",
    ),
    (
        "snapkv:rank_only=true,ratio=0.2",
        {},
        "snapkv: rank_only=true keeps everything: give no budget and no ratio",
    ),
    ("snapkv:window=0", {}, "snapkv: window=0: must be at least 1 token"),
    ("snapkv:kernel=4", {}, "snapkv: kernel=4: must be odd and at least 1"),
    (
        "pyramidkv:pool=min",
        {},
        "unknown pyramidkv pool 'min'. Known: avg, max",
    ),
    ("pyramidkv:beta=0", {}, "pyramidkv: beta=0: must be at least 1"),
    ("streaming:sinks=-1", {}, "streaming: sinks=-1: must be at least 0 tokens"),
    ("quest:dense_layers=-1", {}, "quest: dense_layers=-1: must be at least 0"),
    (
        "h2o",
        {"attention": "art"},
        "policy 'h2o' sums the weights of all tokens, which attention 'art' does not compute: the "
        "attention must be 'exact'",
    ),
    (
        "snapkv",
        {"attention": "certified"},
        "policy 'snapkv' with attention 'certified', which selects from all tokens itself: "
        "the policy must be 'full'",
    ),
]


@pytest.mark.parametrize(("setting", "options", "message"), WRONG, ids=[each[0] for each in WRONG])
def test_bad_input(setting: str, options: dict[str, Any], message: str) -> None:
    from suffice.engine.config import Config
    from suffice.errors import InputError

    with pytest.raises(InputError) as error:
        Config.create("model", policy=setting, **options)
    assert str(error.value) == message


def test_a_ratio_may_stand_alone() -> None:
    assert POLICIES.build("snapkv:0.8") == POLICIES.build("snapkv:ratio=0.8")
    assert POLICIES.build("snapkv:0.8,rank_only=false") == POLICIES.build("snapkv:ratio=0.8")
