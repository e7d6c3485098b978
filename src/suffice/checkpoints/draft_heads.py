"""Heads that draft for a model, in folders of their own: EAGLE-3.

Files are those of SafeAILab's EAGLE, which SGLang and vLLM load (`LlamaForCausalLMEagle3`), or of
`speculators`. Names of weights are without a prefix, or have `model.`; the layer is `midlayer`, or
`layers.0`. `d2t` says how far the token of each draft id is from that id. A head without an
embedding, or without `lm_head`, has that of the model that it drafts for.

Layers whose inputs the head reads are `eagle_aux_hidden_state_layer_ids` as vLLM takes them, or the
layers before these in `eagle_config`, as SGLang does; by default 2, the middle, and the third from
the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.checkpoint import Checkpoint, assemble
from suffice.checkpoints.files import locate
from suffice.checkpoints.formats.hf_folder import FolderTensors, Safetensors, read_json
from suffice.checkpoints.matching import check_layers
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.draft_head import DraftHead
from suffice.decoder.families import Family
from suffice.decoder.families.llama import DEFAULTS, llama_biases, sizes
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.rope_fields import read_rope
from suffice.errors import InputError, brief

LAYERS = "eagle_aux_hidden_state_layer_ids"
COUNT = 3  # of layers whose hidden states are fused
_FIELDS: Mapping[str, Any] = {
    **DEFAULTS,
    "num_hidden_layers": 1,
    "draft_vocab_size": None,  # vocab_size
    "target_hidden_size": None,  # hidden_size
    "norm_before_residual": False,
    LAYERS: None,
    "eagle_config": None,
}
_OF_SPECULATORS = ("draft_vocab_size", "norm_before_residual", "target_hidden_size", LAYERS)
_SILENT = ("modal_type", "target_model_type")
_CALLED = (
    (r"(?:model\.)?(?:midlayer|layers\.0)\.(.*)", r"layers.0.\1"),
    (r"model\.(.*)", r"\1"),
)
WEIGHTS = {
    "embed": "embed_tokens",
    "fuse": "fc",
    "embed_norm": "layers.0.input_layernorm",
    "hidden_norm": "layers.0.hidden_norm",
    "layers.attn_norm": "layers.{i}.input_layernorm",
    "layers.q": "layers.{i}.self_attn.q_proj",
    "layers.k": "layers.{i}.self_attn.k_proj",
    "layers.v": "layers.{i}.self_attn.v_proj",
    "layers.o": "layers.{i}.self_attn.o_proj",
    "layers.mlp_norm": "layers.{i}.post_attention_layernorm",
    "layers.gate": "layers.{i}.mlp.gate_proj",
    "layers.up": "layers.{i}.mlp.up_proj",
    "layers.down": "layers.{i}.mlp.down_proj",
    "final_norm": "norm",
    "head": "lm_head",
}
_SURPLUS = ("d2t", "t2d", r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


@dataclass(frozen=True)
class OpenedHead:
    """A head whose weights have not been read.

    `tokens` int64 [drafted] are the tokens of the other model that it drafts, by its own ids, and
    `layers` those of the other model whose inputs are its hidden states.
    """

    checkpoint: Checkpoint
    tokens: NDArray[np.int64]
    layers: tuple[int, ...]


def default_layers(count: int) -> tuple[int, ...]:
    """Return the layers whose inputs are fused unless a head says others, of `count`."""
    return 2, count // 2, count - COUNT


def open_head(folder: str, target: DecoderConfig) -> OpenedHead:
    """Open a head of EAGLE-3 for a model of a configuration.

    Raises:
        InputError: No such folder, files that are no such head, or a head of another model.
    """
    path = locate(folder)
    if not path.is_dir():
        raise InputError(f"{path}: a head that drafts is a folder with config.json and safetensors")
    raw = read_json(path / "config.json")
    where = str(path / "config.json")
    if "markov_rank" in raw or "dflash_config" in raw:
        raise InputError(f"{path} is a head that drafts blocks: give it as dflash:model={folder}")
    tensors = FolderTensors(path, _CALLED)
    if "fc.weight" not in tensors.types:
        raise InputError(f"{path} is no head of EAGLE-3: it has no weight 'fc.weight'")
    fields = read_fields(_flat(raw, where), _FIELDS, silent=_SILENT)
    source = Safetensors(tensors)
    stored = source.shapes()
    check_layers(f"{where}: 'num_hidden_layers'", fields["num_hidden_layers"], len(stored))
    own = {"embed": "embed_tokens.weight", "head": "lm_head.weight"}
    shared = frozenset(name for name, weight in own.items() if weight not in stored)
    config = _config(fields, shared, biased="fc.bias" in stored)
    _check(config, target, where)
    family = Family("llama", lambda raw: config, WEIGHTS, surplus=_SURPLUS, base="")
    checkpoint = assemble(path, family, config, source)
    return OpenedHead(checkpoint, _tokens(tensors, config, where), _layers(fields, target, where))


def _flat(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a configuration of `speculators` in the form that others have, and others as is."""
    if "speculators_model_type" not in raw:
        return raw
    kind, layer = raw["speculators_model_type"], raw.get("transformer_layer_config")
    if kind != "eagle3" or not isinstance(layer, dict):
        raise InputError(
            f"{where}: 'speculators_model_type' = {brief(kind)} must be 'eagle3', with a "
            "'transformer_layer_config'"
        )
    return layer | {name: raw[name] for name in _OF_SPECULATORS if raw.get(name) is not None}


