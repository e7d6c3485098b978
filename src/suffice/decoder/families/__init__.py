"""A model family: how to read its configuration, and the names of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.decoder.config import DecoderConfig
from suffice.decoder.families.missing import MISSING
from suffice.decoder.name_maps import Templates
from suffice.errors import InputError, brief
from suffice.registry import Table

__all__ = ["ARCHITECTURES", "Change", "Family", "family_of"]

Change = Callable[[NDArray[np.float32]], NDArray[np.float32]]

_CLOSE = 0.85  # of stems: Gemma4 is not a misspelt Gemma3 (nor Gemma), Lama is Llama


@dataclass(frozen=True)
class Family:
    """One family of checkpoints.

    `weights` maps canonical names to the checkpoint's, both without `.weight` or `.bias` and with
    `{i}` instead of a layer's index, or to slices of what is stored as one (see `name_maps`).
    Checkpoints without a head leave out the prefix `base` of names. `norm_offset` is what the
    family adds to the stored weights of its norms, and `changes` make vectors, by the last part of
    their canonical names, from what is stored. Stored weights that match `surplus` carry no
    information of their own. `called` are patterns of stored names that have no `.weight`, each
    with what such a name becomes. `predicts`: layers after the last, which draft further tokens,
    are left out. `in_codes` replaces `weights` where another program has quantized
    the folder.
    """

    name: str
    read: Callable[[dict[str, Any]], DecoderConfig]
    weights: Templates
    norm_offset: float = 0.0
    changes: Mapping[str, Change] = field(default_factory=dict)
    surplus: tuple[str, ...] = ()
    base: str = "model."
    called: tuple[tuple[str, str], ...] = ()
    in_codes: Templates | None = None
    predicts: bool = False


ARCHITECTURES: Table = Table(
    "architecture",
    {
        "ApertusForCausalLM": "suffice.decoder.families.apertus:APERTUS",
        "ArceeForCausalLM": "suffice.decoder.families.arcee:ARCEE",
        "BambaForCausalLM": "suffice.decoder.families.bamba:BAMBA",
        "Cohere2ForCausalLM": "suffice.decoder.families.cohere:COHERE2",
        "CohereForCausalLM": "suffice.decoder.families.cohere:COHERE",
        "DeepseekV2ForCausalLM": "suffice.decoder.families.deepseek:DEEPSEEK_V2",
        "DeepseekV3ForCausalLM": "suffice.decoder.families.deepseek:DEEPSEEK_V3",
        "Ernie4_5ForCausalLM": "suffice.decoder.families.ernie:ERNIE",
        "Ernie4_5_MoeForCausalLM": "suffice.decoder.families.ernie_moe:ERNIE_MOE",
        "Exaone4ForCausalLM": "suffice.decoder.families.exaone4:EXAONE4",
        "FalconForCausalLM": "suffice.decoder.families.falcon:FALCON",
        "FalconH1ForCausalLM": "suffice.decoder.families.falcon_h1:FALCON_H1",
        "GPT2LMHeadModel": "suffice.decoder.families.gpt2:GPT2",
        "GPTJForCausalLM": "suffice.decoder.families.gptj:GPTJ",
        "GPTNeoXForCausalLM": "suffice.decoder.families.neox:NEOX",
        "Gemma2ForCausalLM": "suffice.decoder.families.gemma:GEMMA2",
        "Gemma3ForCausalLM": "suffice.decoder.families.gemma:GEMMA3",
        "Gemma4ForCausalLM": "suffice.decoder.families.gemma4:GEMMA4",
        "GemmaForCausalLM": "suffice.decoder.families.gemma:GEMMA",
        "Glm4ForCausalLM": "suffice.decoder.families.glm:GLM4",
        "Glm4MoeForCausalLM": "suffice.decoder.families.glm_moe:GLM4_MOE",
        "Glm4MoeLiteForCausalLM": "suffice.decoder.families.glm_lite:GLM4_MOE_LITE",
        "GlmForCausalLM": "suffice.decoder.families.glm:GLM",
        "GptOssForCausalLM": "suffice.decoder.families.gpt_oss:GPT_OSS",
        "GraniteForCausalLM": "suffice.decoder.families.granite:GRANITE",
        "GraniteMoeForCausalLM": "suffice.decoder.families.granite:GRANITE_MOE",
        "GraniteMoeHybridForCausalLM": "suffice.decoder.families.granite_shared:GRANITE_HYBRID",
        "GraniteMoeSharedForCausalLM": "suffice.decoder.families.granite_shared:GRANITE_SHARED",
        "HeliumForCausalLM": "suffice.decoder.families.ernie:HELIUM",
        "HunYuanDenseV1ForCausalLM": "suffice.decoder.families.hunyuan:HUNYUAN",
        "HunYuanMoEV1ForCausalLM": "suffice.decoder.families.hunyuan:HUNYUAN_MOE",
        "KimiLinearForCausalLM": "suffice.decoder.families.kimi:KIMI",
        "Lfm2ForCausalLM": "suffice.decoder.families.lfm:LFM2",
        "Lfm2MoeForCausalLM": "suffice.decoder.families.lfm:LFM2_MOE",
        "Llama4ForCausalLM": "suffice.decoder.families.llama4:LLAMA4",
        "LlamaForCausalLM": "suffice.decoder.families.llama:LLAMA",
        "Ministral3ForCausalLM": "suffice.decoder.families.mistral:MINISTRAL3",
        "MiniCPM3ForCausalLM": "suffice.decoder.families.minicpm:MINICPM3",
        "MinistralForCausalLM": "suffice.decoder.families.mistral:MINISTRAL",
        "Mistral4ForCausalLM": "suffice.decoder.families.mistral4:MISTRAL4",
        "MistralForCausalLM": "suffice.decoder.families.mistral:MISTRAL",
        "MixtralForCausalLM": "suffice.decoder.families.mixtral:MIXTRAL",
        "NanoChatForCausalLM": "suffice.decoder.families.nanochat:NANOCHAT",
        "NemotronForCausalLM": "suffice.decoder.families.arcee:NEMOTRON",
        "NemotronHForCausalLM": "suffice.decoder.families.nemotron_h:NEMOTRON_H",
        "OPTForCausalLM": "suffice.decoder.families.opt:OPT",
        "Olmo2ForCausalLM": "suffice.decoder.families.olmo:OLMO2",
        "Olmo3ForCausalLM": "suffice.decoder.families.olmo:OLMO3",
        "OlmoHybridForCausalLM": "suffice.decoder.families.olmo_hybrid:OLMO_HYBRID",
        "OlmoeForCausalLM": "suffice.decoder.families.olmo:OLMOE",
        "Phi3ForCausalLM": "suffice.decoder.families.phi:PHI3",
        "PhiForCausalLM": "suffice.decoder.families.phi:PHI",
        "PhimoeForCausalLM": "suffice.decoder.families.phi_moe:PHI_MOE",
        "Qwen2ForCausalLM": "suffice.decoder.families.qwen:QWEN2",
        "Qwen2MoeForCausalLM": "suffice.decoder.families.qwen_moe:QWEN2_MOE",
        "Qwen3ForCausalLM": "suffice.decoder.families.qwen:QWEN3",
        "Qwen3MoeForCausalLM": "suffice.decoder.families.qwen_moe:QWEN3_MOE",
        "Qwen3NextForCausalLM": "suffice.decoder.families.qwen_next:QWEN3_NEXT",
        "Qwen3_5ForCausalLM": "suffice.decoder.families.qwen_next:QWEN3_5",
        "Qwen3_5MoeForCausalLM": "suffice.decoder.families.qwen_next:QWEN3_5_MOE",
        "SeedOssForCausalLM": "suffice.decoder.families.seed_oss:SEED_OSS",
        "SmolLM3ForCausalLM": "suffice.decoder.families.smollm:SMOLLM3",
        "StableLmForCausalLM": "suffice.decoder.families.stablelm:STABLELM",
        "Starcoder2ForCausalLM": "suffice.decoder.families.starcoder:STARCODER2",
        "YoutuForCausalLM": "suffice.decoder.families.youtu:YOUTU",
    },
)


def family_of(raw: Mapping[str, Any]) -> Family:
    """Return the family that a checkpoint's configuration names under `architectures`.

    Raises:
        InputError: It names none, several or an unknown one, or `model_type` is another's.
    """
    names = raw.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise InputError(
            f"config field 'architectures' = {brief(names)} must be a list of one name, "
            "such as ['LlamaForCausalLM']"
        )
    name = _with_head(names[0])
    if name not in ARCHITECTURES.entries:
        raise _unsupported(name)
    family: Any = ARCHITECTURES.load(name)
    assert isinstance(family, Family)
    given = raw.get("model_type", family.name)
    if given != family.name:
        raise InputError(
            f"config field 'model_type' = {brief(given)} contradicts 'architectures' = "
            f"{brief(names)}, whose model_type is '{family.name}'"
        )
    return family


def _with_head(name: str) -> str:
    """Return the class with a head, given that or the one without, such as `MistralModel`."""
    stem = name.removesuffix("Model")
    classes = [f"{stem}{head}" for head in ("ForCausalLM", "LMHeadModel")]
    return next((each for each in classes if each in ARCHITECTURES.entries), name)


def _unsupported(name: str) -> InputError:
    """Build the error for an architecture: what it needs, or another if this one is misspelt."""
    name, count = brief(name)[1:-1], len(ARCHITECTURES.names())
    known = f"{count} are known: see docs/models.md"
    if name in MISSING:
        return InputError(f"unsupported architecture '{name}': it needs {MISSING[name]}. {known}")
    stem = name.partition("For")[0]
    stems = {known.partition("For")[0]: known for known in ARCHITECTURES.names()}
    misspelt = [
        each
        for each in stems
        if each == stem or not (each.startswith(stem) or stem.startswith(each))
    ]
    near = get_close_matches(stem, misspelt, n=1, cutoff=_CLOSE)
    hint = f" Did you mean '{stems[near[0]]}'?" if near else ""
    return InputError(f"unknown architecture '{name}'.{hint} {known}")
