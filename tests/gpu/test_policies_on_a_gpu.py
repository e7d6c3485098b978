"""Policies, audits and calibrated thresholds on a GPU: what they choose, and count, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import suffice.integrations.transformers as st
import tiny
from batches import generate
from calibrating import write_levels
from gpu.device_rows import DEVICE, Case
from hf_reference import as_cache
from suffice.attention import ATTENTIONS
from suffice.backends.triton.audit import audited
from suffice.backends.triton.call import Held
from suffice.backends.triton.rules import HeadRules
from suffice.errors import InputError
from suffice.integrations.device_boxes import Boxes
from suffice.integrations.device_layer import in_order
from suffice.integrations.device_policy import observed_scores
from suffice.integrations.device_requests import DeviceRequests
from suffice.integrations.requests import Requests
from suffice.policy import observation
from suffice.policy.quest import Quest

ART = "art:change=0.5,angle=0.5,patience=1,block=16"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model(model_of: Callable[[str], Any]) -> Any:
    return model_of("llama")


def runs(model: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[tuple[Any, Any]]:
    """Return the tokens and the trace of native code, and of the kernels for GPUs."""
    found = []
    for requests in (Requests, DeviceRequests):
        kernels = requests is DeviceRequests
        monkeypatch.setattr(st, "requests_on", lambda device, own=requests: own)
        with st.enable(model.to(DEVICE if kernels else "cpu"), **options) as enabled:
            inputs = {"batch": 2, "length": 60, "max_new_tokens": 3}
            found.append((generate(model, **inputs).cpu(), enabled.trace))
    model.to(DEVICE)
    return found


@pytest.mark.parametrize(
    ("attention", "policy"),
    [
        ("exact", "snapkv:0.5,window=8"),
        ("exact", "pyramidkv:0.5,window=8,pool=avg,kernel=3"),
        ("exact", "streaming:budget=20,sinks=2"),
        ("exact", "streaming:budget=61"),  # goes round while tokens are decoded
        ("exact", "quest:budget=48,dense_layers=1"),
        (ART, "snapkv:rank_only=true,window=8"),
        (ART, "snapkv:0.8,window=20"),
        (ART, "quest:rank_only=true,dense_layers=1"),
        ("skip_softmax:factor=20,block=16", "snapkv:0.8,window=20"),
    ],
)
def test_a_policy_chooses_what_it_chooses_on_the_cpu(
    attention: str, policy: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tokens, native), (found, trace) = runs(model, monkeypatch, attention=attention, policy=policy)
    assert torch.equal(found, tokens)
    if policy.startswith("streaming"):  # native code also counts rows that have not been moved yet
        assert (trace.rows[:2] <= native.rows[:2]).all()
    else:
        np.testing.assert_array_equal(trace.rows[:2], native.rows[:2])
    np.testing.assert_array_equal(trace.rows[[2, 4]], native.rows[[2, 4]])
    assert trace.rows[0].sum() < trace.rows[2].sum() or "rank_only" in policy


def test_rows_that_were_evicted_free_their_memory(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(st, "requests_on", lambda device: DeviceRequests)
    sizes = {}
    for policy in ("full", "snapkv:0.3,window=8"):
        with st.enable(model, policy=policy, growth="step:8") as enabled:
            cache = enabled.new_cache()
            ids = torch.arange(60, device=DEVICE)[None] % 90 + 3
            model(ids, **as_cache(cache))
            sizes[policy] = cache.bytes
            if policy != "full":
                model(ids[:, :1], **as_cache(cache))
                with pytest.raises(InputError, match="evicts cannot be undone"):
                    cache.crop(-1)
                with pytest.raises(InputError, match="evicts tokens that the next prompt"):
                    model(ids, **as_cache(cache))
    assert sizes["snapkv:0.3,window=8"] <= 0.4 * sizes["full"]


def test_scores_of_a_prompt_s_end_are_the_policy_s() -> None:
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((heads, rows, 16)) for heads, rows in ((4, 5), (2, 40)))
    for pool in ("max", "avg"):
        options = {"scale": 0.3, "kernel": 3, "pool": pool}
        expected = observation.observed_scores(q, k, **options)
        found = observed_scores(*(torch.from_numpy(x).float() for x in (q, k)), **options)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        of_window = observed_scores(torch.ones(4, 5, 16), torch.ones(2, 5, 16), **options)
        assert of_window.shape == (2, 0)  # all rows are the window's: none has a score


@pytest.mark.parametrize(
    ("length", "ranked", "unit"), [(97, 3, 2), (96, 0, 4), (33, 3, 4), (200, 5, 4)]
)
def test_lists_have_newer_blocks_first_in_whole_units(length: int, ranked: int, unit: int) -> None:
    blocks = -(-length // 16)
    newer = range(ranked, blocks)
    units = sorted({block // unit for block in newer}, reverse=True)
    order = list(range(ranked))[::-1]
    expected = [block for own in units for block in newer if block // unit == own] + order
    tokens = Case.random((length,)).tokens
    given = torch.tensor([[[*order, 0]]], dtype=torch.int32, device=DEVICE)
    count = torch.tensor([ranked], dtype=torch.int32, device=DEVICE)
    found = in_order(tokens, given, count, unit, 256)
    assert found.counts.tolist() == [[blocks]]
    assert found.blocks[0, 0, :blocks].tolist() == expected


def test_boxes_select_what_quest_does() -> None:
    case = Case.random((150, 40), heads=2, group=3, size=32)
    case.k[0, :, 141:144] *= 10  # the end of a block
    boxes = Boxes(2, 2, 32, DEVICE)
    boxes.reserve(160)
    lengths = case.tokens.length
    for before, new in ((9, 150), (1, 8), (0, 1)):  # 8 rows that end a block, and begin another
        held = case.held()
        there = torch.arange(150, device=DEVICE) < (lengths - before)[:, None]
        keys = held.keys * there[:, None, :, None]  # later rows are not there yet
        boxes.extend(Held(keys, held.values), lengths - before, new)
    for request in range(2):
        boxes.limit(request, 4)
    found = boxes.ranked(case.q.to(DEVICE), case.tokens)
    for at, length in enumerate(case.lengths):
        for head in range(2):
            q, k = case.q[at, 3 * head : 3 * head + 3].numpy(), case.k[at, head, :length].numpy()
            expected = Quest(budget=64).select(q, k, 4)
            count = int(found.counts[at, head])
            assert found.blocks[at, head, :count].tolist() == expected


@pytest.mark.parametrize(
    "attention",
    [
        ART,
        "aet:keys=0.5,values=0.2,globals=16,locals=8",
        "skip_softmax:factor=20,block=16",
        "tiers:eps=0.4,skip=0.02",
        "tiers:eps=0.4,skip=0.02,bounded=true",
    ],
)
def test_audits_find_what_they_find_on_the_cpu(
    attention: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, native), (_, trace) = runs(model, monkeypatch, attention=attention, audit=2)
    assert trace.audit.tokens == native.audit.tokens == 2
    # Values by bases have weights of 8 bits on the CPU: later layers get other queries.
    rows, error = (1, 5e-3) if attention.startswith("tiers") else (None, 1e-3)
    found, expected = (each.audit.sums[:, :rows] for each in (trace, native))
    np.testing.assert_allclose(found, expected, rtol=error, atol=1e-5)
    np.testing.assert_array_equal(trace.rows[[0, 1, 2, 4]], native.rows[[0, 1, 2, 4]])
    assert trace.audit.beyond == native.audit.beyond == 0
    assert trace.audit.most[0].max() > 0.01


@pytest.mark.parametrize("policy", ["full", "snapkv:0.5,window=8", "streaming:budget=61"])
def test_codes_weigh_what_a_policy_left(
    policy: str, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.make(tmp_path, "llama", num_hidden_layers=2)
    write_levels(tmp_path / "levels.json", folder, "llama", layers=2, heads=4)
    options = {"calibration": tmp_path / "levels.json", "checkpoint": folder, "audit": 1}
    (tokens, native), (found, trace) = runs(
        model, monkeypatch, softmax="exaq:2", policy=policy, **options
    )
    assert torch.equal(found, tokens)
    np.testing.assert_allclose(trace.audit.sums[1], native.audit.sums[1], rtol=1e-3)
    assert np.isnan(trace.audit.sums[0]).all() and trace.audit.most[1].max() > 0.01


def test_a_bound_is_audited() -> None:
    case = Case.random((420,), group=2)
    found, exact = (case.run(each)[1] for each in ("certified:eps=0.3", "exact"))
    missing, error, bound, *_ = audited(found, exact)
    assert (missing <= bound + 1e-5).all() and (missing > 0).any() and (error > 0).any()
    beyond = audited(exact, exact)
    assert (beyond[:2].abs() < 1e-6).all() and beyond[2:].isnan().all()


@pytest.mark.parametrize("technique", ["aet:keys=0.7,values=0.2,globals=32,locals=20", ART])
def test_what_is_missing_is_the_weight_of_the_rows_without_a_value(technique: str) -> None:
    case = Case.random((300, 190), group=2)
    found, exact = case.run(technique, splits=5)[1], case.run("exact")[1]
    missing = audited(found, exact)[0]
    for at, (length, own) in enumerate(zip(case.lengths, case.reference(technique), strict=True)):
        q = case.q[at].double().view(2, 2, -1)
        weights = (case.scale * q @ case.k[at, :, :length].double().mT).softmax(-1)
        without = torch.from_numpy(~own.values[0])[:, None]
        expected = (weights * without).sum(-1).flatten()
        np.testing.assert_allclose(missing[at], expected, atol=1e-5)
        assert expected.max() > 0.01


@pytest.mark.parametrize(
    ("technique", "names", "limits"),
    [
        ("art:angle=0.5,patience=1,block=16", "change", (0.0, 0.5)),
        ("aet:values=0.2,globals=16,locals=8", "keys", (2.0, 0.5)),
        ("certified", "eps", (0.0, 0.4)),
        ("skip_softmax:block=16", "factor", (0.0, 100.0)),
        ("tiers:skip=0", "eps", (0.0, 0.5)),
    ],
)
def test_heads_have_thresholds_of_their_own(
    technique: str, names: str, limits: tuple[float, float]
) -> None:
    name, _, options = technique.partition(":")
    texts = [f"{name}:{names}={limit}" + (f",{options}" if options else "") for limit in limits]
    # An exact head reads all values, as `exact_limit` does.
    first = ATTENTIONS.build(texts[0])
    rules: list[Any] = [type(first).exact_limit().rule(), ATTENTIONS.build(texts[1]).rule()]
    case = Case.random((420,), group=2)
    found, reads = case.run(texts[1], rules=HeadRules.of(rules, DEVICE))
    own, theirs = case.run(texts[1])
    exact = case.run("exact")[0]
    np.testing.assert_allclose(found[:, :2], exact[:, :2], atol=1e-5)
    assert torch.equal(found[:, 2:], own[:, 2:])
    assert reads.keys[0].tolist() == [420, int(theirs.keys[0, 1])]
    assert reads.values[0, 0] == 420 and theirs.values[0, 1] == reads.values[0, 1] < 420
