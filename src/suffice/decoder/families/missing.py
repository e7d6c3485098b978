"""What the decoder lacks for well-known architectures, which is what their refusal says."""

from __future__ import annotations

from collections.abc import Mapping

_DISTANCE = "a bias of scores by distance (ALiBi)"
_MAMBA1 = "states whose entries decay each on its own (Mamba-1)"
_ALONE = "a cache without layers of attention"
_BOTH_WAYS = "attention in both directions"

MISSING: Mapping[str, str] = {
    "BartForConditionalGeneration": "an encoder",
    "BertModel": _BOTH_WAYS,
    "BloomForCausalLM": _DISTANCE,
    "DbrxForCausalLM": "queries, keys and values that are clamped",
    "FalconMambaForCausalLM": _MAMBA1,
    "Gemma4AssistantForCausalLM": "the Gemma 4 that it drafts for, `--speculate mtp:model=...`",
    "Gemma3nForCausalLM": "embeddings of each layer, and several residual streams",
    "Gemma3nForConditionalGeneration": "embeddings of each layer, and several residual streams",
    "JambaForCausalLM": _MAMBA1,
    "Mamba2ForCausalLM": _ALONE,
    "MambaForCausalLM": _MAMBA1,
    "MllamaForConditionalGeneration": "attention to an image in some layers",
    "ModernBertModel": _BOTH_WAYS,
    "MptForCausalLM": _DISTANCE,
    "PaliGemmaForConditionalGeneration": "a prompt whose tokens see each other in both directions",
    "RecurrentGemmaForCausalLM": "recurrent units with gates of their own (RG-LRU)",
    "T5ForConditionalGeneration": "an encoder",
    "XLMRobertaModel": _BOTH_WAYS,
    "Zamba2ForCausalLM": "blocks that several layers share",
}
