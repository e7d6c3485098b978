"""An audit says how far a technique is from exact attention, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from caches import cache_of, held, held_planes, rotated
from commands import Cli
from suffice import LLM, SamplingParams
from suffice.attention import ATTENTIONS
from suffice.attention.exaq import EXAQ
from suffice.attention.rule import coded_rule
from suffice.backends.cpu.attention import attend
from suffice.cache.kv import KVCache
from suffice.decoder.step_rows import StepRows, note_audits
from suffice.errors import InputError
from suffice.trace import Audit, Reads, Trace

SCALE = 0.3
GROUPS, REP, SIZE, ROWS, TOKENS = 2, 3, 64, 700, 3
LOSSY = (
    "aet:keys=0.7,values=0.02",
    "art:change=0.5,angle=1,patience=2",
    "certified:eps=0.3",
    "certified:eps=0.3,values=0.01",
    "skip_softmax:factor=400,block=16",
)


TIERS = (
    "tiers:eps=0.5,skip=0.002",
    "tiers:eps=0.2,skip=0,bounded=true",
    "tiers:eps=0.5,skip=0.002,bounded=true",
    "tiers:eps=0.5,skip=0.002,sample=64",  # more than there are blocks: it is certain
)


def filled(dtype: str = "float32") -> tuple[KVCache, np.ndarray]:
    generator = torch.Generator().manual_seed(1)
    keys, values = torch.randn(2, GROUPS, ROWS, SIZE, generator=generator).numpy()
    q = torch.randn(GROUPS * REP, TOKENS, SIZE, generator=generator)
    options: dict[str, Any] = {"rounding": None} if dtype == "planes" else {"sketch": True}
    return cache_of(keys, values, dtype, **options), q.numpy()


def audited(rule: Any, q: np.ndarray, cache: KVCache) -> tuple[np.ndarray, np.ndarray]:
    found = np.full((5, TOKENS, GROUPS * REP), np.nan, np.float32)
    plain = attend(rule, q, cache, 0, scale=SCALE)[0]
    cache.native.settle(0)
    out = attend(rule, q, cache, 0, scale=SCALE, audit=found)[0]
    assert np.array_equal(out, plain)
    return out, found[:3]


def visible() -> np.ndarray:
    return np.tri(TOKENS, ROWS, ROWS - TOKENS, bool)


def exact_weights(q: np.ndarray, cache: KVCache) -> np.ndarray:
    """Weights [H, T, S] of the softmax, by PyTorch."""
    keys = torch.from_numpy(held(cache)[0]).double().repeat_interleave(REP, 0)
    scores = SCALE * torch.from_numpy(q).double() @ keys.transpose(1, 2)
    hidden = torch.from_numpy(~visible())
    return scores.masked_fill(hidden, float("-inf")).softmax(-1).numpy()


def relative_error(out: np.ndarray, weights: np.ndarray, cache: KVCache) -> np.ndarray:
    exact = weights @ np.repeat(held(cache)[1].astype(np.float64), REP, 0)
    return (np.linalg.norm(out - exact, axis=-1) / np.linalg.norm(exact, axis=-1)).T


@pytest.mark.parametrize("name", LOSSY)
def test_it_finds_what_a_technique_leaves_out(name: str) -> None:
    cache, q = filled()
    technique = ATTENTIONS.build(name)
    out, (missing, error, bound) = audited(technique.rule(), q, cache)
    weights = exact_weights(q, cache)
    read = technique.reference(q, *held(cache), scale=SCALE, visible=visible()).values
    lost = (weights * ~np.repeat(read, REP, 1).swapaxes(0, 1)).sum(-1).T
    assert lost.max() > 0.01
    np.testing.assert_allclose(missing, lost, atol=2e-5)
    np.testing.assert_allclose(error, relative_error(out, weights, cache), rtol=1e-3, atol=1e-5)
    if name.startswith("certified"):
        assert (missing <= bound + 1e-5).all() and (bound <= technique.eps).all()
    else:
        assert np.isnan(bound).all()


def estimated_scores(q: np.ndarray, cache: KVCache) -> np.ndarray:
    """Scores [H, T, S] by base planes, for queries rounded to int8."""
    turned = rotated(q.astype(np.float64))
    unit = np.abs(turned).max(-1, keepdims=True) / 127
    base = np.repeat(held_planes(cache)[0].base, REP, 0)
    return SCALE * (np.rint(turned / unit) * unit) @ base.swapaxes(1, 2)


@pytest.mark.parametrize("name", TIERS)
def test_it_finds_how_far_a_softmax_by_tiers_is_away(name: str) -> None:
    cache, q = filled("planes")
    technique = ATTENTIONS.build(name)
    out, (missing, error, bound) = audited(technique.rule(), q, cache)
    weights, stored = exact_weights(q, cache), held_planes(cache)
    found = technique.reference(q, *held(cache), scale=SCALE, visible=visible(), stored=stored)
    exact, light = (np.repeat(rows, REP, 1).swapaxes(0, 1) for rows in (found.values, found.light))
    scores = np.where(exact, np.log(np.maximum(weights, 1e-300)), -np.inf)
    sums = np.exp(SCALE * q.astype(np.float64) @ np.repeat(held(cache)[0], REP, 0).swapaxes(1, 2))
    total = np.log((sums * visible()).sum(-1, keepdims=True))
    used = np.exp(np.where(light, estimated_scores(q, cache) - total, scores))
    used /= used.sum(-1, keepdims=True)
    away = np.abs(used - weights).sum(-1).T / 2
    assert away.max() > 1e-3
    np.testing.assert_allclose(missing, away, atol=2e-4)
    plain = attend(None, q, cache, 0, scale=SCALE)[0]  # whose weights of values have 8 bits
    assert relative_error(plain, weights, cache).max() < 2e-2
    away = np.linalg.norm(out - plain, axis=-1) / np.linalg.norm(plain, axis=-1)
    np.testing.assert_allclose(error, away.T, rtol=1e-3, atol=1e-5)
    if technique.bounded or technique.sample:
        assert (missing <= bound).all()
        assert technique.sample or (bound <= technique.eps).all()
    else:
        assert np.isnan(bound).all()


def test_codes_have_an_error_and_no_missing_share() -> None:
    cache, q = filled()
    levels = [EXAQ(2).layer_levels(2.0, -30.0)] * REP
    out, (missing, error, _) = audited(coded_rule(None, levels), q, cache)
    wanted = relative_error(out, exact_weights(q, cache), cache)
    assert wanted.min() > 0.01
    np.testing.assert_allclose(error, wanted, rtol=1e-3)
    assert np.isnan(missing).all()


def test_figures_over_steps() -> None:
    audit = Audit(1, 2)
    step = np.zeros((5, 1, 500, 2), np.float32)
    step[3:] = np.nan
    step[0, 0, :, 1], step[1] = 0.25, 0.5  # where nothing is missing, no bound is loose
    step[0, 0, 7, 0], step[2] = 0.75, 0.3
    audit.add(step)
    before = audit.copy()
    audit.add(step)
    for each, tokens in ((audit, 1000), (audit.since(before), 500), (before, 500)):
        found = each.plain()
        assert (found["tokens"], found["beyond_bound"]) == (tokens, tokens // 500)
        missing: Any = found["missing"]
        assert missing["mean"] == pytest.approx((0.25 * 500 + 0.75) / 1000)
        assert (missing["most"], missing["above_half"]) == (0.75, 0.001)
        assert missing["p99.9"] == pytest.approx(0.25, rel=0.1)
        assert found["error"] == {"mean": 0.5, "p99.9": 0.5, "most": 0.5}
        loose: Any = found["bound_over_missing"]
        assert loose["mean"] == pytest.approx((1.2 * 500 + 0.4) / 501)
        assert loose["median"] == pytest.approx(1.2, rel=0.1)
        assert loose["most"] == pytest.approx(1.2)
        assert "shift" not in found and "bound_over_shift" not in found


def test_each_request_has_its_own_figures() -> None:
    """Two rows of a request, three that do not count, and one of another request."""
    cache: Any = None  # which is not looked at
    batch = [
        StepRows(cache, [1] * rows, counted=counted)
        for rows, counted in ((2, True), (3, False), (1, True))
    ]
    found = np.broadcast_to(np.arange(6, dtype=np.float32)[:, None], (5, 1, 6, 2))
    reads = [Reads() for _ in batch]
    note_audits(batch, reads, found)
    figures = [(each.audited, each.audited_missing) for each in reads]
    assert figures == [(2, 1.0), (0, 0.0), (1, 5.0)]


def test_figures_of_shifts() -> None:
    audit = Audit(1, 2)
    step = np.full((5, 1, 4, 2), np.nan, np.float32)
    step[:3] = 0.25
    step[3, 0, :, 0], step[4, 0, :, 0] = (0.1, 0.2, 0.0, 0.3), (0.4, 0.4, 0.1, 0.2)
    audit.add(step)
    found = audit.plain()
    assert found["beyond_bound"] == 1  # the last
    shift: Any = found["shift"]
    assert (shift["mean"], shift["most"]) == (pytest.approx(0.15), pytest.approx(0.3))
    loose: Any = found["bound_over_shift"]  # where nothing is moved, no bound is loose
    assert loose["mean"] == pytest.approx((4 + 2 + 2 / 3) / 3)
    assert loose["most"] == pytest.approx(4)


def test_a_trace_of_no_audit_has_none() -> None:
    trace = Trace(1, 1)
    assert trace.audit is None and "audit" not in trace.plain()
    assert trace.copy().audit is None and trace.since(trace.copy()).audit is None


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "aet:keys=0.6,values=0.1"},
        {"attention": "certified:eps=0.4"},
        {"policy": "quest:budget=48,dense_layers=0"},
    ],
    ids=str,
)
def test_every_so_many_steps_and_the_same_tokens(options: dict[str, str], checkpoint: Path) -> None:
    prompt = {"prompt_token_ids": list(range(3, 103))}
    sampling = SamplingParams(temperature=0, max_tokens=22, ignore_eos=True)
    found = {}
    for audit in (None, 5, 1):
        llm = LLM(checkpoint, dtype="float32", max_model_len=512, audit=audit, **options)
        found[audit] = llm.generate([prompt], sampling)[0].outputs[0].token_ids
        trace = llm.runner.trace
        assert trace.steps == 21
        assert (trace.audit.tokens if trace.audit else 0) == {None: 0, 5: 5, 1: 21}[audit]
    assert found[None] == found[5] == found[1]
    assert trace.audit is not None and trace.audit.beyond == 0
    assert trace.audit.plain()["error"]["most"] > 0  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"audit": 0, "attention": "aet"},
            "audit=0: must be a whole number of at least 1, or None",
        ),
        (
            {"audit": 2},
            "audit=2: attention=exact with softmax=exact leaves nothing out of decode steps: "
            "choose a technique that does",
        ),
        (
            {"audit": 2, "policy": "snapkv:0.5"},
            "audit=2: attention=exact with softmax=exact leaves nothing out of decode steps: "
            "choose a technique that does",
        ),
    ],
)
def test_what_cannot_be_audited(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        LLM("no-model", **options)
    assert str(error.value) == message


def test_perplexity_says_what_an_audit_found(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven eight nine ten " * 40)
    found = cli(
        *("eval", "perplexity", "-m", str(checkpoint), "--text", str(text)),
        *(
            "--window",
            "100",
            "--limit",
            "1",
            "--attention",
            "aet:keys=0.5,globals=0",
            "--audit",
            "1",
        ),
    )
    assert found.code == 0, found.err
    assert "| audited tokens " in found.out and "| missing share, p99.9 " in found.out
    assert "| queries beyond their bound " in found.out