def _config(fields: Mapping[str, Any], shared: frozenset[str], *, biased: bool) -> DecoderConfig:
    width = fields["hidden_size"]
    head = DraftHead(
        COUNT * (fields["target_hidden_size"] or width),
        fields["vocab_size"],
        normed_stream=fields["norm_before_residual"],
        shared=shared,
    )
    return DecoderConfig(
        **sizes(fields, head_size(fields)) | {"vocab": fields["draft_vocab_size"] or head.vocab},
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        biases=llama_biases(fields) | ({"fuse"} if biased else frozenset()),
        drafts=head,
    )


def _check(config: DecoderConfig, target: DecoderConfig, where: str) -> None:
    """Refuse a head of another model.

    Raises:
        InputError: It is one, or has sizes that the native core does not take.
    """
    head = config.drafts
    assert head is not None
    if head.vocab != target.vocab:
        raise InputError(
            f"{where}: 'vocab_size' = {head.vocab} must be {target.vocab}, that of the model that "
            "it drafts for"
        )
    if head.hidden != COUNT * target.width:
        raise InputError(
            f"{where}: hidden states of {head.hidden // COUNT} entries: must be {target.width}, "
            "those of the model that it drafts for"
        )
    if config.width % 16 or target.width % 16:
        raise InputError(f"{where}: 'hidden_size' = {config.width} must be a multiple of 16")
    if config.tied:
        raise InputError(f"{where}: 'tie_word_embeddings' must be false")
    if head.shared and config.width != target.embed_width:
        raise InputError(
            f"{where}: it has no {' and no '.join(sorted(head.shared))} of its own, and the "
            f"model's have {target.embed_width} entries, not {config.width}"
        )
    if "head" in head.shared and config.vocab != target.vocab:
        raise InputError(f"{where}: 'draft_vocab_size' without a weight lm_head.weight")


def _tokens(tensors: FolderTensors, config: DecoderConfig, where: str) -> NDArray[np.int64]:
    """Return the token that each of the head's ids stands for.

    Raises:
        InputError: There is no `d2t` of that many tokens of the vocabulary, each there once.
    """
    assert config.drafts is not None
    count, vocab = config.vocab, config.drafts.vocab
    if "d2t" not in tensors.files:
        if count == vocab:
            return np.arange(vocab, dtype=np.int64)
        raise InputError(f"{where}: 'draft_vocab_size' = {count}, but there is no weight d2t")
    found = np.asarray(tensors.load("d2t"))
    if found.shape != (count,) or found.dtype.kind != "i":
        raise InputError(f"{where}: d2t must be {count} whole numbers, one for each draft id")
    tokens = found.astype(np.int64) + np.arange(count)
    if tokens.min() < 0 or tokens.max() >= vocab or len(np.unique(tokens)) < count:
        raise InputError(f"{where}: d2t must give each draft id a token of its own below {vocab}")
    return tokens


def _layers(fields: Mapping[str, Any], target: DecoderConfig, where: str) -> tuple[int, ...]:
    """Return the layers of the model whose inputs are the head's hidden states.

    Raises:
        InputError: They are not three layers in ascending order.
    """
    nested = fields["eagle_config"] if isinstance(fields["eagle_config"], dict) else {}
    given, most = fields[LAYERS], len(target.layers)
    if not given and nested.get(LAYERS):
        given = [each + 1 if type(each) is int else each for each in nested[LAYERS]]
    layers = tuple(given or default_layers(most))
    fit = all(type(each) is int and 0 <= each <= most for each in layers)
    if not fit or len(layers) != COUNT or list(layers) != sorted(set(layers)):
        raise InputError(
            f"{where}: '{LAYERS}' = {brief(list(layers))} must be {COUNT} layers in ascending "
            f"order, of 0 to {most}"
        )
    return layers
