"""A model family: how to read its configuration, and the names of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from suffice.decoder.config import DecoderConfig
from suffice.decoder.name_maps import Templates
from suffice.errors import InputError, brief
from suffice.registry import Table

__all__ = ["ARCHITECTURES", "Family", "family_of"]

_CLOSE = 0.85  # of stems: Gemma4 is not a misspelt Gemma3 (nor Gemma), Lama is Llama


@dataclass(frozen=True)
class Family:
    """One family of checkpoints.

    `weights` maps canonical names to the checkpoint's, both without `.weight` or `.bias` and with
    `{i}` instead of a layer's index, or to slices of what is stored as one (see `name_maps`).
    Checkpoints without a head leave out the prefix `base` of names. `norm_offset` is what the
    family adds to the stored weights of its norms. Stored weights that match `surplus` carry no
    information of their own. `called` are patterns of stored names that have no `.weight`, each
    with what such a name becomes. `predicts`: layers after the last, which draft further tokens,
    are left out. `in_codes` replaces `weights` where another program has quantized
    the folder.
    """

    name: str
    read: Callable[[dict[str, Any]], DecoderConfig]
    weights: Templates
    norm_offset: float = 0.0
    surplus: tuple[str, ...] = ()
    base: str = "model."
    called: tuple[tuple[str, str], ...] = ()
    in_codes: Templates | None = None
    predicts: bool = False


ARCHITECTURES: Table = Table(
    "architecture",
    {
        "ArceeForCausalLM": "suffice.decoder.families.arcee:ARCEE",
        "Cohere2ForCausalLM": "suffice.decoder.families.cohere:COHERE2",
        "CohereForCausalLM": "suffice.decoder.families.cohere:COHERE",
        "DeepseekV2ForCausalLM": "suffice.decoder.families.deepseek:DEEPSEEK_V2",
        "DeepseekV3ForCausalLM": "suffice.decoder.families.deepseek:DEEPSEEK_V3",
        "Ernie4_5ForCausalLM": "suffice.decoder.families.ernie:ERNIE",
        "Exaone4ForCausalLM": "suffice.decoder.families.exaone4:EXAONE4",
        "FalconForCausalLM": "suffice.decoder.families.falcon:FALCON",
        "GPT2LMHeadModel": "suffice.decoder.families.gpt2:GPT2",
        "GPTJForCausalLM": "suffice.decoder.families.gptj:GPTJ",
        "GPTNeoXForCausalLM": "suffice.decoder.families.neox:NEOX",
        "Gemma2ForCausalLM": "suffice.decoder.families.gemma:GEMMA2",
        "Gemma3ForCausalLM": "suffice.decoder.families.gemma:GEMMA3",
        "GemmaForCausalLM": "suffice.decoder.families.gemma:GEMMA",
        "Glm4ForCausalLM": "suffice.decoder.families.glm:GLM4",
        "Glm4MoeForCausalLM": "suffice.decoder.families.glm_moe:GLM4_MOE",
        "Glm4MoeLiteForCausalLM": "suffice.decoder.families.glm_lite:GLM4_MOE_LITE",
        "GlmForCausalLM": "suffice.decoder.families.glm:GLM",
        "GptOssForCausalLM": "suffice.decoder.families.gpt_oss:GPT_OSS",
        "GraniteForCausalLM": "suffice.decoder.families.granite:GRANITE",
        "GraniteMoeForCausalLM": "suffice.decoder.families.granite:GRANITE_MOE",
        "HeliumForCausalLM": "suffice.decoder.families.ernie:HELIUM",
        "HunYuanDenseV1ForCausalLM": "suffice.decoder.families.hunyuan:HUNYUAN",
        "HunYuanMoEV1ForCausalLM": "suffice.decoder.families.hunyuan:HUNYUAN_MOE",
        "LlamaForCausalLM": "suffice.decoder.families.llama:LLAMA",
        "Ministral3ForCausalLM": "suffice.decoder.families.mistral:MINISTRAL3",
        "MiniCPM3ForCausalLM": "suffice.decoder.families.minicpm:MINICPM3",
        "MinistralForCausalLM": "suffice.decoder.families.mistral:MINISTRAL",
        "Mistral4ForCausalLM": "suffice.decoder.families.mistral4:MISTRAL4",
        "MistralForCausalLM": "suffice.decoder.families.mistral:MISTRAL",
        "MixtralForCausalLM": "suffice.decoder.families.mixtral:MIXTRAL",
        "NemotronForCausalLM": "suffice.decoder.families.arcee:NEMOTRON",
        "OPTForCausalLM": "suffice.decoder.families.opt:OPT",
        "Olmo2ForCausalLM": "suffice.decoder.families.olmo:OLMO2",
        "Olmo3ForCausalLM": "suffice.decoder.families.olmo:OLMO3",
        "OlmoeForCausalLM": "suffice.decoder.families.olmo:OLMOE",
        "Phi3ForCausalLM": "suffice.decoder.families.phi:PHI3",
        "PhiForCausalLM": "suffice.decoder.families.phi:PHI",
        "Qwen2ForCausalLM": "suffice.decoder.families.qwen:QWEN2",
        "Qwen2MoeForCausalLM": "suffice.decoder.families.qwen_moe:QWEN2_MOE",
        "Qwen3ForCausalLM": "suffice.decoder.families.qwen:QWEN3",
        "Qwen3MoeForCausalLM": "suffice.decoder.families.qwen_moe:QWEN3_MOE",
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
    """Build the error for an architecture; suggest another only if this one is misspelt."""
    name = brief(name)[1:-1]
    stem = name.partition("For")[0]
    stems = {known.partition("For")[0]: known for known in ARCHITECTURES.names()}
    misspelt = [
        each
        for each in stems
        if each == stem or not (each.startswith(stem) or stem.startswith(each))
    ]
    near = get_close_matches(stem, misspelt, n=1, cutoff=_CLOSE)
    hint = f" Did you mean '{stems[near[0]]}'?" if near else ""
    count = len(ARCHITECTURES.names())
    return InputError(f"unknown architecture '{name}'.{hint} {count} are known: see docs/models.md")
