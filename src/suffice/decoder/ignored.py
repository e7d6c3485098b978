"""Fields of a `config.json` that change nothing of what a decoder computes.

Three kinds: fields of transformers itself for training, generation and bookkeeping, which nearly
every file has; names and patterns that other programs leave behind; and fields that say no.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from suffice.attention.calibration import FIELD
from suffice.errors import SufficeWarning, brief

# Fields that transformers writes or takes, and one for techniques: ignored without a word.
_TRANSFORMERS = """
    _attn_implementation _attn_implementation_autoset _commit_hash _from_model_config
    _name_or_path activation_dropout architectures assistant_confidence_threshold
    assistant_early_exit assistant_ensemble_weight assistant_lookbehind attention_dropout
    attn_implementation bad_words_ids begin_suppress_tokens bos_token_id cache_config
    cache_implementation chunk_size_feed_forward classifier_dropout compile_config constraints
    continuous_batching_config decoder_start_token_id disable_compile diversity_penalty
    do_sample dola_layers dropout dtype early_stopping encoder_no_repeat_ngram_size
    encoder_repetition_penalty eos_token_id epsilon_cutoff eta_cutoff
    exponential_decay_length_penalty finetuning_task force_words_ids forced_bos_token_id
    forced_decoder_ids forced_eos_token_id gradient_checkpointing guidance_scale hidden_dropout
    id2label init_std initializer_range is_assistant is_llama_config keys_to_ignore_at_inference
    label2id layerdrop length_penalty low_memory max_cache_len max_length
    max_matching_ngram_size max_new_tokens max_time min_length min_new_tokens min_p model_type
    no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups
    num_beams num_labels num_return_sequences output_attentions output_hidden_states
    output_logits output_past output_scores pad_token_id penalty_alpha prefill_chunk_size prefix
    pretraining_tp problem_type prompt_lookup_num_tokens remove_invalid_values
    renormalize_logits repetition_penalty return_dict return_dict_in_generate sep_token_id
    sequence_bias speculation_type stop_strings suppress_tokens target_lookbehind
    task_specific_params temperature tf_legacy_loss tie_last_hidden_states token_healing
    tokenizer_class top_h top_k top_p torch_dtype torchscript transformers.js_config
    transformers_version trust_remote_code typical_p use_cache use_model_defaults use_mtp
    watermarking_config
"""
SILENT = frozenset([*_TRANSFORMERS.split(), FIELD])
# Fields that other programs leave: ignored, and told.
_LEFT_BEHIND = re.compile(
    "|".join(
        [
            # names of tools, files and people
            r"_?(adapter|axolotl|lora|mergekit|mlx|peft|trl|unsloth|wandb)_.*",
            r".*(name_or_path|_version|_commit|_hash)",
            r"(author|authors|auto_map|base_model|description|language|languages|license|tags)",
            r"(base_model_name|custom_pipelines|date|model_name|name|version)",
            # training
            r".*(dropout|_pdrop)(_.*)?",
            r"_?gradient_(accumulation|checkpointing).*",
            r"(init|initializer|label_smoothing|summary|train|training|warmup)_.*",
            r"(.*_)?loss(_.*)?",
            r"(deepspeed|learning_rate|lr|optimizer|use_reentrant|weight_decay)(_.*)?",
            r"(max_seq_length|max_sequence_length|model_max_length|seq_length)",
            # how other programs run the model
            r"_?(use_)?flash_att.*",
            r"_?(attn|experts)_implementation.*",
            r"use_(kernels|sdpa|xformers|.*efficient_attention)",
            r"(cache|device_map|tensor_parallel|vllm|world_size)(_.*)?",
            r"suffice_attention",  # `suffice.integrations.plain_attention`
            r"(compression|quantization)_config|quantization",  # of weights that are stored whole
            # text and labels
            r".*_token(_ids?)?",
            r"(chat_template|classifier_.*|generation_config|num_choices|tokenizer_.*)",
        ]
    )
)
# What the decoder always does, and weights would not show: "no" would be a change.
_ALWAYS = """
    causal embed embedding embeddings mask normalization normalize position positional positions
    rope rotary scale scaling softmax tie tied
"""
_MOST_TOLD = 8  # names in a line
_LONGEST = 100  # a longer name is no name
_SAID = ("quantization_config", "compression_config", "quantization")
_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
_COMPANIONS = re.compile(  # of a weight in codes
    r".*(\.|_)(absmax|biases|g_idx|input_scale|nested_absmax|packed|quant_map|quant_state\..*|"
    r"qweight|qzeros|SCB|scale_inv|scales|weight_scale|zero_point|zeros)"
)


def has_no_effect(name: str, value: Any, read: Collection[str]) -> bool:
    """Whether a field that no family reads can be ignored; `read` are those that this one reads.

    It can if its name says that it is for something else, or if it says no (false, 0 or something
    empty) to something that the decoder does not do anyway. A misspelt name of a field that is read
    is neither.
    """
    if len(name) > _LONGEST:
        return False
    if _LEFT_BEHIND.fullmatch(name):
        return True
    says_no = value in (False, 0, "", [], {})
    return (
        says_no
        and set(_ALWAYS.split()).isdisjoint(name.lower().split("_"))
        and not get_close_matches(name, read, n=1, cutoff=0.9)
    )


def tell(names: Collection[str]) -> None:
    """Warn in one line of the fields that were ignored, unless there are none."""
    if not names:
        return
    listed = ", ".join(brief(name)[1:-1] for name in sorted(names)[:_MOST_TOLD])
    more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
    warnings.warn(
        f"config.json: ignored, because nothing is computed from it: {listed}{more}",
        SufficeWarning,
        stacklevel=2,
    )


def quantized_by(raw: Mapping[str, Any]) -> Any:
    """Return what a configuration says of the program that quantized its weights, or None."""
    return next((raw[name] for name in _SAID if raw.get(name)), None)


def quantization_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in which a configuration says something of that program."""
    return {name: raw[name] for name in _SAID if name in raw}


def without_quantization(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without what it says of that program."""
    return {name: value for name, value in raw.items() if name not in _SAID}


def is_stored_whole(raw: Mapping[str, Any], stored: Mapping[str, str]) -> bool:
    """Return whether a folder's weights are whole, not in codes of another program.

    A configuration may still say so of weights that have been made whole again: what counts is
    what is stored. `stored` has the type of every weight, such as BF16, by its stored name.
    """
    return quantized_by(raw) is None or all(
        kind in _FLOATS and not _COMPANIONS.fullmatch(name) for name, kind in stored.items()
    )
