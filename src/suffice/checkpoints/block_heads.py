"""Heads that draft blocks for a model, in folders of their own: DFlash (`DFlashDraftModel`).

A head is a few layers of Qwen3 with `fc` and `hidden_norm`; the embedding and the head of the
vocabulary are the model's. `target_layer_ids` are layers of the model whose outputs are read. A
layer of full attention sees all rows of a block, one with a window only those before, unless
`is_causal` says otherwise of all layers. As in the reference, embeddings are as they are stored
(times `input_embedding_scale`), whatever the model does with its own.

Source: `dflash/model.py` of https://github.com/z-lab/dflash, and the loaders of vLLM and SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from suffice.checkpoints.checkpoint import assemble
from suffice.checkpoints.draft_heads import WEIGHTS, OpenedHead
from suffice.checkpoints.files import locate
from suffice.checkpoints.formats.hf_folder import FolderTensors, Safetensors, read_json
from suffice.checkpoints.matching import check_layers
from suffice.decoder.checks import check_number, check_size
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.draft_head import DraftHead
from suffice.decoder.families import Family
from suffice.decoder.families.llama import sizes
from suffice.decoder.families.qwen import QWEN3_DEFAULTS
from suffice.decoder.fields import activation, head_size, layers_by_kind, read_fields
from suffice.decoder.rope_fields import read_rope
from suffice.errors import InputError, brief

CLASS = "DFlashDraftModel"
_LATER = {  # what others call their heads that go on from DFlash
    "DFlash2DraftModel": "DFlash 2",
    "Qwen3DSparkModel": "DSpark",
}
_OWN: Mapping[str, Any] = {  # in `dflash_config`, or next to it
    "target_layer_ids": None,
    "mask_token_id": None,
    "block_size": 16,
    "num_target_layers": None,  # those of the model, whatever their number
    "input_embedding_scale": 1.0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": None,
}
_FIELDS: Mapping[str, Any] = {
    **QWEN3_DEFAULTS,
    **_OWN,
    "sliding_window": None,
    "draft_vocab_size": None,  # vocab_size
    "target_hidden_size": None,  # hidden_size
    "is_causal": None,
    "dflash_config": None,
}
_NULLABLE = ("num_key_value_heads", "block_size", "input_embedding_scale", "output_multiplier")
_ONLY = {"use_aux_hidden_state": (True,), "use_swa": (False,), "fc_layernorm": (False,)}
_SILENT = ("mask_token",)  # the text of `mask_token_id`
_BLOCKS = 2, 32  # rows: the last token and a draft, and as many as a step takes
_WEIGHTS = {
    **{name: own for name, own in WEIGHTS.items() if name != "embed_norm"},
    "hidden_norm": "hidden_norm",
    "layers.q_norm": "layers.{i}.self_attn.q_norm",
    "layers.k_norm": "layers.{i}.self_attn.k_norm",
}
_CALLED = ((r"model\.(.*)", r"\1"),)


def open_block_head(folder: str, target: DecoderConfig) -> OpenedHead:
    """Open a head of DFlash for a model of a configuration.

    Raises:
        InputError: No such folder, files that are no such head, or a head of another model.
    """
    path = locate(folder)
    if not path.is_dir():
        raise InputError(
            f"{path}: a head that drafts blocks is a folder with config.json and safetensors"
        )
    raw = read_json(path / "config.json")
    where = str(path / "config.json")
    _check_class(raw.get("architectures"), str(path))
    fields = _fields(raw, where)
    source = Safetensors(FolderTensors(path, _CALLED))
    check_layers(f"{where}: 'num_hidden_layers'", fields["num_hidden_layers"], len(source.shapes()))
    layers = _layers(fields, target, where)
    config = _config(fields, target, where, len(layers))
    family = Family("qwen3", lambda raw: config, _WEIGHTS, base="")
    checkpoint = assemble(path, family, config, source)
    return OpenedHead(checkpoint, np.arange(config.vocab, dtype=np.int64), layers)


def _check_class(found: Any, path: str) -> None:
    if found == [CLASS]:
        return
    name = found[0] if isinstance(found, list) and found else None
    later = _LATER.get(name) if isinstance(name, str) else None
    means = f" ({later}, which is not supported)" if later else ""
    raise InputError(
        f"{path} is no head of DFlash: 'architectures' = {brief(found)}{means} must be ['{CLASS}']"
    )


def _fields(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return all fields; those of `dflash_config` are before others of their names.

    Raises:
        InputError: A field that is not supported, a wrong value, or one that is missing.
    """
    fields = read_fields(raw, _FIELDS, _NULLABLE)
    nested = fields["dflash_config"]
    if not isinstance(nested, dict):
        raise InputError(f"{where}: 'dflash_config' = {brief(nested)} must be an object")
    nested = {name: each for name, each in nested.items() if each is not None}
    known = {name: fields[name] for name in _OWN}
    fields |= read_fields(nested, {**known, "causal": None}, (*_NULLABLE, *_OWN), _ONLY, _SILENT)
    for name in ("target_layer_ids", "mask_token_id"):
        if fields[name] is None:
            raise InputError(f"{where}: 'dflash_config' lacks '{name}'")
    for name in ("is_causal", "causal"):
        if fields[name] is not None and type(fields[name]) is not bool:
            raise InputError(f"{where}: '{name}' = {brief(fields[name])} must be true or false")
    for name, default in _OWN.items():
        if fields[name] is None:
            fields[name] = default
    check_size("block_size", fields["block_size"])
    for name in ("input_embedding_scale", "output_multiplier"):
        check_number(name, fields[name])
    return fields


