"""Any content of a config.json ends in one line or in a decoder that can be computed."""

from __future__ import annotations

import copy
import json
import random
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffice.decoder.config import DecoderConfig
from suffice.decoder.families import family_of
from suffice.decoder.rope import rope_table
from suffice.errors import InputError

WRITTEN = [
    raw
    for path in sorted((Path(__file__).parent / "configs").glob("*.json"))
    for raw in json.loads(path.read_text()).values()
]
LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"]}
QWEN: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"]}
GEMMA: dict[str, Any] = {"architectures": ["Gemma3ForCausalLM"]}
OPT: dict[str, Any] = {"architectures": ["OPTForCausalLM"]}
DEEP: Any = []
for _ in range(5000):
    DEEP = [DEEP] if _ % 2 else {"a": DEEP}
BUDGET = 16 << 20  # bytes; a configuration of the largest models takes far less


def outcome(raw: Any) -> str | DecoderConfig:
    """Return the error's line, or the decoder's configuration, whose tables must be finite."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = family_of(raw).read(raw)
    except InputError as error:
        message = str(error)
        assert "\n" not in message
        assert len(message) < 400
        assert message.isprintable()
        return message
    assert 0 < len(config.layers) <= 1024
    for rope in config.ropes:
        for table in rope_table(rope, config.head_size, config.trained_positions, 3):
            assert np.isfinite(table).all()
        for table in rope_table(rope, config.head_size, config.trained_positions, 1, 2**31 - 1):
            assert np.isfinite(table).all()
    return config


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"architectures": ["NemotronHForCausalLM"], "n_groups": 0},
            "config field 'n_groups' = 0 must be a whole number from 1 to 2147483647",
        ),
        (
            {
                "architectures": ["HunYuanDenseV1ForCausalLM"],
                "head_dim": 2,
                "rope_scaling": {"rope_type": "dynamic", "alpha": 1000.0},
            },
            "config field 'head_dim' = 2 must be at least 3 with 'rope_scaling.alpha'",
        ),
        (
            {"architectures": ["Qwen3_5ForCausalLM"], "attention_bias": True},
            "config field 'attention_bias' = True is not supported",
        ),
        ({}, "config field 'architectures' = None must be a list of one name"),
        ({"architectures": DEEP}, "config field 'architectures' = [{'a': [...]}] must be a list"),
        ({"architectures": [DEEP]}, "config field 'architectures' = [[{...}]] must be a list of"),
        ({"architectures": ["L" * 10**6]}, "unknown architecture 'LLLLLL"),
        ({"architectures": ["Llama\nForCausalLM"]}, "unknown architecture 'Llama\\nForCausalLM'"),
        (LLAMA | {"model_type": DEEP}, "config field 'model_type' = [{'a': [...]}] contradicts"),
        (LLAMA | {"num_hidden_layers": 10**6}, "config field 'num_hidden_layers' = 1000000 must"),
        (LLAMA | {"num_hidden_layers": 2**31 - 1}, "config field 'num_hidden_layers' = 21474836"),
        (LLAMA | {"num_hidden_layers": 10**400}, "config field 'num_hidden_layers' = 1000000000"),
        (LLAMA | {"hidden_size": 1e400}, "config field 'hidden_size' = inf must be a whole number"),
        (LLAMA | {"hidden_size": float("nan")}, "config field 'hidden_size' = nan must be a whol"),
        (LLAMA | {"hidden_size": 4096.0}, "config field 'hidden_size' = 4096.0 must be a whole n"),
        (LLAMA | {"hidden_size": "4096"}, "config field 'hidden_size' = '4096' must be a whole n"),
        (LLAMA | {"hidden_size": DEEP}, "config field 'hidden_size' = [{'a': [...]}] must be a w"),
        (LLAMA | {"hidden_size": 4097}, "config field 'hidden_size' = 4097 must be a multiple of "),
        (LLAMA | {"head_dim": 0}, "config field 'head_dim' = 0 must be a whole number from 1 to"),
        (LLAMA | {"num_attention_heads": 2**31}, "config field 'num_attention_heads' = 214748364"),
        (LLAMA | {"rms_norm_eps": 1e400}, "config field 'rms_norm_eps' = inf must be a finite n"),
        (LLAMA | {"rms_norm_eps": 10**400}, "config field 'rms_norm_eps' = 10000000000000000000"),
        (LLAMA | {"rms_norm_eps": float("nan")}, "config field 'rms_norm_eps' = nan must be a fi"),
        (LLAMA | {"rope_theta": 1e39}, "config field 'rope_theta' = 1e+39 must be a finite number"),
        (LLAMA | {"hidden_act": ["silu"]}, "unknown value of config field 'hidden_act' '['silu']'"),
        (LLAMA | {"hidden_act": "s" * 10**6}, "unknown value of config field 'hidden_act' 'ssss"),
        (LLAMA | {"attention_bias": 1}, "config field 'attention_bias' = 1 must be true or false"),
        (LLAMA | {"tie_word_embeddings": None}, "config field 'tie_word_embeddings' = None must "),
        (LLAMA | {"rope_scaling": "linear"}, "config field 'rope_scaling' = 'linear' must be an o"),
        (LLAMA | {"rope_scaling": [1]}, "config field 'rope_scaling' = [1] must be an object"),
        (LLAMA | {"rope_scaling": {"type": DEEP}}, "unknown rope_type '[{'a': [...]}]'."),
        (LLAMA | {"rope_scaling": {"type": "x" * 10**6}}, "unknown rope_type 'xxxxx"),
        (
            LLAMA | {"rope_scaling": {"type": "linear", "factor": 1e30}},
            "config field 'max_position_embeddings, stretched' = 4294967294 must be a whole number",
        ),
        (
            LLAMA | {"rope_scaling": {"type": "linear", "factor": 1e-30}},
            "config field 'rope_scaling.factor' = 1e-30 must be a finite number above 0.001",
        ),
        (
            LLAMA | {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 10**6}},
            "config field 'rope_scaling.short_factor' = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, ...] must",
        ),
        (
            LLAMA | {"rope_scaling": {"type": "longrope", "short_factor": [float("nan")]}},
            "config field 'rope_scaling.short_factor' = nan must be a finite number above 0.001",
        ),
        (
            LLAMA | {"rope_scaling": {"type": "yarn", "factor": 2, "truncate": "no"}},
            "config field 'rope_scaling.truncate' = 'no' must be true or false",
        ),
        (
            LLAMA | {"rope_scaling": {"type": "yarn", "factor": 2, "mscale": -5}},
            "config field 'rope_scaling.mscale' = -5 must be a finite number above 0",
        ),
        (QWEN | {"layer_types": "full"}, "config field 'layer_types' = 'full' must be a list"),
        (QWEN | {"layer_types": [DEEP] * 32}, "unknown kind in 'layer_types' '[{'a': [...]}]'."),
        (QWEN | {"layer_types": ["full_attention"]}, "config field 'layer_types' has 1 entries "),
        (QWEN | {"layer_types": ["x"] * 10**6}, "config field 'layer_types' has 1000000 entries "),
        (QWEN | {"max_window_layers": "3"}, "config field 'max_window_layers' = '3' must be a wh"),
        (QWEN | {"num_hidden_layers": 10**6}, "config field 'num_hidden_layers' = 1000000 must be"),
        (GEMMA | {"sliding_window_pattern": 0}, "config field 'sliding_window_pattern' = 0 must b"),
        (GEMMA | {"query_pre_attn_scalar": 1e-320}, "config field 'attention_scale' = "),
        (GEMMA | {"rope_parameters": {"full_attention": 3}}, "config field 'rope_parameters.full_"),
        (OPT | {"word_embed_proj_dim": -1}, "config field 'word_embed_proj_dim' = -1 must be a wh"),
        (OPT | {"num_attention_heads": 5}, "config field 'hidden_size' = 768 must be a multiple "),
        (LLAMA | {"never_heard_of": DEEP}, "config field 'never_heard_of' = [{'a': [...]}] is no"),
        (LLAMA | {str(n): 0 for n in range(10**5)}, "config.json has 100001 fields; allowed: 1000"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_one_line_and_little_memory(raw: dict[str, Any], message: str) -> None:
    tracemalloc.start()
    try:
        found = outcome(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(found, str)
    assert found.startswith(message)
    assert peak < BUDGET


HOSTILE: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 16, 17, 2**31 - 1, 2**31, 2**63, 10**400),
    *(0.0, 0.5, 1.5, -0.0, 1e-320, 1e-30, 1e30, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", "4096", "full_attention", "yarn", "\udc80\n", "x" * 5000),
    *([], [0], [1.0] * 64, ["full_attention"] * 16, [None], {}, {"factor": 2.0}, {"": []}, DEEP),
]


def mutated(raw: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Return a configuration with up to three changes, some of them in its rotation's object."""
    changed = copy.deepcopy(raw)
    for _ in range(draw.randint(1, 3)):
        place: Any = changed
        inner = [value for value in changed.values() if isinstance(value, dict) and value]
        if inner and draw.random() < 0.5:
            place = draw.choice(inner)
        name = draw.choice(sorted(place)) if place else "rope_scaling"
        kind = draw.random()
        if kind < 0.6:
            place[name] = draw.choice(HOSTILE)
        elif kind < 0.75:
            place.pop(name, None)
        elif kind < 0.9 and isinstance(value := place.get(name), int | float) and value < 1e300:
            place[name] = value * draw.choice((-1, 0, 0.5, 2, 1024, 1e30))
        else:
            place[name[:-1] + draw.choice("abc_\x00")] = place.get(name)
    return changed


def test_mutations_end_in_a_line_or_in_a_decoder() -> None:
    draw, ends = random.Random(24), Counter[str]()
    for _ in range(3000):
        raw = mutated(draw.choice(WRITTEN), draw)
        ends[type(outcome(raw)).__name__] += 1
    assert ends.total() == 3000
    assert min(ends["str"], ends["DecoderConfig"]) > 500, ends
