"""Tests of config.py, gemma.py, mistral.py, opt.py and qwen.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import tiny
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import family_of
from suffice.decoder.rotation import Rope
from suffice.errors import InputError


@pytest.fixture
def folder_of(tmp_path: Path) -> Any:
    return lambda variant="llama": tiny.make(tmp_path / variant, variant)


_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}


_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def edit(folder: Path, **fields: Any) -> None:
    """Change fields of config.json; `...` removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_a_llama_config_means(folder_of: Any) -> None:
    config = open_checkpoint(folder_of()).config
    assert config == DecoderConfig(
        vocab=200,
        width=64,
        heads=4,
        kv_heads=2,
        head_size=16,
        mlp_width=96,
        layers=(LayerConfig(None, 0),) * 3,
        norm="rms",
        norm_eps=1e-6,
        placement="pre",
        activation="silu",
        gated=True,
        attention_scale=0.25,
        trained_positions=128,
        ropes=(Rope("default", 10_000.0),),
        embed_width=64,
    )


def test_which_layers_slide(folder_of: Any) -> None:
    windows = {
        variant: [layer.window for layer in open_checkpoint(folder_of(variant)).config.layers]
        for variant in ("mistral", "mistral-full", "qwen2", "qwen2-window", "qwen3-window")
    }
    assert windows == {
        "mistral": [8, 8, 8],
        "mistral-full": [None, None, None],
        "qwen2": [None, None, None],
        "qwen2-window": [None, 8, 8],
        "qwen3-window": [None, None, 8],
    }
    config = open_checkpoint(folder_of("gemma3")).config
    local, full = LayerConfig(8, 0), LayerConfig(None, 1)
    assert config.layers == (local,) * 5 + (full, local)
    assert [rope.theta for rope in config.ropes] == [10_000.0, 1_000_000.0]


def test_the_old_format_means_the_same(folder_of: Any) -> None:
    folder = folder_of("llama-llama3")
    new = open_checkpoint(folder).config
    scaling = json.loads((folder / "config.json").read_text())["rope_parameters"]
    theta = scaling.pop("rope_theta")
    scaling["type"] = scaling.pop("rope_type")
    edit(folder, rope_parameters=..., rope_scaling=scaling, rope_theta=theta)
    assert open_checkpoint(folder).config == new

    gemma = folder_of("gemma3-linear")
    new = open_checkpoint(gemma).config
    edit(
        gemma,
        rope_parameters=...,
        layer_types=...,
        sliding_window_pattern=6,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        rope_theta=1_000_000.0,
        rope_local_base_freq=10_000.0,
    )
    assert open_checkpoint(gemma).config == new


