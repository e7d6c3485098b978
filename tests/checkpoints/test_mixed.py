"""Tests of mixed.py: the text part of a model that sees or hears runs alone."""

from __future__ import annotations

import dataclasses
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_mixed
from suffice import LLM, SamplingParams
from suffice.checkpoints.mixed import MIXED, TEXTS, text_config
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.families import ARCHITECTURES
from suffice.errors import InputError, SufficeWarning

NEW = 4
LEFT_OUT = r"the model's text part runs; left out: \d+ tensors of "


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """Return the tokens that transformers decodes."""
    tokens = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(NEW):
            best = model(input_ids=tokens).logits[:, -1:].argmax(-1)
            tokens = torch.cat((tokens, best), dim=1)
    found: list[int] = tokens[0, len(prompt) :].tolist()
    return found


@pytest.mark.parametrize("name", tiny_mixed.MIXED)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = tiny_mixed.make(tmp_path / name, name)
    with pytest.warns(SufficeWarning, match=LEFT_OUT):
        llm = LLM(tmp_path / name, dtype="float32", kv_cache_dtype="float32", threads=2)
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(3, 200, (n,), generator=generator).tolist() for n in (5, 40)]
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True):
        # a whole Llama 4 fails there without an image
        text = model.language_model if name == "Llama4" else model
        assert list(output.outputs[0].token_ids) == greedy(text, prompt)


def test_what_is_left_out_is_counted_and_named(tmp_path: Path) -> None:
    tiny_mixed.make(tmp_path / "a", "Qwen2VL")
    stored = load_file(tmp_path / "a" / "model.safetensors")
    seeing = [name for name in stored if name.startswith("visual.")]
    with pytest.warns(SufficeWarning) as told:
        open_checkpoint(tmp_path / "a")
    line = f"the model's text part runs; left out: {len(seeing)} tensors of visual"
    assert [str(each.message) for each in told] == [line]


def test_names_and_fields_of_other_versions(tmp_path: Path) -> None:
    """Fields next to those of images, a rotation called mrope, and names within the model."""
    folder = tmp_path / "a"
    tiny_mixed.make(folder, "Qwen2VL")
    with pytest.warns(SufficeWarning, match=LEFT_OUT):
        first = open_checkpoint(folder)
        before = {name: torch.tensor(each) for name, each in first.tensors()}
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    text = raw.pop("text_config")
    rope = text.pop("rope_parameters")
    section = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    raw |= text | {"rope_theta": rope["rope_theta"], "rope_scaling": section}
    raw["model_type"] = "qwen2_vl"
    path.write_text(json.dumps(raw))
    stored = load_file(folder / "model.safetensors")
    inner = {
        name.replace("model.", "model.language_model.").replace("visual.", "model.visual."): each
        for name, each in stored.items()
    }
    save_file(inner, folder / "model.safetensors")
    with pytest.warns(SufficeWarning, match=LEFT_OUT):
        again = open_checkpoint(folder)
    assert again.config == first.config
    found = {name: torch.tensor(each) for name, each in again.tensors()}
    assert found.keys() == before.keys()
    assert all(torch.equal(found[name], before[name]) for name in before)


def test_a_stored_head_counts_whatever_is_said_of_a_tie(tmp_path: Path) -> None:
    tiny_mixed.make(tmp_path / "a", "Qwen2VL")
    path = tmp_path / "a" / "config.json"
    raw = json.loads(path.read_text())
    for said in (True, None):
        path.write_text(json.dumps(raw | {"tie_word_embeddings": said}))
        with pytest.warns(SufficeWarning, match=LEFT_OUT):
            assert not open_checkpoint(tmp_path / "a").config.tied


def test_a_head_is_the_embedding_unless_it_is_said_otherwise() -> None:
    raw = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}}
    assert text_config(raw)["tie_word_embeddings"] is True
    assert text_config({**raw, "tie_word_embeddings": False})["tie_word_embeddings"] is False
    text = {"text_config": {"tie_word_embeddings": False}}
    assert text_config(raw | text)["tie_word_embeddings"] is False
    assert text_config({**raw, **text, "tie_word_embeddings": True})["tie_word_embeddings"] is True


def test_tensors_that_nothing_explains_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    tiny_mixed.make(folder, "Qwen2VL")
    stored = load_file(folder / "model.safetensors")
    stored["model.layers.0.cross_attn.weight"] = torch.ones(2, 2)
    save_file(stored, folder / "model.safetensors")
    message = "unknown: model.layers.0.cross_attn.weight"
    with pytest.warns(SufficeWarning), pytest.raises(InputError, match=message):
        open_checkpoint(folder)


def test_fields_that_a_text_part_does_not_say_are_those_of_its_own_class() -> None:
    raw = {"architectures": ["Qwen2VLForConditionalGeneration"], "text_config": {"vocab_size": 7}}
    found = text_config(raw)
    assert (found["vocab_size"], found["num_hidden_layers"]) == (7, 80)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (3, "config field 'text_config' = 3 must be an object"),
        (
            {"model_type": "qwen9"},
            "unknown value of config field 'text_config.model_type' 'qwen9'. Did you mean",
        ),
    ],
)
def test_refusals(text: Any, message: str) -> None:
    raw = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    with pytest.raises(InputError) as error:
        text_config(raw)
    assert str(error.value).startswith(message)


def test_every_text_part_is_a_family_with_its_own_defaults() -> None:
    assert set(MIXED.values()) <= set(TEXTS)
    assert {name for name, _ in TEXTS.values()} <= set(ARCHITECTURES.entries)
    for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"):
        module = import_module(f"transformers.models.{kind}.configuration_{kind}")
        stem = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[kind]
        theirs = getattr(module, f"{stem}TextConfig")
        name, own = TEXTS[f"{kind}_text"]
        assert own["rope_theta"] == theirs.default_theta
        plain = import_module(f"transformers.models.{name[:5].lower()}")
        family = {
            f.name: f.default for f in dataclasses.fields(getattr(plain, f"{name[:5]}Config"))
        }
        defaults = {field.name: field.default for field in dataclasses.fields(theirs)}
        of_tokens = {"bos_token_id", "eos_token_id", "pad_token_id"}
        differ = {
            key: value
            for key, value in defaults.items()
            if key in family and key not in of_tokens and family[key] != value
        }
        assert {key: own[key] for key in own if key != "rope_theta"} == differ, kind