def _config(
    fields: Mapping[str, Any], target: DecoderConfig, where: str, read: int
) -> DecoderConfig:
    """Return the configuration of a decoder that reads `read` layers of the model `target`.

    Raises:
        InputError: It is a head of another model, or has sizes that the native core does not take.
    """
    width, vocab = fields["hidden_size"], fields["vocab_size"]
    for name, wanted in (
        ("hidden_size", target.width),
        ("target_hidden_size", target.width),
        ("vocab_size", target.vocab),
        ("draft_vocab_size", target.vocab),
        ("num_target_layers", len(target.layers)),
    ):
        given = fields[name]
        if given is not None and given != wanted:
            raise InputError(
                f"{where}: '{name}' = {brief(given)} must be {wanted}, that of the model that it "
                "drafts for"
            )
    if target.embed_width != width or width % 16:
        raise InputError(
            f"{where}: 'hidden_size' = {width} must be a multiple of 16, and the width of the "
            f"model's embedding, here {target.embed_width}"
        )
    block, mask = fields["block_size"], fields["mask_token_id"]
    if not _BLOCKS[0] <= block <= _BLOCKS[1]:
        raise InputError(
            f"{where}: 'block_size' = {block} must be from {_BLOCKS[0]} to {_BLOCKS[1]}"
        )
    if type(mask) is not int or not 0 <= mask < vocab:
        raise InputError(f"{where}: 'mask_token_id' = {brief(mask)} must be a token below {vocab}")
    own = sizes(fields, head_size(fields))
    return DecoderConfig(
        **own | {"tied": False, "embed_scale": float(fields["input_embedding_scale"])},
        rounds_embed_scale=False,
        logit_scale=float(fields["output_multiplier"]),
        logit_cap=float(fields["final_logit_softcapping"] or 0.0),
        layers=_own_layers(fields),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        qk_norm=True,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
        drafts=DraftHead(
            read * width,
            vocab,
            block=block,
            mask=mask,
            shared=frozenset({"embed", "head"}),
        ),
    )


def _own_layers(fields: Mapping[str, Any]) -> tuple[LayerConfig, ...]:
    """Return the layers of the head; one is causal if all are, or else if it has a window."""
    causal = fields["causal"] if fields["is_causal"] is None else fields["is_causal"]
    found = layers_by_kind(
        fields,
        lambda index: False,
        sliding=LayerConfig(fields["sliding_window"]),
        full=LayerConfig(),
    )
    return tuple(
        replace(layer, mutual=layer.window is None if causal is None else not causal)
        for layer in found
    )


def _layers(fields: Mapping[str, Any], target: DecoderConfig, where: str) -> tuple[int, ...]:
    """Return the layers of the model whose inputs are the hidden states: those after the given.

    Raises:
        InputError: They are not in ascending order, or not layers that another one follows.
    """
    given, last = fields["target_layer_ids"], len(target.layers) - 2
    fit = isinstance(given, list) and given and all(type(each) is int for each in given)
    if not fit or given != sorted(set(given)) or not 0 <= given[0] <= given[-1] <= last:
        raise InputError(
            f"{where}: 'target_layer_ids' = {brief(given)} must be layers in ascending order, of 0 "
            f"to {last}"
        )
    return tuple(each + 1 for each in given)
