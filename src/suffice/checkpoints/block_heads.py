"""Heads that draft blocks for a model, in folders of their own: DFlash and DSpark.

A head is a few layers of Qwen3 with `fc` and `hidden_norm`; the embedding and the head of the
vocabulary are the model's, unless the folder has its own. `target_layer_ids` are layers of the
model whose outputs are read. A layer of full attention sees all rows of a block, one with a window
only those before, unless `is_causal` says otherwise of all layers. As in the reference, embeddings
are as they are stored (times `input_embedding_scale`), whatever the model does with its own.

DSpark's fields are next to those of the layers, or in `dflash_config` (SpecForge, LFM2.5). Rows are
of the token after their place, and `markov_head` adds what depends on the token before. A
confidence head is not read. `rope_is_neox_style` = false: the two rows that a rotation mixes are
adjacent.

Source: `dflash/model.py` of https://github.com/z-lab/dflash, `modeling/dspark` of
https://github.com/deepseek-ai/DeepSpec, and the loaders of vLLM, SGLang and llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from suffice.checkpoints.checkpoint import assemble
from suffice.checkpoints.draft_heads import WEIGHTS, OpenedHead
from suffice.checkpoints.files import locate
from suffice.checkpoints.formats.hf_folder import FolderTensors, Safetensors, read_json
from suffice.checkpoints.matching import check_layers, check_shape
from suffice.checkpoints.stored_file import Array
from suffice.decoder.checks import check_number, check_size
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.draft_head import DraftHead
from suffice.decoder.families import Family
from suffice.decoder.families.llama import sizes
from suffice.decoder.families.qwen import QWEN3_DEFAULTS
from suffice.decoder.fields import activation, head_size, layers_by_kind, read_fields
from suffice.decoder.rope_fields import read_rope
from suffice.errors import InputError, brief

_CLASSES = {  # and whether they are heads of DSpark
    "DFlashDraftModel": False,
    "Qwen3DSparkModel": True,  # of DeepSpec
    "DSparkDraftModel": True,  # of SpecForge
    "Lfm2DSparkDraftModel": True,  # of Liquid AI
}
_LATER = {  # others that go on from DFlash
    "DFlash2DraftModel": "DFlash 2",
    "Gemma4DSparkModel": "DSpark with layers of Gemma 4",
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
_OF_DSPARK: Mapping[str, Any] = {
    "block_size": 7,
    "markov_rank": 0,
    "rope_is_neox_style": True,
}
_ONLY_OF_DSPARK = {
    "markov_head_type": ("vanilla", None),
    "projector_type": ("dspark",),
    "attention_mode": ("gqa",),
}
_SILENT_OF_DSPARK = (  # of training, and of the confidence head
    "num_anchors",
    "confidence_head_alpha",
    "confidence_head_with_markov",
    "enable_confidence_head",
)
_BLOCKS = 2, 32  # rows: the last token and a draft, and as many as a step takes
_WEIGHTS = {
    **{name: own for name, own in WEIGHTS.items() if name != "embed_norm"},
    "hidden_norm": "hidden_norm",
    "layers.q_norm": "layers.{i}.self_attn.q_norm",
    "layers.k_norm": "layers.{i}.self_attn.k_norm",
}
_CALLED = ((r"model\.(.*)", r"\1"),)
_TABLES = {"embed": "embed_tokens.weight", "head": "lm_head.weight"}
_MARKOV = ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight")
_CONFIDENCE = ("confidence_head.proj.weight", "confidence_head.proj.bias")


def open_block_head(folder: str, target: DecoderConfig) -> OpenedHead:
    """Open a head of DFlash or DSpark for a model of a configuration.

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
    ahead = _is_ahead(raw.get("architectures"), str(path))
    fields = _fields(raw, where, ahead=ahead)
    source = Safetensors(FolderTensors(path, _CALLED))
    stored = source.shapes()
    check_layers(f"{where}: 'num_hidden_layers'", fields["num_hidden_layers"], len(stored))
    layers = _layers(fields, target, where, ahead=ahead)
    shared = frozenset(name for name, weight in _TABLES.items() if weight not in stored)
    drafts = DraftHead(
        len(layers) * fields["hidden_size"],
        fields["vocab_size"],
        block=fields["block_size"],
        mask=fields["mask_token_id"],
        ahead=ahead,
        shared=shared,
    )
    config = _config(fields, target, where, drafts)
    rank = fields.get("markov_rank") or 0
    besides = (*_CONFIDENCE, *(_MARKOV if rank else ())) if ahead else ()
    surplus = tuple(map(re.escape, besides))
    family = Family("qwen3", lambda raw: config, _WEIGHTS, surplus=surplus, base="")
    checkpoint = assemble(path, family, config, source)
    for name in _MARKOV if rank else ():
        check_shape(str(path), name, stored.get(name, ()), (config.vocab, rank))
    return OpenedHead(checkpoint, np.arange(config.vocab, dtype=np.int64), layers)


