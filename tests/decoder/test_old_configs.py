"""Fields of configurations that had other names or values in the first files."""

from __future__ import annotations

import pytest

from suffice.decoder.families import family_of


def test_gelu_of_the_first_gemma_is_the_one_by_tanh() -> None:
    raw = {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}
    for given in ({}, {"hidden_act": "gelu"}, {"hidden_act": "gelu_pytorch_tanh"}):
        config = family_of(raw | given).read(raw | given)
        assert config.activation == "gelu_tanh"


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_longrope_had_other_names(kind: str) -> None:
    raw = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}
    lists = {name: [1.0] * 48 for name in ("short_factor", "long_factor")}
    raw |= {"max_position_embeddings": 8192, "rope_scaling": {"type": kind, **lists}}
    (rope,) = family_of(raw).read(raw).ropes
    assert rope.kind == "longrope"
