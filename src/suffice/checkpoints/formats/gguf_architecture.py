"""What an architecture of llama.cpp is: a class of Hugging Face, keys, and names of weights.

Names and keys that several architectures have stand here; the tables of architectures are
`gguf_names` and `gguf_states`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from suffice.decoder.families import Change
from suffice.decoder.name_maps import Templates, stored_together

# of a metadata key: the configuration field, with a dot if it is in an object, and its type
Fields = Mapping[str, tuple[str, type]]

LAYER = "blk.{i}."
WEIGHTS: Templates = {
    "embed": "token_embd",
    "final_norm": "output_norm",
    "head": "output",
    "layers.attn_norm": LAYER + "attn_norm",
    "layers.q": LAYER + "attn_q",
    "layers.k": LAYER + "attn_k",
    "layers.v": LAYER + "attn_v",
    "layers.o": LAYER + "attn_output",
    "layers.q_norm": LAYER + "attn_q_norm",
    "layers.k_norm": LAYER + "attn_k_norm",
    "layers.post_attn_norm": LAYER + "post_attention_norm",
    "layers.mlp_norm": LAYER + "ffn_norm",
    "layers.gate": LAYER + "ffn_gate",
    "layers.up": LAYER + "ffn_up",
    "layers.down": LAYER + "ffn_down",
    "layers.post_mlp_norm": LAYER + "post_ffw_norm",
    "layers.router": LAYER + "ffn_gate_inp",
    "layers.choice": LAYER + "exp_probs_b.bias",
    **stored_together(LAYER + "ffn_gate_exps", "expert_gate", by_expert=True),
    **stored_together(LAYER + "ffn_up_exps", "expert_up", by_expert=True),
    **stored_together(LAYER + "ffn_down_exps", "expert_down", by_expert=True),
    "layers.narrow": LAYER + "ffn_latent_down",
    "layers.widen": LAYER + "ffn_latent_up",
    "layers.shared_router": LAYER + "ffn_gate_inp_shexp",
    "layers.shared_gate": LAYER + "ffn_gate_shexp",
    "layers.shared_up": LAYER + "ffn_up_shexp",
    "layers.shared_down": LAYER + "ffn_down_shexp",
}

SIZES: Fields = {
    "context_length": ("max_position_embeddings", int),
    "embedding_length": ("hidden_size", int),
    "block_count": ("num_hidden_layers", int),
    "feed_forward_length": ("intermediate_size", int),
    "attention.head_count": ("num_attention_heads", int),
    "attention.head_count_kv": ("num_key_value_heads", int),
    "attention.key_length": ("head_dim", int),
    "rope.freq_base": ("rope_theta", float),
}
RMS: Fields = {**SIZES, "attention.layer_norm_rms_epsilon": ("rms_norm_eps", float)}
NORM: Fields = {**SIZES, "attention.layer_norm_epsilon": ("layer_norm_eps", float)}
GRANITE: Fields = {
    **RMS,
    "attention.scale": ("attention_multiplier", float),
    "embedding_scale": ("embedding_multiplier", float),
    "residual_scale": ("residual_multiplier", float),
    "logit_scale": ("logits_scaling", float),  # divides, as the field does
}
OF_IMAGES = ("n_deepstack_layers", "rope.dimension_sections")


def experts(count: str) -> Fields:
    """Return the keys of experts; `count` is the field of their number."""
    return {"expert_count": (count, int), "expert_used_count": ("num_experts_per_tok", int)}


GATES_AND_VALUES: Mapping[str, Templates] = {  # of files made with --fuse-gate-up-exps
    "blk.*.ffn_gate_up_exps.weight": stored_together(
        LAYER + "ffn_gate_up_exps", "expert_gate", "expert_up", by_expert=True
    )
}
INNER: Fields = {"expert_feed_forward_length": ("moe_intermediate_size", int)}
SHARED: Fields = {"expert_shared_feed_forward_length": ("shared_expert_intermediate_size", int)}


@dataclass(frozen=True)
class Architecture:
    """One architecture; `name` is that of Hugging Face's class.

    `renamed` are fields that the class calls otherwise, or does not have (None). `fixed` are its
    values that the file does not have, `lacking` those of fields whose keys it may lack; `absent`
    are values of keys that mean that they are not there. `paired`: rows that a rotation mixes are
    stored next to each other; `whole`: so are all rows of a head, as if all were rotated.
    `partial`: the field of the part of a head that is rotated, if not all of it is. `bias`: the
    field that says whether queries, keys and values have biases, if there is one; `stored`: fields
    that say whether some tensor is there, whose name may have a `*`, or with `{i}` in which layers.
    `scaled`: parameters of a scaled rotation that the file does not have. `unread`: keys with such
    a beginning say nothing of the model. `needed`: keys that a file must have. `listed`: keys that
    may have a number for each layer, which stay lists. `divisors`: the field of the rotation's,
    which then divide nothing by themselves. `finished` turns all fields into those of the class.

    `state`: the kind of a layer with neither keys nor an MLP of its own, in models whose layers
    differ in that; `alone`: that of an MLP's own layer; `attending`: the field that lists the
    layers with keys, instead of kinds. `tiled`: heads with states take the groups of keys in turn.
    `adaptable`: the weights are those that adapters of the class change. `changes` are as a
    family's. `instead`: names of weights in files that have tensors of such a name, which may have
    a `*`.
    """

    name: str
    fields: Fields = field(default_factory=lambda: RMS)
    weights: Templates = field(default_factory=lambda: WEIGHTS)
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    lacking: Mapping[str, Any] = field(default_factory=dict)
    absent: Mapping[str, Any] = field(default_factory=dict)
    paired: bool = False
    whole: bool = False
    partial: str = ""
    bias: str = "attention_bias"
    stored: Mapping[str, str] = field(default_factory=dict)
    scaled: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    divisors: str = ""
    finished: Callable[[dict[str, Any]], dict[str, Any]] = dict
    state: str = ""
    alone: str = "mlp"
    attending: str = ""
    tiled: bool = False
    adaptable: bool = True
    changes: Mapping[str, Change] = field(default_factory=dict)
    instead: Mapping[str, Templates] = field(default_factory=dict)
