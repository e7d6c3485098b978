"""Assistants that draft for Gemma 4, in folders of their own: `Gemma4AssistantForCausalLM`.

Google publishes one for each model, as `gemma-4-E2B-it-assistant`. An assistant is four of Gemma
4's layers with queries alone: each reads the keys and values of the model's last layer of its kind
that stores any. `pre_projection` makes its stream of the model's embedding of a token and of the
model's hidden states after the final norm; `post_projection` makes such hidden states of its own.
Its own embedding is its head. With `use_ordered_embeddings` the head's rows are in groups:
`masked_embedding.token_ordering` has the tokens of each, and `masked_embedding.centroids` scores
them; the best `centroid_intermediate_top_k` have logits.

Source: transformers, `models/gemma4_assistant` and `SinglePositionMultiTokenCandidateGenerator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.checkpoint import assemble
from suffice.checkpoints.draft_heads import OpenedHead
from suffice.checkpoints.files import locate
from suffice.checkpoints.formats.hf_folder import FolderTensors, Safetensors, read_json
from suffice.checkpoints.matching import check_layers
from suffice.checkpoints.slices import View, slice_source
from suffice.checkpoints.source import Source
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.draft_head import DraftHead
from suffice.decoder.families.gemma4 import GEMMA4
from suffice.decoder.fields import read_fields
from suffice.errors import InputError, brief

CLASS = "Gemma4AssistantForCausalLM"
_FIELDS: Mapping[str, Any] = {
    "backbone_hidden_size": 1536,
    "use_ordered_embeddings": False,
    "num_centroids": 2048,
    "centroid_intermediate_top_k": 32,
    "tie_word_embeddings": True,
    "text_config": None,
}
_WITHOUT = {
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
}
_ORDER = "masked_embedding.token_ordering"
_GROUPED = "head in groups"
_OWN = {
    "join": "pre_projection",
    "hand_on": "post_projection",
    "groups": "masked_embedding.centroids",
}
_SURPLUS = (*GEMMA4.surplus, r"(?:model\.embed_tokens|lm_head)\.weight")
_PANEL = 16


def open_assistant(folder: str, target: DecoderConfig) -> OpenedHead:
    """Open an assistant for a model of a configuration.

    Raises:
        InputError: No such folder, files that are no assistant, or one of another model.
    """
    path = locate(folder)
    if not path.is_dir():
        raise InputError(f"{path}: an assistant is a folder with config.json and safetensors")
    raw = read_json(path / "config.json")
    where = str(path / "config.json")
    if raw.get("architectures") != [CLASS]:
        raise InputError(
            f"{path} is no assistant of Gemma 4: 'architectures' = "
            f"{brief(raw.get('architectures'))} must be ['{CLASS}']"
        )
    fields = read_fields(raw, _FIELDS)
    tensors = FolderTensors(path, GEMMA4.called)
    order = _order(tensors, where) if fields["use_ordered_embeddings"] else None
    tensors.leave_out({_ORDER} & set(tensors.types))
    source: Source = Safetensors(tensors)
    stored = source.shapes()
    text = _text(fields, where)
    check_layers(f"{where}: 'num_hidden_layers'", text.get("num_hidden_layers"), len(stored))
    config = _config(GEMMA4.read(text), fields, target, where, grouped=order is not None)
    head = "model.embed_tokens" if fields["tie_word_embeddings"] else "lm_head"
    if order is not None and (shape := stored.get(f"{head}.weight")) is not None:
        if len(order) != config.vocab or shape != (config.vocab, config.width):
            raise InputError(
                f"{where}: {_ORDER} has {len(order)} tokens, and the head is {list(shape)}: must "
                f"be {config.vocab} and {[config.vocab, config.width]}"
            )
        view = View(f"{head}.weight", shape, 0, shape[0], shape[0], False, tuple(order.tolist()))
        source, head = slice_source(source, {f"{_GROUPED}.weight": view}), _GROUPED
    family = replace(
        GEMMA4, weights={**GEMMA4.weights, **_OWN, "head": head}, surplus=_SURPLUS, base=""
    )
    tokens = np.arange(config.vocab, dtype=np.int64) if order is None else order
    return OpenedHead(assemble(path, family, config, source), tokens, (len(target.layers) + 1,))


def _text(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the configuration of the layers, which share none of their keys among themselves."""
    own = fields["text_config"]
    if not isinstance(own, Mapping) or own.get("model_type", GEMMA4.name) != GEMMA4.name:
        raise InputError(f"{where}: 'text_config' must be an object of model_type '{GEMMA4.name}'")
    for name, only in _WITHOUT.items():
        given = own.get(name, only)
        if type(given) is not type(only) or given != only:
            raise InputError(f"{where}: 'text_config.{name}' = {brief(given)} must be {only}")
    shared, layers = own.get("num_kv_shared_layers", 0), own.get("num_hidden_layers")
    if shared not in (0, layers):
        raise InputError(
            f"{where}: 'text_config.num_kv_shared_layers' = {brief(shared)} must be "
            f"{brief(layers)}, all layers"
        )
    return {**own, **_WITHOUT, "num_kv_shared_layers": 0}


