"""A family's GGUF file is the model of its folder.

Tests of gguf_architecture.py, gguf_names.py, gguf_states.py and gguf_source.py.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gguf_families
import tiny
from caches import cache_for
from suffice.backends.cpu.linear import unpack
from suffice.checkpoints.checkpoint import Checkpoint
from suffice.checkpoints.formats.gguf_latent import LATENT
from suffice.checkpoints.formats.gguf_names import ARCHITECTURES
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.native_model import NativeModel
from suffice.decoder.rope import rope_table
from suffice.decoder.states import Recurrence
from suffice.decoder.step_rows import StepRows
from suffice.errors import InputError
from suffice.quant import QUANTS
from suffice.quantize.torch_decoder import TorchDecoder

LONGROPE = tiny.VARIANTS["phi-moe-longrope"][1]["rope_parameters"] | {
    "original_max_position_embeddings": 32,
    **dict.fromkeys(("short_mscale", "long_mscale"), math.sqrt(1 + math.log(4) / math.log(32))),
}
SCALED = {  # the files have one factor, that of scores
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "apertus": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "arcee": {"mlp_bias": False},
    "bamba": {},
    "cohere": {},
    "cohere2": {"num_hidden_layers": 5},
    "deepseek-v2": {"rope_parameters": SCALED},
    "deepseek-v2-lite": {},
    "deepseek-v3": {"rope_parameters": SCALED},
    "glm4-moe-lite": {
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "routed_scaling_factor": 1.5,
    },
    "minicpm3": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    "youtu": {},
    "ernie": {},
    "ernie-moe": {"moe_layer_end_index": -1},
    "exaone4": {},
    "exaone4-full": {},
    "glm": {},
    "glm4": {},
    "glm4-moe": {},
    "hunyuan": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "hunyuan-moe": {},
    "nemotron": {"mlp_bias": False},
    "olmo3": {},
    "seed-oss": {"attention_out_bias": False},
    "starcoder2": {"sliding_window": None},
    "falcon": {},
    "gemma": {},
    "gemma4": {},
    "gemma4-keys": {},
    "gemma4-moe": {},
    "gemma2": {"query_pre_attn_scalar": 16},  # llama.cpp takes the head size
    "gpt-oss": {},
    "gpt2": {},
    "granite": {"attention_bias": True},  # stored in the order of its weights
    "granite-moe": {},
    "granite-moe-shared": {},
    "granite4": {"intermediate_size": 80},  # that of the shared MLP
    "granite4-states": {"position_embedding_type": None},
    "lfm2": {},
    "lfm2-moe": {},
    "llama4": {"no_rope_layer_interval": 4, "floor_scale": 8192, "attn_scale": 0.1},
    "ministral3": {},
    "mixtral": {"sliding_window": None},
    "falcon-h1-norm": {"mlp_multipliers": None, "ssm_out_multiplier": 1.0},
    "nemotron-h": {"time_step_min": 0.001},  # of every file
    "nemotron-h-latent": {"intermediate_size": 48, "time_step_min": 0.001, "mlp_bias": False},
    "nemotron-h-moe": {"intermediate_size": 32},  # that of the experts
    "neox": {},
    "neox-serial": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    },
    "olmo2": {},
    "olmoe": {},
    "phi": {},
    "phi-moe": {"router_jitter_noise": 0.01},  # of every file
    "phi-moe-longrope": {"rope_parameters": LONGROPE, "router_jitter_noise": 0.01},
    "phi3": {},
    "phi3-longrope": {},
    "qwen2-moe": {"norm_topk_prob": False},
    "qwen3-moe": {"mlp_only_layers": []},
    "qwen3-next": {"mlp_only_layers": []},
    "qwen3.5": {"linear_num_value_heads": 2},  # else in another order
    "qwen3.5-moe": {"linear_num_value_heads": 2},
    "smollm3": {"no_rope_layers": [1, 1, 1]},
    "stablelm": {},
    "stablelm-parallel": {},
}
ROUTERS = {"router", "shared_router"}
STATEFUL: dict[str, dict[str, Any]] = {
    "bamba": {},
    "granite4-states": {
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
        "mamba_conv_bias": False,
        "position_embedding_type": None,
    },
    "lfm2": {},
    "lfm2-moe": {"intermediate_size": 64, "num_dense_layers": 0},
    "falcon-h1": {},
    "nemotron-h": {"mlp_bias": True, "use_conv_bias": False},
    "nemotron-h-latent": {
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 64,
        "mlp_bias": False,
    },
    "nemotron-h-moe": {"moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 64},
    "qwen3-next": {"shared_expert_intermediate_size": 64},
    "qwen3.5": {"linear_num_value_heads": 6},
    "qwen3.5-moe": {"shared_expert_intermediate_size": 64, "linear_num_value_heads": 4},
}
TOKENS = torch.randint(0, tiny.VOCABULARY, (20,), generator=torch.Generator().manual_seed(1))

# architectures of text parts that are families', of models that see
SEEING: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2vl": ("qwen2", {}),
    "qwen3vl": ("qwen3", {}),
    "qwen3vlmoe": ("qwen3-moe", {"norm_topk_prob": True, "mlp_only_layers": []}),
}


def logits(decoder: TorchDecoder) -> np.ndarray:
    """Return the native logits of TOKENS, with all weights as `decoder` has them."""
    cache = cache_for(decoder, "float32", growth="upfront", limit=64)
    cache.reserve(64)
    return NativeModel(decoder, 64).step([StepRows(cache, TOKENS.tolist(), outputs=None)])


def both(tmp_path: Path, variant: str, kind: str = "F32", **changes: Any) -> list[Checkpoint]:
    folder = tiny.make(tmp_path / "tiny", variant, **(VARIANTS.get(variant, {}) | changes))
    return [
        open_checkpoint(each)
        for each in (folder, gguf_families.write(folder, tmp_path / "x.gguf", kind))
    ]


def test_no_window_is_stored_as_0(tmp_path: Path) -> None:
    folder, file = both(tmp_path, "phi3", sliding_window=None)
    assert [layer.window for layer in file.config.layers] == [None] * 3
    assert file.config.layers == folder.config.layers


def test_models_of_128_experts_have_no_norms_of_heads(tmp_path: Path) -> None:
    folder, file = both(tmp_path, "llama4", num_local_experts=128, use_qk_norm=False)
    assert not file.config.qk_norm
    assert not folder.config.qk_norm


def test_every_architecture_is_tested() -> None:
    elsewhere = {"gemma3", "llama", "qwen2", "qwen3"}  # in test_gguf.py
    elsewhere |= {gguf_families.gguf_stateful.OF_EXPERTS}  # a class that another has, too
    assert {*ARCHITECTURES, *LATENT} == {*elsewhere, *SEEING, *gguf_families.ARCHITECTURES.values()}


@pytest.mark.parametrize("name", SEEING)
def test_the_text_part_of_models_that_see(name: str, tmp_path: Path) -> None:
    """Positions along three axes are one number in a text."""
    variant, changes = SEEING[name]
    folder = tiny.make(tmp_path / "tiny", variant, **changes)
    keys = {"rope.dimension_sections": [4, 2, 2, 0], "n_deepstack_layers": 3}
    path = gguf_families.write(folder, tmp_path / "x.gguf", name=name, keys=keys)
    first, file = open_checkpoint(folder), open_checkpoint(path)
    eps = {"norm_eps": first.config.norm_eps}
    assert replace(file.config, **eps) == first.config
    stored = dict(file.tensors())
    assert all(np.array_equal(stored[name], each) for name, each in first.tensors())


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_model_as_the_folder(variant: str, tmp_path: Path) -> None:
    folder, file = both(tmp_path, variant)
    rounded = {  # in a GGUF file they are float32
        name: pytest.approx(getattr(folder.config, name), rel=1e-6)
        for name in ("norm_eps", "attention_scale", "embed_scale", "residual_scale", "logit_scale")
    }
    for name, value in rounded.items():
        assert getattr(file.config, name) == value, name
    same: dict[str, Any] = {name: getattr(folder.config, name) for name in rounded}
    for ours, theirs in zip(file.config.ropes, folder.config.ropes, strict=True):
        tables = (rope_table(each, folder.config.head_size, 128, 40) for each in (ours, theirs))
        for found, expected in zip(*tables, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        if theirs.kind == "longrope":  # its lists and its factor are float32
            same["ropes"] = folder.config.ropes
    if isinstance(own := folder.config.state, Recurrence):
        assert isinstance(file.config.state, Recurrence)
        assert file.config.state.norm_eps == pytest.approx(own.norm_eps, rel=1e-6)
        same["state"] = replace(file.config.state, norm_eps=own.norm_eps)
    assert file.config.adaptable == (not variant.startswith("falcon-h1"))
    assert replace(file.config, **same, adaptable=True) == folder.config
    wanted, stored = ({n: np.asarray(t) for n, t in each.tensors()} for each in (folder, file))
    shift = folder.norm_offset
    assert wanted.keys() == stored.keys()
    for name, tensor in wanted.items():
        if shift and name.endswith("norm"):
            np.testing.assert_allclose(stored[name], tensor, rtol=0, atol=1e-6)
        else:
            assert np.array_equal(stored[name].reshape(-1), tensor.reshape(-1)), name


def test_the_weights_of_a_file_have_the_multipliers_of_its_folder(tmp_path: Path) -> None:
    folder, file = both(tmp_path, "falcon-h1")
    assert (file.config.embed_scale, file.config.mlp_gate_scale, file.config.logit_scale) == (
        1,
    ) * 3
    expected, found = (
        logits(TorchDecoder.from_checkpoint(each, QUANTS.build("none:dtype=float32")))
        for each in (folder, file)
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * expected.std())


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0"])
@pytest.mark.parametrize("variant", ["mixtral", "qwen2-moe", "qwen3-moe"])
def test_experts_run_in_the_codes_of_the_file(variant: str, kind: str, tmp_path: Path) -> None:
    inner = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 96}
    changes = {"intermediate_size": 64} if variant == "mixtral" else inner
    if variant == "qwen3-moe":
        del changes["shared_expert_intermediate_size"]
    _, file = both(tmp_path, variant, kind, **changes)
    decoder = TorchDecoder.from_checkpoint(file, QUANTS.build("file"))
    plain = TorchDecoder.from_checkpoint(file, QUANTS.build("none:dtype=float32"))
    for name, each in (("layers.1.expert_gate", "codes"), ("layers.1.router", "float32")):
        assert (decoder.matrix(name).dtype, plain.matrix(name).dtype) == (each, "float32")
        assert np.array_equal(unpack(decoder.matrix(name)), unpack(plain.matrix(name)))
    caches = [cache_for(decoder, "float32", growth="upfront", limit=64) for _ in range(2)]
    for cache in caches:
        cache.reserve(64)
    rows = [StepRows(caches[0], TOKENS.tolist(), outputs=None)]
    logits = NativeModel(decoder, 64).step(rows)
    expected = decoder.forward(TOKENS, caches[1], logits="all")
    assert expected is not None
    assert np.abs(logits - expected.numpy()).max() < 0.01 * expected.std()


@pytest.mark.parametrize("variant", STATEFUL)
def test_files_of_models_whose_layers_keep_states(variant: str, tmp_path: Path) -> None:
    """The logits of the folder, also where heads are in another order."""
    decoders = [
        TorchDecoder.from_checkpoint(each, QUANTS.build("none:dtype=float32"))
        for each in both(tmp_path, variant, **STATEFUL[variant])
    ]
    caches = [cache_for(each, "float32", growth="upfront", limit=64) for each in decoders]
    for cache in caches:
        cache.reserve(64)
    expected = decoders[0].forward(TOKENS, caches[0], logits="all")
    assert expected is not None
    model = NativeModel(decoders[1], 64)
    logits = model.step([StepRows(caches[1], TOKENS.tolist(), outputs=None)])
    assert np.abs(logits - expected.numpy()).max() < 1e-4 * expected.std()


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("variant", ["qwen3-next", "qwen3.5-moe"])
def test_files_that_have_as_one_tensor_what_others_have_as_two(
    variant: str, kind: str, tmp_path: Path
) -> None:
    folder, apart = both(tmp_path, variant, kind, **STATEFUL[variant])
    path = gguf_families.write(folder.path, tmp_path / "one.gguf", kind, joined=True)
    one = open_checkpoint(path)
    assert one.config == apart.config
    expected, found = dict(apart.tensors()), dict(one.tensors())
    assert all(np.array_equal(found[name], each) for name, each in expected.items())
    assert found.keys() == expected.keys()
    assert [(each.name, each.bytes, each.coded) for each in one.matrices] == [
        (each.name, each.bytes, each.coded) for each in apart.matrices
    ]
    for name in ("layers.0.mixed", "layers.0.out_gate", "layers.1.expert_up"):
        decoders = [
            TorchDecoder.from_checkpoint(each, QUANTS.build("file")) for each in (one, apart)
        ]
        assert np.array_equal(*(unpack(each.matrix(name)) for each in decoders))


@pytest.mark.parametrize("variant", STATEFUL)
def test_layers_that_keep_states_run_in_the_codes_of_the_file(variant: str, tmp_path: Path) -> None:
    _, file = both(tmp_path, variant, "Q8_0", **STATEFUL[variant])
    decoder = TorchDecoder.from_checkpoint(file, QUANTS.build("file"))
    plain = TorchDecoder.from_checkpoint(file, QUANTS.build("none:dtype=float32"))
    matrices = [each.name for each in file.matrices]
    whole = {name for name in matrices if decoder.matrix(name).dtype != "codes"}
    kinds = {name.rpartition(".")[2] for name in whole - {"embed", "head"}}
    assert kinds <= ROUTERS | ({"strength", "decay"} if variant == "qwen3-next" else set())
    for name in set(matrices) - whole:
        assert np.array_equal(unpack(decoder.matrix(name)), unpack(plain.matrix(name))), name
    cache = cache_for(decoder, "float32", growth="upfront", limit=64)
    cache.reserve(64)
    expected = decoder.forward(TOKENS, cache, logits="all")
    assert expected is not None
    # products round their inputs to 8 bits, a few to the other side
    assert np.abs(logits(decoder) - expected.numpy()).mean() < 0.005 * expected.std()


@pytest.mark.parametrize(
    ("variant", "key", "value", "message"),
    [
        ("bamba", "ssm.inner_size", 124, "granitehybrid.ssm.inner_size' = 124 must be a multiple"),
        ("lfm2", "attention.head_count_kv", [2, 1, 0], "0 or the same whole number"),
        ("lfm2", "attention.head_count_kv", [0, 2], "must be, for each of 3 layers, 0 or the same"),
        ("lfm2", "attention.head_count_kv", [0, -2, 0], "= -2 must be a whole number of at least"),
        (
            "nemotron-h",
            "feed_forward_length",
            [0, 96, 48, 0],
            "for each of 4 layers, 0 or the same",
        ),
        ("qwen3.5", "ssm.time_step_rank", 0, "ssm.time_step_rank' = 0 must be a whole number"),
        ("qwen3.5", "full_attention_interval", 0, "full_attention_interval' = 0 must be a whole"),
        ("lfm2", "shortconv.l_cache", None, "lfm2.shortconv.l_cache' = None must be a whole"),
    ],
)
def test_keys_of_states_are_checked(
    variant: str, key: str, value: Any, message: str, tmp_path: Path
) -> None:
    folder = tiny.make(tmp_path / "tiny", variant)
    path = gguf_families.write(folder, tmp_path / "x.gguf", keys={key: value})
    with pytest.raises(InputError, match=re.escape(message)):
        open_checkpoint(path)


def test_queries_keys_and_values_of_one_tensor_run_in_its_codes(tmp_path: Path) -> None:
    """Rows that a rotation mixes are next to each other in queries and keys, not in values."""
    _, file = both(tmp_path, "glm", "Q8_0")
    decoder = TorchDecoder.from_checkpoint(file, QUANTS.build("file"))
    plain = TorchDecoder.from_checkpoint(file, QUANTS.build("none:dtype=float32"))
    for name in (f"layers.1.{part}" for part in "qkv"):
        assert (decoder.matrix(name).dtype, plain.matrix(name).dtype) == ("codes", "float32")
        assert np.array_equal(unpack(decoder.matrix(name)), unpack(plain.matrix(name)))
    sizes = {each.name: each.bytes for each in file.matrices}
    assert [sizes[f"layers.1.{part}"] for part in "qkv"] == [128 * 68, 64 * 68, 64 * 68]


def test_a_tensor_of_queries_keys_and_values_has_their_rows(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny", "glm")
    keys = {"attention.head_count_kv": 4}
    path = gguf_families.write(folder, tmp_path / "x.gguf", keys=keys)
    message = "weight 'blk.0.attn_qkv.weight' has 256 rows, but the metadata say 384"
    with pytest.raises(InputError, match=message):
        open_checkpoint(path)


def test_keys_of_experts_are_checked(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny", "mixtral", sliding_window=None, num_experts_per_tok=6)
    path = gguf_families.write(folder, tmp_path / "x.gguf")
    data = path.read_bytes()
    key = b"llama.expert_used_count"
    at = data.index(key) + len(key) + 4
    path.write_bytes(data[:at] + (7).to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(InputError, match="'num_experts_per_tok' = 7 is more than the 6 experts"):
        open_checkpoint(path)
    path.write_bytes(data[:at] + (0).to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(InputError, match=r"key .llama.expert_used_count. = 0 must be a whole"):
        open_checkpoint(path)
