"""The weights that a decoder needs, by canonical name.

Names: `embed`, `embed_norm`, `positions`, `project_in`, `project_out`, `final_norm`, `head`, those
of `blocks.LAYER_EMBEDS`, of what drafts `fuse`, `join`, `hidden_norm`, `hand_on` and `groups`, and
for each layer `layers.0.q`, ...; a bias is the name of its matrix or norm and `.bias`.
"""

from __future__ import annotations

import math

from suffice.decoder.blocks import LAYER_EMBEDS, MATRICES
from suffice.decoder.config import DecoderConfig
from suffice.decoder.draft_head import DraftHead

# around the layers
AROUND = ("embed", "head", "project_in", "project_out", "fuse", "join", "groups", *LAYER_EMBEDS)
LINEARS = (*MATRICES, *AROUND, "hand_on")


def is_linear(name: str) -> bool:
    """Return whether a canonical name, without `.bias`, is a matrix [N, K] to pack."""
    return name.rpartition(".")[2] in LINEARS


def is_norm(name: str) -> bool:
    """Return whether a canonical name is the weight of a norm of hidden states, queries or keys."""
    return name.endswith("norm") and not name.endswith("mix_norm")


def shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of a decoder; a bias comes before its matrix."""
    width, embed_width = config.width, config.embed_width
    drafts = config.drafts
    embedded = config.vocab if drafts is None else drafts.vocab
    found: dict[str, tuple[int, ...]] = {"embed": (embedded, embed_width)}
    if drafts is not None:
        found |= _of_draft_head(config, drafts)
    if config.position_rows:
        found["positions"] = (config.position_rows, width)
    if config.embed_norm:
        found.update(_norm(config, "embed_norm"))
    if config.projected:
        found["project_in"] = (width, embed_width)
        found["project_out"] = (embed_width, width)
    if config.layer_embed_size:
        found |= _layer_embeddings(config)
    for index in range(len(config.layers)):
        layer = _layer_shapes(config, index)
        found.update({f"layers.{index}.{name}": shape for name, shape in layer.items()})
    if config.final_norm:
        found.update(_norm(config, "final_norm"))
    if not config.tied:
        found.update(
            _matrix(config, "head", (config.vocab, embed_width if drafts is None else width))
        )
    shared = drafts.shared if drafts is not None else ()
    return {name: shape for name, shape in found.items() if name not in shared}


def _of_draft_head(config: DecoderConfig, drafts: DraftHead) -> dict[str, tuple[int, ...]]:
    width = config.width
    if drafts.plain:
        pairs = {"join": (width, 2 * drafts.hidden), "hand_on": (drafts.hidden, width)}
        return {**pairs, **({"groups": (drafts.groups, width)} if drafts.groups else {})}
    fuse = {"fuse": (width, drafts.hidden)} if drafts.fused else {}
    join = {"join": (width, 2 * width)} if drafts.joined else {}
    norms = _norm(config, "hidden_norm")
    if not drafts.block:
        norms |= _norm(config, "embed_norm")
    return {**fuse, **norms, **join}


def weight_count(config: DecoderConfig) -> int:
    """Return the number of weights of a decoder."""
    return sum(map(math.prod, shapes(config).values()))


def _layer_shapes(config: DecoderConfig, index: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for block in config.blocks(index):
        for name in config.norms(block, index).values():
            found.update(_norm(config, name))
        found.update(block.vectors)
        for name, shape in block.matrices.items():
            found.update(_matrix(config, name, shape))
    if config.layer_scales:
        found["scale"] = (1,)
    return found


def _layer_embeddings(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    entries = len(config.layers) * config.layer_embed_size
    table, project = LAYER_EMBEDS
    return {
        table: (config.vocab, entries),
        project: (entries, config.width),
        "layer_embed_norm": (config.layer_embed_size,),
    }


def _matrix(config: DecoderConfig, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    bias = {f"{name}.bias": shape[:1]} if name in config.biases else {}
    return {**bias, name: shape}


def _norm(config: DecoderConfig, name: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {name: (config.width,)}
    if config.norm == "layer" and config.norm_biases:
        found[f"{name}.bias"] = (config.width,)
    return found