def markov_weights(head: OpenedHead) -> tuple[Array, Array] | None:
    """Read what a head of DSpark has of the token before a draft and of the draft, each [V, R].

    Raises:
        InputError: They cannot be read, or have entries that are not finite.
    """
    source = head.checkpoint.source
    if _MARKOV[0] not in source.shapes():
        return None
    before, own = (source.load(name) for name in _MARKOV)
    return before, own


def _is_ahead(found: Any, path: str) -> bool:
    """Return whether a head of these classes is one of DSpark.

    Raises:
        InputError: It is none that can be read.
    """
    name = found[0] if isinstance(found, list) and len(found) == 1 else None
    if isinstance(name, str) and name in _CLASSES:
        return _CLASSES[name]
    later = _LATER.get(name) if isinstance(name, str) else None
    means = f" ({later}, which is not supported)" if later else ""
    known = ", ".join(f"['{each}']" for each in _CLASSES)
    raise InputError(
        f"{path} is no head of DFlash or DSpark: 'architectures' = {brief(found)}{means} must be "
        f"one of {known}"
    )


def _fields(raw: Mapping[str, Any], where: str, *, ahead: bool) -> dict[str, Any]:
    """Return all fields; those of `dflash_config` are before others of their names.

    `ahead`: they are of DSpark, which needs no `dflash_config`.

    Raises:
        InputError: A field that is not supported, a wrong value, or one that is missing.
    """
    own = {**_OWN, **(_OF_DSPARK if ahead else {})}
    only, silent = (_ONLY_OF_DSPARK, _SILENT_OF_DSPARK) if ahead else ({}, ())
    fields = read_fields(raw, {**_FIELDS, **own}, _NULLABLE, only, silent)
    nested = {} if ahead and fields["dflash_config"] is None else fields["dflash_config"]
    if not isinstance(nested, dict):
        raise InputError(f"{where}: 'dflash_config' = {brief(nested)} must be an object")
    nested = {name: each for name, each in nested.items() if each is not None}
    known = {name: fields[name] for name in own}
    more = {**_ONLY, **only}, (*_SILENT, *silent)
    fields |= read_fields(nested, {**known, "causal": None}, (*_NULLABLE, *own), *more)
    for name in ("target_layer_ids", "mask_token_id"):
        if fields[name] is None:
            place = "" if ahead else "'dflash_config' "
            raise InputError(f"{where}: {place}lacks '{name}'")
    for name in ("is_causal", "causal", "rope_is_neox_style"):
        if type(fields.get(name)) not in (bool, type(None)):
            raise InputError(f"{where}: '{name}' = {brief(fields[name])} must be true or false")
    if None not in (said := (fields["is_causal"], fields["causal"])) and said[0] != said[1]:
        raise InputError(f"{where}: 'is_causal' = {said[0]} and 'causal' = {said[1]}")
    for name, default in own.items():
        if fields[name] is None:
            fields[name] = default
    if fields.get("markov_rank"):
        check_size("markov_rank", fields["markov_rank"])
    for name in ("input_embedding_scale", "output_multiplier"):
        check_number(name, fields[name])
    return fields


def _config(
    fields: Mapping[str, Any], target: DecoderConfig, where: str, drafts: DraftHead
) -> DecoderConfig:
    """Return the configuration of a decoder that drafts for the model `target`.

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
    block, mask = drafts.block, drafts.mask
    if type(block) is not int or not _BLOCKS[0] <= block <= _BLOCKS[1]:
        least, most = _BLOCKS
        raise InputError(f"{where}: 'block_size' = {brief(block)} must be from {least} to {most}")
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
        paired=not fields.get("rope_is_neox_style", True),
        qk_norm=True,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
        drafts=drafts,
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


def _layers(
    fields: Mapping[str, Any], target: DecoderConfig, where: str, *, ahead: bool
) -> tuple[int, ...]:
    """Return the layers of the model whose inputs are the hidden states: those after the given.

    -1, in a head of DSpark, stands for the embedding's output.

    Raises:
        InputError: They are not in ascending order, or not layers that another one follows.
    """
    given, first, last = fields["target_layer_ids"], -ahead, len(target.layers) - 2
    fit = isinstance(given, list) and given and all(type(each) is int for each in given)
    if not fit or given != sorted(set(given)) or not first <= given[0] <= given[-1] <= last:
        raise InputError(
            f"{where}: 'target_layer_ids' = {brief(given)} must be layers in ascending order, of "
            f"{first} to {last}"
        )
    return tuple(each + 1 for each in given)