def _config(
    own: DecoderConfig,
    fields: Mapping[str, Any],
    target: DecoderConfig,
    where: str,
    *,
    grouped: bool,
) -> DecoderConfig:
    """Return the configuration of a decoder that reads the caches of the model `target`.

    Raises:
        InputError: The assistant is of another model.
    """
    for name, given, wanted in (
        ("backbone_hidden_size", fields["backbone_hidden_size"], target.width),
        ("text_config.vocab_size", own.vocab, target.vocab),
    ):
        if given != wanted:
            raise InputError(
                f"{where}: '{name}' = {brief(given)} must be {wanted}, that of the model that it "
                "drafts for"
            )
    for name, width in (("hidden_size", own.width), ("backbone_hidden_size", target.width)):
        if width % _PANEL:
            raise InputError(f"{where}: '{name}' = {width} must be a multiple of {_PANEL}")
    groups = kept = 0
    if grouped:
        groups, kept = fields["num_centroids"], fields["centroid_intermediate_top_k"]
        _check_groups(groups, kept, own.vocab, where)
    rows = target.rows
    return replace(
        own,
        layers=tuple(_reading(layer, own, target, where) for layer in own.layers),
        kv_heads=max(each.heads for each in rows),
        head_size=max(each.size for each in rows),
        embed_width=target.width,
        embed_scale=target.embed_scale,
        logit_cap=0.0,  # transformers gives logits as they are; the order of drafts is the same
        tied=False,
        drafts=DraftHead(
            target.width,
            target.vocab,
            fused=False,
            normed_own=True,
            plain=True,
            joined=True,
            rows=rows,
            groups=groups,
            kept_groups=kept,
            shared=frozenset({"embed"}),
        ),
    )


def _reading(
    layer: LayerConfig, own: DecoderConfig, target: DecoderConfig, where: str
) -> LayerConfig:
    """Return a layer that reads the model's last layer of its kind with keys of its own.

    It has that layer's number of key/value heads, whatever its own configuration says.
    """
    size = layer.head_size or own.head_size
    kind = "full" if layer.window is None else "sliding"
    for place in reversed(range(len(target.rows))):
        theirs, rows = target.cached[place], target.rows[place]
        if rows.shares is None and (theirs.window is None) == (layer.window is None):
            break
    else:
        raise InputError(f"{where}: the model that it drafts for has no layer of {kind} attention")
    if target.latent or rows.size != size:
        raise InputError(
            f"{where}: heads of {kind} attention have {size} entries: must be {rows.size}, as in "
            "the model that it drafts for"
        )
    if layer.window != theirs.window:
        raise InputError(
            f"{where}: 'text_config.sliding_window' = {layer.window} must be {theirs.window}, that "
            "of the model that it drafts for"
        )
    return replace(layer, kv_heads=rows.heads, head_size=size, shares=place, keys_as_values=False)


def _check_groups(groups: Any, kept: Any, vocab: int, where: str) -> None:
    """Refuse groups that are not equal, of whole panels, or fewer than those that are kept."""
    whole = type(groups) is int and groups > 0 and vocab % groups == 0
    if not whole or vocab // groups % _PANEL:
        raise InputError(
            f"{where}: 'num_centroids' = {brief(groups)} must divide the {vocab} tokens into "
            f"groups of a multiple of {_PANEL}"
        )
    if type(kept) is not int or not 1 <= kept <= groups:
        raise InputError(
            f"{where}: 'centroid_intermediate_top_k' = {brief(kept)} must be from 1 to {groups}"
        )


def _order(tensors: FolderTensors, where: str) -> NDArray[np.int64]:
    """Return the tokens, group by group.

    Raises:
        InputError: They are not there, or not every token once.
    """
    if _ORDER not in tensors.types:
        raise InputError(f"{where}: 'use_ordered_embeddings', but there is no weight {_ORDER}")
    found = np.asarray(tensors.load(_ORDER)).reshape(-1)
    if found.dtype.kind != "i" or not np.array_equal(np.sort(found), np.arange(len(found))):
        raise InputError(f"{where}: {_ORDER} must have every token once")
    return found.astype(np.int64)
