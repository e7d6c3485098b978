"""Tests of slices.py: matrices that are stored as one, or transposed, and how maps name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gguf_files
import tiny
from array_source import ArraySource
from stored_blocks import blocks
from suffice.checkpoints.formats.gguf_file import GGUF
from suffice.checkpoints.formats.gguf_types import CODES
from suffice.checkpoints.open import open_checkpoint
from suffice.checkpoints.slices import View, slice_source
from suffice.checkpoints.source import UnreadCodes
from suffice.errors import InputError
from suffice.quant.code_layout import CodeLayout
from suffice.quant.packed_float8 import StoredFloat8


class Plain(ArraySource):
    """A source of arrays, all in codes if there are any."""

    def __init__(self, *, codes: Any = None, **weights: np.ndarray) -> None:
        super().__init__(weights)
        self.unread = codes

    def load(self, name: str) -> np.ndarray:
        self.read += len(self.weights[name])
        return self.weights[name]

    def in_codes(self, name: str) -> bool:
        return self.unread is not None

    def codes(self, name: str) -> Any:
        return self.unread


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def view(rows: int, first: int, run: int, step: int, *, transposed: bool = False) -> View:
    return View("whole", (rows, 5), first, run, step, transposed)


def ordered(*order: int) -> View:
    return View("whole", (len(order), 5), 0, 64, 64, transposed=False, order=order)


VIEWS = {
    "together": (view(32, 16, 32, 64), slice(16, 48)),
    "by head": (
        view(32, 8, 8, 16),
        [*range(8, 16), *range(24, 32), *range(40, 48), *range(56, 64)],
    ),
    "transposed": (view(32, 16, 32, 64, transposed=True), slice(16, 48)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_rows_of_a_view(name: str) -> None:
    cut, rows = VIEWS[name]
    whole = numbers(64, 5)
    stored = np.ascontiguousarray(whole.T) if cut.transposed else whole
    plain = Plain(whole=stored)
    source = slice_source(plain, {"own": cut})
    expected = whole[rows]
    assert source.shapes() == {"whole": stored.shape, "own": (32, 5)}
    assert source.stored("own") == ("float32", 32 * 5 * 4)
    assert np.array_equal(source.load("own"), expected)
    plain.read = 0
    for size in (1, 7, 16, 32):
        out = np.empty((32, 5), np.float32)
        for first in range(0, 32, size):
            source.load_rows("own", first, out[first : first + size])
        assert np.array_equal(out, expected)
    # only its own rows; of a transposed matrix all, once
    assert plain.read == (5 if cut.transposed else 4 * 32)


def test_rows_of_a_view_whose_matrices_are_turned() -> None:
    """Of two heads, each with 3 rows of another matrix after 16 that are turned."""
    whole = numbers(2 * 19, 32)
    turned = View("whole", (64, 16), 0, 16, 19, transposed=False, turned=True)
    expected = np.concatenate([whole[:16].T, whole[19:35].T])
    source = slice_source(Plain(whole=whole), {"own": turned})
    assert np.array_equal(source.load("own"), expected)
    for size in (1, 7, 32, 50, 64):
        out = np.empty((64, 16), np.float32)
        for first in range(0, 64, size):
            source.load_rows("own", first, out[first : first + size])
        assert np.array_equal(out, expected)
    coded = slice_source(Plain(codes=object(), whole=whole), {"own": turned})
    assert not coded.in_codes("own")


def test_a_view_of_a_bias() -> None:
    bias = numbers(64)
    for cut, rows in VIEWS.values():
        own = View("whole", (32,), cut.first, cut.run, cut.step, cut.transposed)
        found = slice_source(Plain(whole=bias), {"own": own}).load("own")
        assert np.array_equal(found, bias[rows])


def test_a_source_without_views_is_itself() -> None:
    plain = Plain(whole=numbers(4, 4))
    assert slice_source(plain, {}) is plain


def test_codes_of_a_view_are_whole_panels() -> None:
    panels = np.arange(4 * 24, dtype=np.uint8).reshape(4, 24)

    def fill(out: np.ndarray) -> None:
        out[...] = panels

    unread = UnreadCodes(CodeLayout(4, 32), np.arange(16, dtype=np.uint8), fill)
    cuts = {
        "whole panels": view(32, 16, 32, 64),
        "the last": view(16, 48, 16, 64),
        "part of a panel": view(24, 8, 24, 64),
        "by head": VIEWS["by head"][0],
        "transposed": VIEWS["transposed"][0],
        "by heads of whole panels": view(32, 16, 16, 32),
        "from within a panel": view(32, 8, 16, 32),
        "to within a panel": view(24, 16, 24, 64),
        "panels in another order": ordered(*range(16, 32), *range(16), *range(32, 64)),
        "rows in another order": ordered(*range(1, 17), *range(17, 33)),
    }
    source = slice_source(Plain(codes=unread, whole=numbers(64, 5)), cuts)
    kept = {"whole panels": [1, 2], "the last": [3], "by heads of whole panels": [1, 3]}
    kept["panels in another order"] = [1, 0, 2, 3]
    assert {name for name in cuts if source.in_codes(name)} == set(kept)
    for name, own in kept.items():
        found = source.codes(name)
        assert isinstance(found, UnreadCodes)
        out = np.empty((len(own), 24), np.uint8)
        found.fill(out)
        assert np.array_equal(out, panels[own]), name
    floats = StoredFloat8(panels.repeat(2, axis=0).reshape(-1, 3), numbers(64, 1))
    cuts = {"together": view(16, 16, 16, 32), "by head": view(32, 16, 16, 32)}
    source = slice_source(Plain(codes=floats, whole=numbers(64, 3)), cuts)
    own = range(16, 32)
    for name, rows in (("together", [*own]), ("by head", [*own, *range(48, 64)])):
        assert source.in_codes(name)
        part = source.codes(name)
        assert isinstance(part, StoredFloat8)
        assert np.array_equal(part.data, floats.data[rows])
        assert np.array_equal(part.scales, floats.scales[rows])


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "IQ4_XS"])
def test_heads_of_whole_panels_have_the_codes_of_their_own_rows(kind: str, tmp_path: Path) -> None:
    stored = blocks(kind, 96, 512)
    own = stored.reshape(3, 2, 16, -1)[:, 1].reshape(48, -1)
    path = gguf_files.write(tmp_path / "x.gguf", {}, {"whole": (stored, kind), "own": (own, kind)})
    file, codes = GGUF.open(path), CODES[kind]

    def fill(out: np.ndarray) -> None:
        assert file.read_panels("whole", out)

    plain = Plain(codes=UnreadCodes(codes.layout, codes.levels, fill), whole=numbers(96, 512))
    found = slice_source(plain, {"own": View("whole", (48, 512), 16, 16, 32, False)}).codes("own")
    assert isinstance(found, UnreadCodes)
    panels, expected = (np.empty((3, codes.layout.panel_bytes(512)), np.uint8) for _ in range(2))
    found.fill(panels)
    assert file.read_panels("own", expected)
    assert np.array_equal(panels, expected)


def test_what_is_stored_as_one_is_read_as_several(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "phi3", "phi3")
    stored = load_file(folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    found = dict(checkpoint.tensors())
    whole = stored["model.layers.1.self_attn.qkv_proj.weight"]
    assert np.array_equal(np.concatenate([found[f"layers.1.{name}"] for name in "qkv"]), whole)
    whole = stored["model.layers.1.mlp.gate_up_proj.weight"]
    parts = [found[f"layers.1.{name}"] for name in ("gate", "up")]
    assert np.array_equal(np.concatenate(parts), whole)
    assert sum(matrix.bytes for matrix in checkpoint.matrices) == sum(
        each.nbytes for each in stored.values() if each.ndim == 2
    )


@pytest.mark.parametrize(
    ("variant", "name", "shape", "needed"),
    [
        ("phi3", "model.layers.0.self_attn.qkv_proj.weight", (129, 64), [128, 64]),
        ("neox", "gpt_neox.layers.2.attention.query_key_value.bias", (64,), [192]),
        ("gpt2", "transformer.h.1.attn.c_attn.weight", (192, 64), [64, 192]),
    ],
)
def test_another_shape_is_refused(
    variant: str, name: str, shape: tuple[int, ...], needed: list[int], tmp_path: Path
) -> None:
    folder = tiny.make(tmp_path / "tiny", variant)
    weights = load_file(folder / "model.safetensors")
    assert name in weights
    weights[name] = np.zeros(shape, np.float32)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(InputError) as caught:
        open_checkpoint(folder)
    assert str(caught.value) == (
        f"{folder}: weight '{name}' has shape {list(shape)}, but the configuration says {needed}"
    )


def test_a_missing_one_is_named_once(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny", "phi3")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.self_attn.qkv_proj.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(InputError) as caught:
        open_checkpoint(folder)
    assert str(caught.value).endswith("missing: model.layers.0.self_attn.qkv_proj.weight")


@pytest.mark.parametrize("variant", ["gpt2", "neox"])
def test_masks_and_names_of_older_files(variant: str, tmp_path: Path) -> None:
    """Without the base's prefix, and with stored masks of a type that no weight has."""
    folder = tiny.make(tmp_path / "tiny", variant)
    before = dict(open_checkpoint(folder).tensors())
    weights = load_file(folder / "model.safetensors")
    base, layer = {
        "gpt2": ("transformer.", "h.0.attn"),
        "neox": ("gpt_neox.", "layers.0.attention"),
    }[variant]
    bare = {name.removeprefix(base): each for name, each in weights.items()}
    if variant == "gpt2":
        bare[f"{layer}.bias"] = np.tril(np.ones((1, 1, 8, 8), np.uint8))
    else:
        bare[f"{layer}.bias"] = np.tril(np.ones((1, 1, 8, 8), bool))
        bare[f"{layer}.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    bare[f"{layer}.masked_bias"] = np.array(-1e9, np.float32)
    save_file(bare, folder / "model.safetensors")
    after = dict(open_checkpoint(folder).tensors())
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_weight_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny", "neox")
    weights = load_file(folder / "model.safetensors")
    name = "gpt_neox.layers.0.attention.dense.weight"
    weights[name] = weights[name].astype(np.int32)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(
        InputError, match=rf"weight '{name}' has type I32; supported: F32, F16, BF16"
    ):
        open_checkpoint(folder)


def test_fields_that_would_change_the_result_are_refused(tmp_path: Path) -> None:
    for variant, fields, message in (
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "'scale_attn_by_inverse_layer_idx'"),
        ("phi", {"qk_layernorm": True}, "'qk_layernorm' = True is not supported"),
        ("phi3", {"lm_head_bias": True}, "'lm_head_bias' = True is not supported"),
        ("phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "unknown rope_type 'linear'"),
        ("stablelm", {"qk_layernorm": True}, "'qk_layernorm' = True is not supported"),
        ("stablelm", {"partial_rotary_factor": 0.2, "rope_parameters": {}}, "rotates 3 entries"),
        ("neox", {"rope_parameters": {"partial_rotary_factor": 0.2}}, "rotates 3 entries"),
        ("neox", {"rotary_pct": "all", "rope_parameters": None}, "'rotary_pct' = 'all' must be"),
        ("smollm3", {"no_rope_layers": [1, 2, 0]}, "'no_rope_layers' = [1, 2, 0] must be a list"),
        ("granite", {"residual_multiplier": 0}, "'residual_multiplier' = 0 must be a finite"),
        ("olmo2", {"clip_qkv": 8.0}, "'clip_qkv' = 8.0 is not supported"),
        ("gemma", {"use_bidirectional_attention": True}, "'use_bidirectional_attention' = True"),
        ("gemma", {"final_logit_softcapping": 30.0}, "'final_logit_softcapping' = 30.0 is not"),
    ):
        folder = tmp_path / variant
        if not folder.exists():
            tiny.make(folder, variant)
        path = folder / "config.json"
        before = path.read_text()
        path.write_text(json.dumps({**json.loads(before), **fields}))
        with pytest.raises(InputError) as caught:
            open_checkpoint(folder)
        path.write_text(before)
        assert message in str(caught.value), variant
