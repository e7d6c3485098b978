"""Random tiny checkpoints of models that see or hear as well, made by transformers itself."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import tiny
from tiny import VARIANTS

_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_QWEN = {"depth": 1, "hidden_size": 32, "num_heads": 2, "patch_size": 14}
_AXES = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_QWEN35 = {**_QWEN, "intermediate_size": 32, "out_hidden_size": 64, "num_position_embeddings": 16}
_TURNED = {**_AXES, "partial_rotary_factor": 0.5, "mrope_interleaved": True}
_LLAMA = {"model_type": "llama", **VARIANTS["llama"][1]}
# architecture: fields of its text part, of what sees or hears, and of the whole
MIXED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "Cohere2Vision": (
        {"model_type": "cohere2", **VARIANTS["cohere2"][1]},
        {"model_type": "siglip_vision_model", **_VISION},
        {},
    ),
    "Gemma3": (VARIANTS["gemma3"][1], _VISION, {"mm_tokens_per_image": 4}),
    "Gemma4": (
        VARIANTS["gemma4"][1],
        {**_VISION, "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 64},
        {"audio_config": None},
    ),
    "Idefics3": (_LLAMA, _VISION, {}),
    "InternVL": (
        {"model_type": "qwen2", **VARIANTS["qwen2"][1]},
        {**_VISION, "image_size": [28, 28], "patch_size": [14, 14]},
        {},
    ),
    "Lfm2Vl": (
        {"model_type": "lfm2", **VARIANTS["lfm2"][1]},
        {"model_type": "siglip2_vision_model", **_VISION, "num_patches": 4},
        {"downsample_factor": 1},
    ),
    "Llama4": (
        VARIANTS["llama4"][1],
        {
            **_VISION,
            "intermediate_size": 128,
            **dict.fromkeys(("vision_output_dim", "projector_input_dim"), 32),
            "projector_output_dim": 32,
        },
        {},
    ),
    "Llava": (_LLAMA, {"model_type": "clip_vision_model", **_VISION, "projection_dim": 32}, {}),
    "LlavaNext": (
        {"model_type": "mistral", **VARIANTS["mistral"][1]},
        {"model_type": "clip_vision_model", **_VISION, "projection_dim": 32},
        {},
    ),
    "Mistral3": (
        {"model_type": "ministral3", **VARIANTS["ministral3"][1]},
        {"model_type": "pixtral", **_VISION, "head_dim": 16},
        {},
    ),
    "Mistral3, mistral4": (
        {"model_type": "mistral4", **VARIANTS["mistral4"][1]},
        {"model_type": "pixtral", **_VISION, "head_dim": 16},
        {},
    ),
    "Qwen2VL": (
        {**VARIANTS["qwen2"][1], "rope_parameters": _AXES},
        {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2},
        {},
    ),
    "Qwen2_5_VL": (
        {**VARIANTS["qwen2"][1], "rope_parameters": _AXES},
        {**_QWEN, "intermediate_size": 32, "out_hidden_size": 64, "fullatt_block_indexes": [0]},
        {"tie_word_embeddings": True},
    ),
    "Qwen3VL": (
        {**VARIANTS["qwen3"][1], "rope_parameters": {**_AXES, "mrope_interleaved": True}},
        {**_QWEN, "intermediate_size": 32, "out_hidden_size": 64, "deepstack_visual_indexes": [0]},
        {},
    ),
    "Qwen3_5": ({**VARIANTS["qwen3.5"][1], "rope_parameters": _TURNED}, _QWEN35, {}),
    "Qwen3_5Moe": ({**VARIANTS["qwen3.5-moe"][1], "rope_parameters": _TURNED}, _QWEN35, {}),
    "SmolVLM": (_LLAMA, _VISION, {}),
}


def make(folder: Path, name: str) -> Any:
    """Write a checkpoint directory with a tokenizer, and return the model of transformers."""
    import transformers

    text, vision, whole = MIXED[name]
    name = name.partition(",")[0]
    folder.mkdir()
    size = tiny.write_tokenizer(folder)
    made = getattr(transformers, f"{name}Config")
    fields = {name: size for name in ("vocab_size", "vocab_size_per_layer_input") if name in text}
    config = made(text_config={**text, **fields}, vision_config=vision, **whole)
    with contextlib.redirect_stderr(io.StringIO()):
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config).float().eval()
        tiny.fill(model, 0, centred=name == "Gemma3")
        model.save_pretrained(folder)
    return model
