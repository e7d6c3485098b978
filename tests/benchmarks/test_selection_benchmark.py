"""The ways to select rows that `tiers` is compared with."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from benchmarks.attention import selecting, selection, selection_table
from benchmarks.attention.selectors import SELECTORS, Head, in_four_bits, largest
from sample_text import OWLS
from suffice.quantize.torch_decoder import TorchDecoder

ROWS, TOKENS, SIZE = 160, 40, 16
TEXT = OWLS * 60


def head(seed: int = 0, heat: float = 3.0) -> Head:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(shape, generator=generator)
        for shape in ((3, TOKENS, SIZE), (ROWS, SIZE), (ROWS, SIZE))
    )
    sees = torch.ones(TOKENS, ROWS, dtype=torch.bool).tril(ROWS - TOKENS)
    return Head(heat * q / SIZE**0.5, k, v, sees, torch.arange(SIZE), seed)


def exact(given: Head) -> torch.Tensor:
    return given.scores().double().softmax(-1) @ given.v.double()


def attended(setting: str, given: Head) -> Any:
    return SELECTORS.build(setting).attend(given)


@pytest.mark.parametrize(
    "setting",
    [
        "exact",
        "oracle:mass=1",
        "twilight:mass=1",
        "double_sparsity:rows=1",
        "sparq:rows=1",
        "magicpig:newest=160",
        "vattention:heavy=1",
        "vattention:eps=0.0001,base=0.3",
        "looks:eps=0,skip=0",
        "looks:eps=0,skip=0,look=nested",
        "looks:eps=0,skip=0,look=boxes",
    ],
)
def test_the_limit_is_exact_attention(setting: str) -> None:
    given = head()
    found = attended(setting, given)
    torch.testing.assert_close(found.output.double(), exact(given), rtol=1e-3, atol=1e-4)
    of_element = 1 if setting.startswith("looks") else 2  # bytes: of planes, of bfloat16
    assert (found.bytes >= 2 * of_element * SIZE * given.seen).all()


@pytest.mark.parametrize("setting", [each for each in SELECTORS.names() if each != "exact"])
def test_no_token_looks_ahead(setting: str) -> None:
    given = head()
    later = dataclasses.replace(given, k=given.k.clone(), v=given.v.clone())
    later.k[-10:] *= -2
    later.v[-10:] += 5
    before = slice(0, TOKENS - 10)
    first, second = (attended(setting, each) for each in (given, later))
    assert torch.equal(first.output[:, before], second.output[:, before])
    assert torch.equal(first.bytes[before], second.bytes[before])
    assert not torch.equal(first.output, second.output)


@pytest.mark.parametrize("look", ["nested,sigmas=50", "boxes"])
def test_a_look_that_misses_nothing_changes_no_output(look: str) -> None:
    given = head(heat=6.0)
    base, looked = (attended(f"looks:skip=0.01{rest}", given) for rest in ("", f",look={look}"))
    torch.testing.assert_close(looked.output, base.output)
    hasty = attended("looks:skip=0.01,look=nested,sigmas=-5", given)
    assert not torch.allclose(hasty.output, base.output)
    assert (hasty.bytes <= attended("looks:skip=0.01,look=nested,sigmas=50", given).bytes).all()


@pytest.mark.parametrize("setting", ["oracle", "twilight", "double_sparsity", "sparq"])
def test_more_rows_are_nearer(setting: str) -> None:
    field = "mass" if setting in ("oracle", "twilight") else "rows"
    errors, shares = [], []
    for share in (0.2, 0.5, 0.9):
        found = attended(f"{setting}:{field}={share}", head())
        errors.append(float((found.output - exact(head())).square().mean()))
        shares.append(float(found.bytes.sum()))
    assert errors[0] > errors[1] > errors[2] and shares[0] < shares[1] < shares[2]


def test_the_fewest_largest_are_chosen() -> None:
    generator = torch.Generator().manual_seed(1)
    values, weights = torch.rand(2, 5, 50, generator=generator)
    wanted = 0.4 * weights.sum(-1, keepdim=True)
    found = largest(values, wanted, weights)
    for row in range(5):
        order = values[row].argsort(descending=True)
        count = int((weights[row][order].cumsum(0) < wanted[row]).sum()) + 1
        assert sorted(found[row].nonzero()[:, 0].tolist()) == sorted(order[:count].tolist())


def test_rows_in_four_bits_have_sixteen_steps() -> None:
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    coded = in_four_bits(rows)
    step = (rows.amax(-1) - rows.amin(-1)) / 15
    assert ((coded - rows).abs() <= 0.5001 * step[:, None]).all()
    assert all(len(row.unique()) <= 16 for row in coded)
    assert torch.equal(in_four_bits(torch.ones(2, 4)), torch.ones(2, 4))


def test_bytes_are_those_of_what_is_read() -> None:
    given = head()
    all_rows = 4 * SIZE * given.seen
    assert torch.equal(attended("exact", given).bytes, all_rows)
    assert torch.equal(attended("twilight:mass=1", given).bytes, all_rows + given.seen * 12)
    labels = attended("double_sparsity:rows=1,channels=0.25", given).bytes
    assert torch.equal(labels, all_rows + given.seen * 6)
    found = attended("sparq:rows=1,channels=0.25", given).bytes
    assert torch.equal(found, all_rows + given.seen * 8 + 2 * SIZE)
    few = attended("oracle:mass=0.3", given).bytes
    weights = given.scores().softmax(-1)
    order = weights.argsort(-1, descending=True)
    ordered = weights.gather(-1, order).cumsum(-1)
    kept = torch.zeros_like(weights, dtype=torch.bool)
    kept.scatter_(-1, order, torch.roll(ordered, 1, -1).index_fill(-1, torch.tensor(0), 0) < 0.3)
    assert torch.equal(few, 4 * SIZE * kept.any(0).sum(-1))


@pytest.mark.parametrize(
    ("setting", "bound"),
    [
        ("magicpig:bits=4,tables=20,newest=1,oldest=1", 0.08),
        ("vattention:heavy=0.01,newest=1,oldest=1,base=0.3,eps=1", 0.08),
    ],
)
def test_samples_are_weighed_by_their_chance(setting: str, bound: float) -> None:
    """The mean over many draws is near exact attention, as it is not without the chances."""
    given = head(heat=1.0)
    draws = [attended(setting, dataclasses.replace(given, seed=seed)).output for seed in range(60)]
    error = (torch.stack(draws).mean(0) - exact(given)).square().mean().sqrt()
    assert error < bound
    one = (draws[0] - exact(given)).square().mean().sqrt()
    assert error < 0.5 * one


def test_a_smaller_error_asks_for_a_larger_sample() -> None:
    setting = "vattention:heavy=0.01,newest=1,oldest=1,base=0.1"
    few, more, most = (
        float(attended(f"{setting},{given}", head(heat=1.0)).bytes.sum())
        for given in ("eps=0.5,delta=0.1", "eps=0.2,delta=0.1", "eps=0.2,delta=0.01")
    )
    assert few < more < most


def opened(folder: Path, family: str) -> selecting.SelectingDecoder:
    model = tiny.make(folder / "model", family, tokenizer=True)
    return selecting.opened(str(model), torch.device("cpu")).decoder


def test_channels_are_those_with_the_largest_products(tmp_path: Path) -> None:
    decoder = opened(tmp_path, "llama")
    queries: dict[int, torch.Tensor] = {}
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    decoder.choose_channels(tokens)
    cache = decoder.cache(len(tokens))
    watch = lambda index, q: queries.__setitem__(index, torch.from_numpy(q.copy()))  # noqa: E731
    decoder.forward(torch.tensor(tokens), cache, logits="none", watch=watch)
    keys = torch.from_numpy(cache.keys(0))
    sizes = queries[0].abs().sum(1).view(len(keys), -1, keys.shape[-1]).sum(1) * keys.abs().mean(1)
    assert decoder.channels is not None
    assert torch.equal(decoder.channels[0, 0], sizes[0].argsort(descending=True))


def test_a_run_stores_each_setting_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny.make(tmp_path / "model", "llama", tokenizer=True)
    (tmp_path / "wikitext2-test-raw.txt").write_text(TEXT)
    (tmp_path / "other.txt").write_text(TEXT[::-1])

    def run(*settings: str) -> int:
        given = ["--model", str(folder), "--data-dir", str(tmp_path), "--out", str(tmp_path)]
        given += ["--calibrate", str(tmp_path / "other.txt"), "--window", "48", "--prompt", "30"]
        argv = ["selection", *given, "--limit", "2", "--threads", "1", "--settings", *settings]
        monkeypatch.setattr(sys, "argv", argv)
        return selection.main()

    assert run("exact", "twilight:mass=0.5") == 0
    cells = json.loads((tmp_path / "selection_model_48.json").read_text())["cells"]
    whole, part = cells["exact"]["decode"], cells["twilight:mass=0.5"]["decode"]
    assert whole["bytes"] == 1 and abs(whole["ratio"] - 1) < 1e-4 and whole["agreement"] == 1
    assert part["bytes"] < 1 and part["divergence"] > 10 * whole["divergence"]
    monkeypatch.setattr(selection.Bench, "_cell", lambda *_: {})
    assert run("twilight:mass=0.5") == 0  # it is not measured again
    assert json.loads((tmp_path / "selection_model_48.json").read_text())["cells"] == cells
    capsys.readouterr()
    assert run("twilight:mas=0.5") == 2
    error = capsys.readouterr().err
    assert "has no option 'mas'" in error and error.count("\n") == 1


def test_layers_with_a_window_stay_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = opened(tmp_path, "gemma3")
    config, tokens = decoder.config, list(range(3, 23))
    windowed = [bool(layer.window) for layer in config.layers]
    attended: dict[int, torch.Tensor] = {}
    mixed = decoder._mixed

    def watched(index: int, *parts: torch.Tensor) -> torch.Tensor:
        attended[index] = mixed(index, *parts)
        exact = TorchDecoder._mixed(decoder, index, *parts)
        assert torch.equal(attended[index], exact) == windowed[index]
        return attended[index]

    decoder.choose_channels(tokens)
    monkeypatch.setattr(decoder, "_mixed", watched)
    found = decoder.select(tokens, decoder.cache(len(tokens)), SELECTORS.build("oracle:mass=0.2"))
    assert set(attended) == set(range(len(windowed))) and 0 < sum(windowed) < len(windowed)
    free = (len(windowed) - sum(windowed)) * config.kv_heads
    seen = torch.arange(1, len(tokens) + 1)
    assert torch.equal(found.held, 4.0 * config.head_size * free * seen)
    assert 0 < found.read.sum() < found.held.sum()


def test_the_engine_s_rows_are_those_of_the_same_windows() -> None:
    folder = Path(selection.__file__).parent / "results"
    stored = json.loads((folder / selection_table.ENGINES).read_text())
    digest = stored["records"]["exact"]["asked"]["text_sha256"]
    common = {name: stored["common"][name] for name in ("window", "prompt")}
    evaluated = common | {"windows": stored["common"]["limit"], "sha256": digest}
    rows = selection_table.of_engine(folder, evaluated, {"aet:keys=0.9": "7.0 ± 1.0"})
    assert len(rows) == len(stored["records"])
    assert next(row for row in rows if row[0] == "`exact` (engine)")[1] == 1
    assert all(0 < row[1] < 1.2 for row in rows)
    assert [row[0] for row in rows if row[-1] == "7.0 ± 1.0"] == ["`aet:keys=0.9` (engine)"]
    for other in ({"windows": 1}, {"prompt": 1}, {"sha256": ""}):
        assert not selection_table.of_engine(folder, evaluated | other, {})


def test_needles_are_means_over_the_tasks_that_count(tmp_path: Path) -> None:
    def cell(score: float, samples: int = 50) -> dict[str, Any]:
        return {"score": score, "error": 3.0, "samples": samples}

    one = {"exact": cell(100), "aet:keys=0.9": cell(10), "sparq": cell(50), "h2o": cell(9, 20)}
    two = {"exact": cell(90), "aet:keys=0.9": cell(30), "h2o": cell(9)}
    cells = {"a at 64": one, "b at 64": two, "c at 64": {"exact": cell(79)}, "a at 128": one}
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"engine": {"model": "owl"}, "cells": cells}))
    scores = {"exact": "95.0 ± 2.1", "aet:keys=0.9": "20.0 ± 2.1"}
    assert selection_table.needles(path, "owl", 64) == scores
    assert selection_table.needles(path, "owl", 128)["sparq"] == "50.0 ± 3.0"
    assert not selection_table.needles(path, "cat", 64)
    assert not selection_table.needles(tmp_path / "other.json", "owl", 64)