@pytest.mark.parametrize(
    ("variant", "fields", "message"),
    [
        (
            "llama",
            {"architectures": ["LlamaForCausallM"]},
            "unknown architecture 'LlamaForCausallM'. Did you mean 'LlamaForCausalLM'? "
            "65 are known: see docs/models.md",
        ),
        *(
            (
                "llama",
                {"architectures": [other]},
                f"unknown architecture '{other}'. 65 are known: see docs/models.md",
            )
            for other in ("GPTNeoForCausalLM", "MambaLM", "OlmoForCausalLM")
        ),
        (
            "gemma3",
            {"architectures": ["MllamaForConditionalGeneration"]},
            "unsupported architecture 'MllamaForConditionalGeneration': it needs attention to an "
            "image in some layers. 65 are known: see docs/models.md",
        ),
        (
            "llama",
            {"architectures": ...},
            "config field 'architectures' = None must be a list of one name",
        ),
        (
            "llama",
            {"num_key_value_head": 2},
            "config field 'num_key_value_head' = 2 is not supported. "
            "Did you mean 'num_key_value_heads'?",
        ),
        (
            "llama",
            {"rope_interleaved": True},
            "config field 'rope_interleaved' = True is not supported; supported: False",
        ),
        (
            "llama",
            {"rope_parameters": {**_LONGROPE, "rope_type": "mrope"}},
            "unknown rope_type 'mrope'. Did you mean 'longrope'? Known: default, dynamic, linear, "
            "llama3, longrope, proportional, yarn",
        ),
        (
            "llama",
            {"rope_parameters": {**_LONGROPE, "short_factor": [1.0] * 7}},
            "config field 'short_factor' has 7 numbers; needed: 8, half of 'head_dim'",
        ),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": _LONGROPE}},
            "unknown rope_type 'longrope'. Known: default, linear",
        ),
        (
            "gemma3",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            "unknown entry of config field 'rope_parameters' 'rope_type'. "
            "Known: full_attention, sliding_attention",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": "two"}},
            "config field 'rope_parameters.factor' = 'two' must be a finite number above 0",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "facter": 3.0}},
            "unknown parameter of rope_type 'linear' 'facter'. Did you mean 'factor'?",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "config field 'rope_parameters.partial_rotary_factor' = 0.5 is not supported; "
            "supported: 1.0",
        ),
        ("llama", {"hidden_act": "mish"}, "unknown value of config field 'hidden_act' 'mish'."),
        (
            "llama",
            {"attention_bias": "no"},
            "config field 'attention_bias' = 'no' must be true or ",
        ),
        (
            "llama",
            {"hidden_size": "64"},
            "config field 'hidden_size' = '64' must be a whole number from 1 to 2147483647",
        ),
        (
            "llama",
            {"num_attention_heads": 0},
            "config field 'num_attention_heads' = 0 must be a whole number from 1 to 2147483647",
        ),
        (
            "llama",
            {"num_hidden_layers": True},
            "config field 'num_hidden_layers' = True must be a whole number from 1 to 2147483647",
        ),
        (
            "llama",
            {"rms_norm_eps": -1.0},
            "config field 'rms_norm_eps' = -1.0 must be a finite number above 0",
        ),
        (
            "gemma3",
            {"query_pre_attn_scalar": float("inf")},
            "config field 'query_pre_attn_scalar' = inf must be a finite number above 0",
        ),
        (
            "qwen2",
            {"head_dim": ..., "hidden_size": 3},
            "config field 'head_dim' = 0 must be a whole number from 1 to 2147483647",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "rope_theta": "x"}},
            "config field 'rope_parameters.rope_theta' = 'x' must be a finite number above 1",
        ),
        (
            "llama",
            {"rope_parameters": ..., "rope_theta": 0},
            "config field 'rope_theta' = 0 must be a finite number above 1",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
            "config field 'rope_parameters.rope_theta' = None must be a finite number above 1",
        ),
        *(
            (
                "llama",
                {"rope_scaling": {"rope_type": "linear", "factor": factor}},
                f"config field 'rope_scaling.factor' = {factor} must be a finite number above 0",
            )
            for factor in (0, -4.0, True, float("nan"))
        ),
        (
            "llama-yarn",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 2.0,
                    "original_max_position_embeddings": 0,
                }
            },
            "config field 'rope_parameters.original_max_position_embeddings' = 0 must be a whole",
        ),
        (
            "llama-llama3",
            {"rope_parameters": {**_LLAMA3, "low_freq_factor": 5.0}},
            "config field 'rope_parameters.high_freq_factor' = 4.0 must be a finite number above 5",
        ),
        *(
            (
                "llama",
                {"model_type": other},
                f"config field 'model_type' = {other!r} contradicts 'architectures' = "
                "['LlamaForCausalLM'], whose model_type is 'llama'",
            )
            for other in ("gpt2", "mixtral", "")
        ),
        (
            "llama",
            {"head_dim": 24},
            "config field 'head_dim' = 24 is not supported; supported: multiples of 16 up to 512",
        ),
        (
            "llama",
            {"num_key_value_heads": 3},
            "config field 'num_key_value_heads' = 3 must divide 'num_attention_heads' = 4",
        ),
        (
            "llama",
            {"vocab_size": 0},
            "config field 'vocab_size' = 0 must be a whole number from 1 to 2147483647",
        ),
        (
            "mistral",
            {"sliding_window": 0},
            "config field 'sliding_window' = 0 must be a whole number from 1 to 2147483647",
        ),
        (
            "qwen2",
            {"layer_types": ["full_attention", "chunked_attention", "full_attention"]},
            "unknown kind in 'layer_types' 'chunked_attention'.",
        ),
        (
            "qwen3",
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            "config field 'sliding_window' is missing, but 'layer_types' uses it",
        ),
        (
            "gemma3",
            {"final_logit_softcapping": 30.0},
            "config field 'final_logit_softcapping' = 30.0 is not supported; supported: None",
        ),
        (
            "gemma3",
            {"attn_logit_softcapping": 50.0},
            "config field 'attn_logit_softcapping' = 50.0 is not supported; supported: None",
        ),
        (
            "gemma3",
            {"use_bidirectional_attention": True},
            "config field 'use_bidirectional_attention' = True is not supported;",
        ),
        (
            "opt",
            {"layer_norm_elementwise_affine": False},
            "config field 'layer_norm_elementwise_affine' = False is not supported;",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_refused_configurations(
    variant: str, fields: dict[str, Any], message: str, folder_of: Any
) -> None:
    folder = folder_of(variant)
    open_checkpoint(folder)
    edit(folder, **fields)
    assert refusal(folder).startswith(message)


def test_fields_that_do_not_matter_are_let_through(folder_of: Any) -> None:
    folder = folder_of()
    edit(folder, use_cache=False, pretraining_tp=2, unheard_of=None, torch_dtype="bfloat16")
    open_checkpoint(folder)
    edit(folder, dtype=[], attention_dropout="x", model_type=...)
    open_checkpoint(folder)


PUBLISHED = json.loads((Path(__file__).parent / "published_configs.json").read_text())


@pytest.mark.parametrize("name", PUBLISHED)
def test_configurations_as_they_are_published(name: str) -> None:
    raw = PUBLISHED[name]
    config = family_of(raw).read(raw)
    assert config.width == raw["hidden_size"]
    assert len(config.layers) == raw["num_hidden_layers"]
    windows = {layer.window for layer in config.layers}
    known = {"Mistral-7B-v0.1": {4096}, "gemma-3-270m": {None, 512}, "gemma-3-1b-it": {None, 512}}
    assert windows == known.get(name, {None})
    assert config.tied == raw.get("tie_word_embeddings", name.startswith(("gemma", "opt")))
    assert config.projected == (name == "opt-350m")
    placement = {"gemma-3-270m": "sandwich", "gemma-3-1b-it": "sandwich", "opt-350m": "post"}
    assert config.placement == placement.get(name, "pre")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"config\.json is not valid JSON: "),
        ("[]", r"config\.json must hold a JSON object, not a list$"),
    ],
)
def test_broken_config(text: str, message: str, folder_of: Any) -> None:
    folder = folder_of()
    (folder / "config.json").write_text(text)
    assert re.search(message, refusal(folder))


@pytest.mark.parametrize("method", ["bitsandbytes", "hqq"])
def test_weights_that_others_quantized(method: str, tmp_path: Path) -> None:
    stored = {"architectures": ["Phi3ForCausalLM"], "quantization_config": {"quant_method": method}}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    save_file({"model.x.qweight": np.zeros((2, 2), np.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError) as refused:
        open_checkpoint(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path}: its weights are quantized by {method}, which is not supported "
        "(supported: gptq, awq, compressed-tensors, fp8, mxfp4): give the model's float weights, "
        "and --quant int8 or a file of `suffice quantize` to make it small; or a GGUF file of the "
        "model"
    )
