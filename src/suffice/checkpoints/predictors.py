"""Modules that predict further tokens, in the files of the model itself: multi-token prediction.

DeepSeek V3 and GLM-4.5 store one as the layer after the last, with `enorm`, `hnorm`, `eh_proj` and
`shared_head`; GGUF files have these as `nextn.*`. Qwen3-Next and Qwen3.5 store it as `mtp.*`. Its
layer is one of the model's with attention. If there are several modules, the first is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from suffice.decoder.config import DecoderConfig
from suffice.decoder.draft_head import DraftHead
from suffice.decoder.families import Family
from suffice.decoder.name_maps import Filled, Half, Slice
from suffice.errors import InputError

_SHARED = r"(?:nextn\.)?(?:embed_tokens|shared_head\.head|shared_head_head)\.weight"  # copies


@dataclass(frozen=True)
class _Form:
    """How files name a module: by `marks`, one name of it, with what its layer begins, and `own`.

    `{i}` is the layer after the last. `normed`: it hands on hidden states after its final norm.
    """

    marks: str
    layer: str
    own: Mapping[str, str]
    normed: bool = False


_FORMS = (
    _Form(
        "model.layers.{i}.eh_proj.weight",
        "model.layers.{i}.",
        {
            "embed_norm": "model.layers.{i}.enorm",
            "hidden_norm": "model.layers.{i}.hnorm",
            "join": "model.layers.{i}.eh_proj",
            "final_norm": "model.layers.{i}.shared_head.norm",
        },
    ),
    _Form(
        "blk.{i}.nextn.eh_proj.weight",
        "blk.{i}.",
        {
            "embed_norm": "blk.{i}.nextn.enorm",
            "hidden_norm": "blk.{i}.nextn.hnorm",
            "join": "blk.{i}.nextn.eh_proj",
            "final_norm": "blk.{i}.nextn.shared_head_norm",
        },
    ),
    _Form(
        "mtp.fc.weight",
        "mtp.layers.0.",
        {
            "embed_norm": "mtp.pre_fc_norm_embedding",
            "hidden_norm": "mtp.pre_fc_norm_hidden",
            "join": "mtp.fc",
            "final_norm": "mtp.norm",
        },
        normed=True,
    ),
)


def module_of(
    family: Family, config: DecoderConfig, stored: Mapping[str, object]
) -> tuple[Family, DecoderConfig] | None:
    """Return how to read the module of a model of a family and configuration; None: it has none.

    `stored` has the names of all weights.

    Raises:
        InputError: A module of a model that has a width which the native core does not take.
    """
    last = str(len(config.layers))
    form = next((each for each in _FORMS if each.marks.format(i=last) in stored), None)
    if form is None:
        return None
    if config.width % 16:
        raise InputError(f"'hidden_size' = {config.width} must be a multiple of 16 for 'mtp'")
    own = {name: stem.format(i=last) for name, stem in form.own.items()}
    shared = {"embed", "head"}
    if f"{own['final_norm']}.weight" not in stored:  # as some GGUF files have it
        shared.add("final_norm")
    layer = form.layer.format(i=last)
    templates = {
        name: _moved(template, layer) for name, template in family.weights.items() if "." in name
    }
    ends = "|".join(re.escape(stem) for stem in (layer, *(f"{stem}." for stem in own.values())))
    others = rf"(?!{ends}).*", re.escape(layer) + _SHARED
    found = replace(
        family,
        weights={**family.weights, **templates, **own},
        surplus=others,
        base="",
        predicts=False,
    )
    attends = [each for each in config.layers if each.mixer == "attention"]
    head = DraftHead(
        config.width,
        config.vocab,
        fused=False,
        joined=True,
        normed_own=form.normed or ("nextn" in own["join"] and config.state is not None),
        shared=frozenset(shared),
    )
    return found, replace(
        config, layers=(attends[-1],), tied=False, final_norm=True, state=None, drafts=head
    )


def _moved(template: str | Slice | Half | Filled, layer: str) -> str | Slice | Half | Filled:
    """Return an entry of a name map for a module whose layer's names begin with `layer`."""
    if isinstance(template, Filled):
        return template
    if isinstance(template, str):
        return layer + template.partition("{i}.")[2]
    return replace(template, stored=layer + template.stored.partition("{i}.")[2])
