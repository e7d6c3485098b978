"""The text part of a checkpoint that sees or hears as well: its configuration and its weights.

Such a `config.json` has the text model's fields in `text_config`, or among its own. The text model
is one of the families; what sees or hears is left out.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suffice.checkpoints.formats.hf_folder import FolderTensors
from suffice.decoder.ignored import quantization_of
from suffice.decoder.rope_fields import of_one_axis
from suffice.errors import InputError, SufficeWarning, brief, unknown

_QWEN2_VL: Mapping[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "max_window_layers": 80,
}
# model_type of a text_config: the text model's class, and the defaults that are not that class's
TEXTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "cohere2": ("Cohere2ForCausalLM", {}),
    "gemma3_text": ("Gemma3ForCausalLM", {}),
    "gemma4_text": ("Gemma4ForCausalLM", {}),
    "lfm2": ("Lfm2ForCausalLM", {}),
    "llama": ("LlamaForCausalLM", {}),
    "llama4_text": ("Llama4ForCausalLM", {}),
    "ministral3": ("Ministral3ForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {}),
    "mistral4": ("Mistral4ForCausalLM", {}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2_5_vl_text": ("Qwen2ForCausalLM", _QWEN2_VL),
    "qwen2_vl_text": ("Qwen2ForCausalLM", _QWEN2_VL),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_5_moe_text": ("Qwen3_5MoeForCausalLM", {}),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", {}),
    "qwen3_vl_text": (
        "Qwen3ForCausalLM",
        {"max_position_embeddings": 128000, "rope_theta": 500_000.0},
    ),
}
# architecture: the model_type of its text part if the file does not say it
MIXED: Mapping[str, str] = {
    "AyaVisionForConditionalGeneration": "cohere2",
    "Cohere2VisionForConditionalGeneration": "cohere2",
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "Gemma4ForConditionalGeneration": "gemma4_text",
    "Idefics3ForConditionalGeneration": "llama",
    "InternVLForConditionalGeneration": "qwen2",
    "Llama4ForConditionalGeneration": "llama4_text",
    "Lfm2VlForConditionalGeneration": "lfm2",
    "LlavaForConditionalGeneration": "llama",
    "LlavaNextForConditionalGeneration": "llama",
    "LlavaOnevisionForConditionalGeneration": "qwen2",
    "Mistral3ForConditionalGeneration": "mistral",
    "Qwen2VLForConditionalGeneration": "qwen2_vl_text",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl_text",
    "Qwen3VLForConditionalGeneration": "qwen3_vl_text",
    "Qwen3_5ForConditionalGeneration": "qwen3_5_text",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe_text",
    "SmolVLMForConditionalGeneration": "llama",
    "VoxtralForConditionalGeneration": "llama",
}
# stored names of the text part, and what they are called in a folder of that alone
_NAMES = (
    (r"language_model\.(lm_head\..*)", r"\1"),
    (r"language_model\.model\.(.*)", r"model.\1"),
    (r"model\.(language_model|text_model)\.(.*)", r"model.\2"),
)
_LEFT_OUT = re.compile(
    r"(?:model\.)?(audio_tower|connector|embed_audio|embed_vision|image_newline|"
    r"multi_modal_projector|vision_model|vision_tower|visual)(?:\..*)?"
)
_OF_IMAGES = (  # fields of a text part, or next to it, that say nothing of text
    *("architectures", "audio_config", "model_type", "perceiver_config", "pixel_shuffle_factor"),
    *("text_config", "vision_config"),
)


def is_mixed(raw: Mapping[str, Any]) -> bool:
    """Return whether a configuration is of a model that sees or hears as well."""
    names = raw.get("architectures")
    return isinstance(names, list) and len(names) == 1 and names[0] in [*MIXED]


def text_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a mixed model's text part, as a folder of it would have it.

    Raises:
        InputError: `text_config` is no object, or of a model that is not supported.
    """
    given = raw.get("text_config")
    own = raw if given is None else given
    if not isinstance(own, Mapping):
        raise InputError(f"config field 'text_config' = {brief(own)} must be an object")
    kind = MIXED[raw["architectures"][0]]
    kind = kind if given is None else own.get("model_type", kind)
    if not isinstance(kind, str) or kind not in TEXTS:
        shown = kind if isinstance(kind, str) else brief(kind)
        raise unknown("value of config field 'text_config.model_type'", shown, TEXTS)
    name, defaults = TEXTS[kind]
    fields = {key: value for key, value in own.items() if key not in _OF_IMAGES}
    fields = of_one_axis(fields)
    tied = next((each["tie_word_embeddings"] for each in (raw, own) if _ties(each)), True)
    return {
        **defaults,
        **fields,
        **quantization_of(raw),
        "architectures": [name],
        "tie_word_embeddings": tied,
    }


def _ties(fields: Mapping[str, Any]) -> bool:
    return isinstance(fields.get("tie_word_embeddings"), bool)


def text_tensors(path: Path, called: Sequence[tuple[str, str]]) -> FolderTensors:
    """Open the tensors of a folder without those that see or hear, and say so in a line.

    Raises:
        InputError: No weights in safetensors, or a missing or damaged file.
    """
    tensors = FolderTensors(path, _NAMES, called)
    matches = {name: _LEFT_OUT.fullmatch(name) for name in tensors.types}
    found = {name: match[1] for name, match in matches.items() if match}
    tensors.leave_out(found)
    if found:
        warnings.warn(_told(list(found.values())), SufficeWarning, stacklevel=2)
    return tensors


def has_head(tensors: FolderTensors) -> bool:
    """Return whether a head is stored."""
    return any(name.startswith("lm_head.") for name in tensors.types)


def _told(parts: Sequence[str]) -> str:
    kinds = [kind for kind, _ in Counter(parts).most_common()]
    return f"the model's text part runs; left out: {len(parts)} tensors of {', '.join(kinds)}"
