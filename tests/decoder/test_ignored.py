"""Tests of ignored.py: which fields of a config.json stop a load, and what is said of others."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from suffice.decoder.families import family_of
from suffice.decoder.ignored import is_stored_whole, quantized_by, without_quantization
from suffice.errors import InputError, SufficeWarning

CONFIGS = Path(__file__).parent / "configs"
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def said_of(raw: dict[str, Any]) -> list[str]:
    """Return the warnings of a configuration's reading."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        family_of(raw).read(raw)
    assert all(each.category is SufficeWarning for each in found)
    return [str(each.message) for each in found]


def told(raw: dict[str, Any]) -> list[str]:
    """Return the names of the fields that are said to be ignored, in one line or none."""
    found = said_of(raw)
    if not found:
        return []
    (line,) = found
    start = "config.json: ignored, because nothing is computed from it: "
    assert line.startswith(start)
    return line.removeprefix(start).split(", ")


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (
            "unsloth",
            {
                "_model_name_or_path",
                "model_name",
                "quantization_config",
                "unsloth_fixed",
                "unsloth_version",
            },
        ),
        ("mlx-lm", {"mlx_lm_version", "quantization", "quantization_config"}),
        (
            "axolotl",
            {
                "_attn_implementation_internal",
                "_flash_attn_2_enabled",
                "axolotl_version",
                "gradient_checkpointing_kwargs",
                "lora_alpha",
                "lora_r",
                "max_sequence_length",
                "model_max_length",
                "use_reentrant",
            },
        ),
        (
            "trl",
            {
                "attn_pdrop",
                "auto_map",
                "kl_loss_coef",
                "reward_loss_weight",
                "summary_first_dropout",
                "summary_proj_to_labels",
                "summary_type",
                "summary_use_proj",
                "trl_version",
                "use_reentrant",
            },
        ),
        ("transformers-4.40", set()),
        ("transformers-4.51", set()),
        ("transformers-5", set()),
    ],
)
def test_one_line_lists_what_other_programs_left(program: str, names: set[str]) -> None:
    configs = json.loads((CONFIGS / f"{program}.json").read_text())
    assert {name for raw in configs.values() for name in told(raw)} == names


def test_a_field_that_says_no_is_listed_and_one_that_is_null_is_not() -> None:
    says_no = {
        "use_moe": False,
        "num_experts": 0,
        "qk_layernorm": False,
        "clip_qkv": 0.0,
        "experts": [],
        "vision": {},
        "adapter": "",
    }
    assert told(LLAMA | says_no) == sorted(says_no)
    assert told(LLAMA | dict.fromkeys(says_no)) == []


def test_a_long_list_is_cut() -> None:
    (line,) = said_of(LLAMA | {f"unsloth_{number:02}": 1 for number in range(30)})
    assert line.endswith("unsloth_06, unsloth_07 and 22 more")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        # what would be computed differently
        ("use_moe", True, "config field 'use_moe' = True is not supported."),
        ("num_experts", 8, "config field 'num_experts' = 8 is not supported."),
        ("clip_qkv", 8.0, "config field 'clip_qkv' = 8.0 is not supported."),
        ("logit_scale", 0.0625, "config field 'logit_scale' = 0.0625 is not supported."),
        ("sliding_window", 4096, "config field 'sliding_window' = 4096 is not supported."),
        ("alibi", True, "config field 'alibi' = True is not supported."),
        ("per_layer_config", {"0": {}}, "config field 'per_layer_config' = {'0': {}} is not suppo"),
        ("use_mrope", True, "config field 'use_mrope' = True is not supported; supported: False"),
        ("rope_interleaved", True, "config field 'rope_interleaved' = True is not supported; supp"),
        ("quantization_scales", [1], "config field 'quantization_scales' = [1] is not supported."),
        ("unslothed", 1, "config field 'unslothed' = 1 is not supported."),
        # no to something that the decoder does
        ("use_rope", False, "config field 'use_rope' = False is not supported."),
        ("is_causal", False, "config field 'is_causal' = False is not supported."),
        ("embedding_scale", 0, "config field 'embedding_scale' = 0 is not supported."),
        ("scale_attn_weights", False, "config field 'scale_attn_weights' = False is not"),
        # misspelt
        (
            "tie_word_embedings",
            False,
            "config field 'tie_word_embedings' = False is not supported. Did you mean "
            "'tie_word_embeddings'?",
        ),
        (
            "mlp_biass",
            False,
            "config field 'mlp_biass' = False is not supported. Did you mean 'mlp_bias'?",
        ),
        ("partial_rotary_factor", 0.5, "config field 'rope_parameters.partial_rotary_factor' = 0."),
        ("is_encoder_decoder", True, "config field 'is_encoder_decoder' = True is not supported;"),
        ("a\nb", 1, "config field 'a\\nb' = 1 is not supported."),
        ("\udc80", 1, "config field '\\udc80' = 1 is not supported."),
        ("x" * 10**6, 0, f"config field '{'x' * 27}"),
    ],
)
def test_what_stops_a_load(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        family_of(LLAMA).read(LLAMA | {field: value})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


BNB = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
MLX = {"quantization": {"group_size": 64, "bits": 4}}
WHOLE = {"model.embed_tokens.weight": "BF16", "model.norm.weight": "F32", "q.bias": "F16"}


@pytest.mark.parametrize("raw", [BNB, MLX, BNB | MLX, {}])
def test_weights_that_are_stored_whole(raw: dict[str, Any]) -> None:
    assert is_stored_whole(raw, WHOLE)


@pytest.mark.parametrize(
    "more",
    [
        {"x.weight": "U8"},
        {"x.weight.absmax": "F32"},
        {"x.weight.quant_state.bitsandbytes__nf4": "F32"},
        {"x.SCB": "F32"},
        {"x.weight": "U32"},
        {"x.scales": "BF16"},
        {"x.biases": "BF16"},
        {"x.weight": "F8_E4M3"},
        {"x.weight_scale_inv": "F32"},
        {"x.qweight": "I32"},
        {"x.qzeros": "F16"},
        {"x.g_idx": "F32"},
    ],
)
def test_weights_in_codes(more: dict[str, str]) -> None:
    assert not is_stored_whole(BNB, WHOLE | more)
    assert is_stored_whole({}, WHOLE | more)  # refused by the reader, by type and name


def test_what_says_who_quantized_is_read_once() -> None:
    config = {"compression_config": {"format": "pack-quantized"}, "hidden_size": 8}
    assert quantized_by(config) == {"format": "pack-quantized"}
    assert quantized_by({"hidden_size": 8, "quantization_config": None}) is None
    assert without_quantization(config | MLX) == {"hidden_size": 8}
