"""SpAtten's cascade and Token-Picker do what their papers say, on random rows and a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny
from benchmarks.attention import rivals
from benchmarks.attention.pruning import Cascade, TokenPicker, bounds, softmax

HEADS, GROUPS, SIZE, LAYERS = 4, 2, 16, 6


def tokens(count: int, length: int, seed: int = 0) -> list[list[rivals.Layer]]:
    """Return the layers of `count` tokens; the last token sees `length` keys."""
    random = np.random.default_rng(seed)
    k, v = random.standard_normal((2, LAYERS, GROUPS, length, SIZE))
    q = random.standard_normal((count, LAYERS, HEADS, SIZE))
    ends = range(length - count + 1, length + 1)
    return [
        [(q[t, n], k[n, :, :end], v[n, :, :end]) for n in range(LAYERS)]
        for t, end in enumerate(ends)
    ]


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs [H, D] and weights [H, S]."""
    weights = softmax(np.einsum("grd,gsd->grs", q.reshape(GROUPS, -1, SIZE), k))
    output = np.einsum("grs,gsd->grd", weights, v)
    return output.reshape(q.shape), weights.reshape(HEADS, -1)


def test_the_cascade_keeps_what_had_most_weight_so_far() -> None:
    """A plain second computation: sets of tokens, one importance for all layers and tokens."""
    technique, given = Cascade(last=0.4), tokens(5, 40)
    state = technique.begin()
    importance, gone = np.zeros(40), [set[int]() for _ in range(LAYERS)]
    for layers in given:
        length = layers[0][1].shape[1]
        alive = set(range(length))
        for layer, read in enumerate(state.step(layers)):
            share = technique.share(layer, LAYERS)
            newest = length - 1
            order = sorted(alive - {newest}, key=lambda s: (-importance[s], s))
            best = {newest, *order[: int(np.ceil(share * length)) - 1]}
            gone[layer] |= set(range(length)) - best
            alive = set(range(length)) - gone[layer]
            q, k, v = layers[layer]
            left = sorted(alive)
            output, weights = exact(q, k[:, left], v[:, left])
            np.testing.assert_allclose(read.output, output, atol=1e-12)
            assert np.flatnonzero(read.keys[0]).tolist() == left
            importance[left] += weights.sum(0)
    assert len(gone[-1]) >= 0.5 * 40 and not gone[0]
    shares = [technique.share(layer, LAYERS) for layer in range(LAYERS)]
    assert shares[0] == 1 and shares[-1] == pytest.approx(0.4)
    assert shares == sorted(shares, reverse=True)


def test_the_cascade_with_all_of_everything_is_exact() -> None:
    given = tokens(3, 30)
    state = Cascade(last=1.0).begin()
    for layers in given:
        for read, layer in zip(state.step(layers), layers, strict=True):
            np.testing.assert_allclose(read.output, exact(*layer)[0], atol=1e-12)
            assert read.keys.all() and read.values.all() and read.seen.all()


def test_values_of_light_keys_are_left_out() -> None:
    (layers,) = tokens(1, 40)
    reads = Cascade(last=1.0, values=0.25).begin().step(layers)
    for read, (q, k, v) in zip(reads, layers, strict=True):
        _, weights = exact(q, k, v)
        light = np.argsort(-weights, -1, kind="stable")[:, 10:]
        np.put_along_axis(weights, light, 0.0, -1)
        expected = np.einsum("grs,gsd->grd", weights.reshape(GROUPS, -1, 40), v)
        np.testing.assert_allclose(read.output, expected.reshape(q.shape), atol=1e-12)
        assert read.keys.all() and 10 <= read.values.sum(-1).min() <= 20


def test_bounds_hold_and_close() -> None:
    ((q, k, _), *_) = tokens(1, 50)[0]
    lows, highs = bounds(q[0], k[0])
    assert lows.shape == highs.shape == (3, 50)
    assert (np.diff(lows, axis=0) >= -1e-12).all() and (np.diff(highs, axis=0) <= 1e-12).all()
    np.testing.assert_allclose(lows[-1], highs[-1], atol=1e-12)
    np.testing.assert_allclose(lows[-1], k[0] @ q[0], atol=0.02)
    assert (highs[0] - lows[0] > 0.5).all(), "four bits say little"


@pytest.mark.parametrize("threshold", [1e-4, 1e-2, 0.1])
def test_token_picker_drops_only_what_weighs_at_most_the_threshold(threshold: float) -> None:
    dropped = early = 0
    for layer in tokens(1, 200, seed=2)[0]:
        q, k, v = 3 * layer[0], layer[1], layer[2]
        read = TokenPicker(threshold).attend(q, k, v)
        for head in range(HEADS):
            group = head * GROUPS // HEADS
            weights = softmax(bounds(q[head], k[group])[0][-1])
            assert (weights[~read.seen[head]] <= threshold).all()
            kept = softmax(np.where(read.seen[head], k[group] @ q[head], -np.inf))
            np.testing.assert_allclose(read.output[head], kept @ v[group], atol=0.05)
        dropped += int((~read.seen).sum())
        early += int((read.keys < 1).sum())
        assert set(np.unique(read.keys)) <= {1 / 3, 2 / 3, 1}
        wanted = read.seen.reshape(GROUPS, -1, 200).any(1)
        assert np.array_equal(read.values.astype(bool), wanted)
    assert dropped > 100 and early > 20


def test_token_picker_reads_on_while_a_key_may_matter() -> None:
    lows = np.log(np.array([[1.0, 0.01, 0.2], [1.0, 0.02, 0.3], [1.0, 0.05, 0.5]]))
    highs = np.log(np.array([[9.0, 0.04, 3.0], [4.0, 0.08, 0.9], [1.0, 0.05, 0.5]]))
    # Key 0 first, as nothing is known of others. Then key 2, of 0.5 / 1.5. Then key 1, of 3 %.
    assert TokenPicker(0.05).chunks(lows, highs).tolist() == [4, 1, 4]
    assert TokenPicker(0.4).chunks(lows, highs).tolist() == [4, 1, 3]


def test_the_table_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make(tmp_path / "model", "llama", tokenizer=True, head_dim=32)
    text = tmp_path / "text.txt"
    text.write_text("The owls look on; 0123456789 again. " * 30)
    asked = ["--quick", "--model", str(model), "--text", str(text), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["rivals", *asked])
    assert rivals.main() == 0
    found = json.loads((tmp_path / "rivals.json").read_text())
    assert found["tokens"] == 2 and found["line_ends"] == "none"
    assert found["settings"].keys() == rivals.settings(16).keys()
    for figures in found["settings"].values():
        assert 0 < figures["K"] <= 1 and 0 < figures["V"] <= 1
        assert -1e-6 < figures["missing mean"] < 1
    cascade = [found["settings"][name] for name in found["settings"] if "values 1.0" in name]
    assert [each["K"] for each in cascade] == sorted((e["K"] for e in cascade), reverse=True)
    monkeypatch.setattr(sys, "argv", ["rivals", "--model", str(model), "--text", "nothing.txt"])
    assert rivals.main() == 2
