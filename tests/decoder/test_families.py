"""Tests of llama.py, fields.py and rope_fields.py: config.json as transformers reads it."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from family_fields import DEFAULTS, ONLY, SILENT_OF
from hf_configs import (
    CLASSES,
    REFUSALS,
    UNTOLD,
    config_class,
    differences,
    facts_of_ours,
    facts_of_theirs,
)
from suffice.decoder.config import DecoderConfig
from suffice.decoder.families import ARCHITECTURES, bamba, falcon_h1, family_of, granite, llama
from suffice.decoder.families.missing import MISSING
from suffice.decoder.fields import _ONLY
from suffice.decoder.ignored import SILENT
from suffice.errors import InputError

# read by us, but no field of transformers' class
EXTRA = {
    *("global_head_dim", "num_global_key_value_heads", "per_layer_config"),  # of Gemma 4
    "rope_theta",
    "rope_scaling",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "rope_local_base_freq",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "head_dim",  # of Qwen2
    "qk_head_dim",
    "rotary_emb_base",
    "rotary_pct",
    "full_attention_interval",  # of Qwen3-Next
}
WRITTEN = {
    f"{path.stem}: {name}": raw
    for path in sorted((Path(__file__).parent / "configs").glob("*.json"))
    for name, raw in json.loads(path.read_text()).items()
}
# families whose files of all programs are here
FIRST = {
    "Gemma3ForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "OPTForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
}
LAYERS = ("layer_types", "per_layer_config")  # say something of each layer
NEMOTRON = "NemotronHForCausalLM"
GRANITE4 = "GraniteMoeHybridForCausalLM"
FALCON_H1 = "FalconH1ForCausalLM"
# sizes that still fit if any of them is the default
FITTING = {
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 7,
    "max_window_layers": 3,
}


def read(raw: dict[str, Any]) -> DecoderConfig:
    return family_of(raw).read(raw)


def changed_defaults(architecture: str, defaults: Mapping[str, Any]) -> list[str]:
    """Return the fields whose default is another in transformers, or that are new there."""
    theirs = {field.name: field.default for field in dataclasses.fields(config_class(architecture))}
    known = {*defaults, *SILENT, *_ONLY, *ONLY.get(architecture, {})}
    known |= SILENT_OF.get(architecture, set())
    changed = [
        name
        for name, default in defaults.items()
        if not (name in EXTRA and name not in theirs)
        and (
            name not in theirs or theirs[name] != default or type(theirs[name]) is not type(default)
        )
    ]
    return changed + sorted(set(theirs) - known)


@pytest.mark.parametrize("architecture", DEFAULTS)
def test_defaults_are_those_of_transformers(architecture: str) -> None:
    defaults = DEFAULTS[architecture]
    assert changed_defaults(architecture, defaults) == []
    theta = getattr(config_class(architecture), "default_theta", None)
    if architecture == "Gemma3ForCausalLM":
        theta, local = theta["global"], theta["local"]
        assert local == defaults["rope_local_base_freq"]
        pattern = config_class(architecture)()._sliding_window_pattern
        assert pattern == defaults["sliding_window_pattern"]
    if architecture not in UNTOLD:
        assert theta == defaults.get("rope_theta", defaults.get("rotary_emb_base"))


def test_a_changed_default_would_be_noticed() -> None:
    defaults = dict(llama.DEFAULTS)
    assert changed_defaults("LlamaForCausalLM", defaults | {"rms_norm_eps": 1e-5}) == [
        "rms_norm_eps"
    ]
    assert changed_defaults("LlamaForCausalLM", defaults | {"new": None}) == ["new"]
    del defaults["mlp_bias"]
    assert changed_defaults("LlamaForCausalLM", defaults) == ["mlp_bias"]


def test_fields_of_any_model_and_of_generation_are_known() -> None:
    from transformers import GenerationConfig, PreTrainedConfig

    shared = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    assert shared - {"is_encoder_decoder"} <= SILENT
    assert {name for name in GenerationConfig().to_dict() if name[0] != "_"} <= SILENT


# the defaults of one have heads of 42 entries, and those of the other no number of chosen experts
@pytest.mark.parametrize(
    "architecture",
    sorted(
        set(CLASSES)
        - {"BambaForCausalLM", "DeepseekV2ForCausalLM", "Glm4MoeForCausalLM", GRANITE4, NEMOTRON}
        - {FALCON_H1}
    ),
)  # no attention; heads of 42; layers that are not listed; states of 8 values
def test_a_config_of_nothing_but_its_architecture(architecture: str) -> None:
    raw = {"architectures": [architecture]}
    if architecture == "OPTForCausalLM":  # its own default, 50272 tokens and 12 layers
        assert read(raw).vocab == 50272
    assert not differences(facts_of_ours(read(raw), architecture), facts_of_theirs(raw))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_config_as_others_write_it(name: str) -> None:
    raw = WRITTEN[name]
    architecture = raw["architectures"][0]
    ours, theirs = facts_of_ours(read(raw), architecture), facts_of_theirs(raw)
    assert not differences(ours, theirs)


def test_what_is_missing_is_of_no_known_architecture() -> None:
    assert not set(MISSING) & set(ARCHITECTURES.entries)


def test_a_fact_that_differs_would_be_found() -> None:
    raw = WRITTEN["transformers-4.51: llama"]
    theirs = facts_of_theirs(raw)
    for change in (
        {"rope_theta": 500001.0},
        {"rms_norm_eps": 1e-6},
        {"rope_scaling": {**raw["rope_scaling"], "factor": 31.0}},
        {"num_hidden_layers": 15},
        {"mlp_bias": True},
    ):
        assert differences(facts_of_ours(read(raw | change), "LlamaForCausalLM"), theirs)


def test_every_program_and_family_is_there() -> None:
    found = {(name.partition(":")[0], raw["architectures"][0]) for name, raw in WRITTEN.items()}
    for program in ("transformers-4.51", "unsloth", "axolotl", "trl"):
        assert {own for name, own in found if name == program} == FIRST, program
    assert {own for name, own in found if name == "transformers-5"} == set(CLASSES)
    later = {"Qwen3ForCausalLM", "Gemma3ForCausalLM"}  # than transformers 4.40
    assert {own for name, own in found if name == "transformers-4.40"} == FIRST - later
    assert {own for name, own in found if name == "mlx-lm"} == FIRST - {"OPTForCausalLM"}


LATENT = [own for own in DEFAULTS if "kv_lora_rank" in DEFAULTS[own]]
CASES = [
    (own, field, change)
    for own in DEFAULTS
    for field in DEFAULTS[own]
    for change in ("missing", "null")
]
for own in (
    *("ApertusForCausalLM", "Exaone4ForCausalLM", "GptOssForCausalLM", "LlamaForCausalLM"),
    "Ministral3ForCausalLM",
    *("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Mistral4ForCausalLM"),
):
    CASES.remove((own, "original_max_position_embeddings", "null"))  # fails there
for own in (
    *("Cohere2ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "GptOssForCausalLM"),
    "Olmo3ForCausalLM",
):
    CASES.remove((own, "sliding_window", "null"))  # fails there, in the mask
for own in ("rotary_emb_base", "rotary_pct"):  # taken there if another field gives the value
    CASES.remove(("GPTNeoXForCausalLM", own, "null"))
CASES.remove(("FalconForCausalLM", "layer_norm_epsilon", "null"))  # fails in the model
for own in ("layer_norm_eps", "logit_scale"):  # fails in the model
    CASES.remove(("CohereForCausalLM", own, "null"))
CASES.remove(("Exaone4ForCausalLM", "sliding_window", "null"))  # divides by 0 there
for own in ("missing", "null"):  # fails there
    CASES.remove(("HunYuanDenseV1ForCausalLM", "head_dim", own))
    CASES.remove(("HunYuanMoEV1ForCausalLM", "head_dim", own))
    CASES.remove(("Glm4MoeForCausalLM", "head_dim", own))  # heads of 42
CASES.remove(("HunYuanMoEV1ForCausalLM", "num_experts", "missing"))  # fails in the model
for own in ("GraniteMoeForCausalLM", GRANITE4, "GraniteMoeSharedForCausalLM"):
    for each in (*granite._FACTORS, "num_local_experts", "num_experts_per_tok"):  # fails there
        CASES.remove((own, each, "null"))
CASES.remove(("Ernie4_5_MoeForCausalLM", "moe_k", "null"))  # fails there
CASES.remove(("KimiLinearForCausalLM", "num_experts_per_tok", "null"))  # fails in the model
CASES.remove((GRANITE4, "num_local_experts", "missing"))  # 8 of them
for own in ("missing", "null"):  # no attention; layers that are not listed
    CASES.remove((NEMOTRON, "layers_block_type", own))
    CASES.remove((GRANITE4, "layer_types", own))
    CASES.remove(("BambaForCausalLM", "attn_layer_indices", own))
for own in bamba.MAMBA_DEFAULTS:  # fails in the model
    CASES.remove((FALCON_H1, own, "null"))
    CASES.remove(("BambaForCausalLM", own, "null"))
    CASES.remove((GRANITE4, own, "null"))
for own in ("GlmForCausalLM", "Qwen2MoeForCausalLM"):  # fails in the model
    CASES.remove((own, "num_key_value_heads", "null"))
for own in falcon_h1.DEFAULTS:
    if own.endswith("_multiplier") or own in ("mamba_norm_before_gate", "mamba_rms_norm"):
        CASES.remove((FALCON_H1, own, "null"))  # fails in the model
CASES.remove((FALCON_H1, "projectors_bias", "null"))  # taken as false there
CASES.remove((FALCON_H1, "mamba_n_heads", "missing"))  # heads of 12
for own in LATENT:
    for size in ("head_dim", "qk_head_dim", "v_head_dim"):  # fail in the model
        if (own, size) != ("MiniCPM3ForCausalLM", "v_head_dim"):
            CASES.remove((own, size, "null"))
for own in ("DeepseekV3ForCausalLM", "Mistral4ForCausalLM"):
    for size in ("n_group", "num_experts_per_tok", "topk_group"):  # fail in the model
        CASES.remove((own, size, "null"))
    CASES.remove((own, "norm_topk_prob", "null"))  # taken as false there
for own in ("DeepseekV3ForCausalLM", "Mistral4ForCausalLM", "YoutuForCausalLM"):
    CASES.remove((own, "rope_interleave", "null"))  # taken as false there
for own in ("num_attention_heads", "num_experts_per_tok", "moe_intermediate_size"):
    CASES.remove(("DeepseekV2ForCausalLM", own, "missing"))  # 32 of 16; none; 1407
for own in ("num_experts_per_tok", "topk_method"):  # fail in the model
    CASES.remove(("DeepseekV2ForCausalLM", own, "null"))


CASES.remove(("Gemma4ForCausalLM", "rope_scaling", "null"))  # transformers warns of the name
CASES.remove(("Gemma4ForCausalLM", "per_layer_config", "null"))  # all layers are alike there


@pytest.mark.parametrize("architecture", DEFAULTS)
def test_a_field_that_is_missing_or_null(architecture: str) -> None:
    """All cases of a family in one test: each is soon read, and there are hundreds."""
    cases = [case for case in CASES if case[0] == architecture]
    assert cases
    for case in cases:
        try:
            read_without(*case)
        except BaseException as error:
            raise AssertionError(f"{case}: {error!r}") from error


def read_without(architecture: str, field: str, change: str) -> None:
    """Compare what is read of a configuration whose field is missing or null."""
    raw = next(raw for raw in WRITTEN.values() if raw["architectures"] == [architecture])
    own = architecture in (
        *(FALCON_H1, NEMOTRON, "OlmoHybridForCausalLM"),
        *("BambaForCausalLM", "FalconForCausalLM", "Gemma3ForCausalLM", "HeliumForCausalLM"),
        *(
            "Ernie4_5_MoeForCausalLM",
            "Gemma4ForCausalLM",
            "Glm4MoeForCausalLM",
            GRANITE4,
            "NanoChatForCausalLM",
        ),
        "Llama4ForCausalLM",
        *("SeedOssForCausalLM", "Starcoder2ForCausalLM", *UNTOLD),
        *LATENT,  # whose heads all have keys and values
    )
    fitting = {} if own else FITTING
    raw = {name: value for name, value in (raw | fitting).items() if name in DEFAULTS[architecture]}
    raw = {name: value for name, value in raw.items() if name not in (field, *LAYERS)}
    raw["architectures"] = [architecture]
    if architecture == GRANITE4:
        raw["layer_types"] = ["attention"] * raw.get("num_hidden_layers", 32)
    if change == "null":
        raw[field] = None
    try:
        theirs = facts_of_theirs(raw)
    except REFUSALS:
        with pytest.raises(InputError, match="config field"):
            read(raw)
    else:
        assert not differences(facts_of_ours(read(raw), architecture), theirs)


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
}
YARN = {"type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LISTS = {
    "short_factor": [1.0 + i / 8 for i in range(32)],
    "long_factor": [2.0 + i for i in range(32)],
}


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": {**YARN, "original_max_position_embeddings": 1024}},
        {"rope_scaling": {**YARN, "original_max_position_embeddings": 1024, "finetuned": True}},
        {"rope_scaling": YARN},  # the original length is the stated one
        {"rope_scaling": YARN, "original_max_position_embeddings": 512},
        {
            "rope_scaling": {**YARN, "original_max_position_embeddings": 1024},
            "original_max_position_embeddings": 512,
        },
        {"rope_scaling": {**YARN, "factor": None, "original_max_position_embeddings": 1024}},
        {"rope_scaling": {**YARN, "truncate": None, "original_max_position_embeddings": 1000}},
        {"rope_scaling": {**YARN, "truncate": False, "original_max_position_embeddings": 1000}},
        {"rope_scaling": {**YARN, "beta_fast": 16, "beta_slow": None}},
        {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.707}},
        {"rope_scaling": {**YARN, "mscale": 0.9, "mscale_all_dim": 0}},
        {"rope_scaling": {**YARN, "attention_factor": 1.5}},
        {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 1024}},
        {"rope_parameters": LLAMA3, "rope_theta": 500000.0},
        {"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}},  # a band of one wavelength
        {"rope_parameters": {**LLAMA3, "rope_theta": 250000.0}, "rope_theta": 500000.0},
        {"rope_parameters": {**LLAMA3, "rope_theta": 3e5}, "rope_theta": None},
        {"rope_parameters": LLAMA3, "original_max_position_embeddings": 256},
        {"rope_parameters": LLAMA3, "rope_scaling": {"type": "linear", "factor": 3}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e5}, "rope_scaling": {}},
        {"rope_scaling": {"rope_type": "dynamic", "type": "linear", "factor": 3.0}},
        {"rope_scaling": {"type": "dynamic", "factor": 3.0}, "partial_rotary_factor": 1.0},
        {"rope_parameters": {"rope_type": "longrope", **LISTS}},
        {
            "rope_parameters": {"rope_type": "longrope", **LISTS},
            "original_max_position_embeddings": 1024,
        },
        {
            "rope_parameters": {
                "rope_type": "longrope",
                **LISTS,
                "original_max_position_embeddings": 1024,
                "factor": 8.0,
            }
        },
        {"rope_parameters": {"rope_type": "longrope", **LISTS, "attention_factor": 1.25}},
    ],
    ids=str,
)
def test_rotations_wherever_their_parameters_stand(fields: dict[str, Any]) -> None:
    raw = LLAMA | fields
    ours = facts_of_ours(read(raw), "LlamaForCausalLM")
    assert not differences(ours, facts_of_theirs(raw))
    plain = facts_of_theirs(LLAMA | {"rope_theta": 12345.0})
    assert differences(ours, plain) == ["turns"]


def test_null_where_transformers_fails_later() -> None:
    raw = WRITTEN["transformers-4.51: llama"]
    assert read(raw | {"original_max_position_embeddings": None}) == read(raw)
    with pytest.raises(InputError, match=r"^config field .sliding_window. is missing"):
        read(WRITTEN["transformers-4.51: gemma3"] | {"sliding_window": None})


def test_gemma_has_two_rotations() -> None:
    raw = {"architectures": ["Gemma3ForCausalLM"], "rope_theta": 5e5, "rope_local_base_freq": 2e4}
    for more in (
        {},
        {"rope_scaling": {"rope_type": "linear", "factor": 4}},
        {"rope_parameters": {"full_attention": {"rope_theta": 7e5}, "sliding_attention": None}},
        {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
    ):
        ours = facts_of_ours(read(raw | more), "Gemma3ForCausalLM")
        assert not differences(ours, facts_of_theirs(raw | more))
        assert len(ours["turns"]) == 2
        assert ours["turns"][0] != ours["turns"][1]


def test_older_names_of_layers() -> None:
    raw = {
        "architectures": ["Qwen2ForCausalLM"],
        "num_hidden_layers": 2,
        "use_sliding_window": True,
    }
    found = read(raw | {"layer_types": ["attention", "sliding_attention"]})
    assert [layer.window for layer in found.layers] == [None, 4096]


def test_nothing_is_said_of_what_transformers_writes() -> None:
    names = [name for name in WRITTEN if name.startswith("transformers")]
    assert len(names) > 5
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for name in names:
            read(WRITTEN[name])
    assert not said
