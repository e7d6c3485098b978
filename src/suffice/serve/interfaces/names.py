"""Names of fields that requests may have besides those of their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.errors import nearest, one_line
from suffice.serve.errors import Problem

MOST_SHOWN = 200  # characters of a fault
IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "prediction", "obfuscation"),
        *("timings_per_token", "prompt_cache_options"),
        # Of samplers that must be off: see below.
        *("dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers"),
        *("dynatemp_exponent", "mirostat_eta", "mirostat_tau", "xtc_threshold"),
    }
)
# Fields that would change the answer, with the values that ask for nothing.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "audio": (None,),
    "modalities": (None, ["text"]),
    "web_search_options": (None,),
    "functions": (None, []),
    "function_call": (None, "none"),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "prompt_logprobs": (None, 0),
    "use_beam_search": (None, False),
    "length_penalty": (None, 1.0),
}
# Names of vLLM and llama.cpp for what is here under another name, with the same meaning.
_SAME: Mapping[str, str] = {
    **{
        f"guided_{form}": f"structured_outputs.{form}"
        for form in ("json", "regex", "choice", "grammar")
    },
    "grammar": "structured_outputs.grammar",
    "json_schema": "structured_outputs.json",
    "n_predict": "max_tokens",
    "reasoning_budget": "thinking_token_budget",
    "thinking_budget_tokens": "thinking_token_budget",
}
# Names of theirs for what is like a field here, or None: what is not here. They are never ignored,
# unless their value asks for nothing.
_ELSEWHERE: Mapping[str, str | None] = {
    "n_probs": "logprobs",
    "return_tokens": "return_token_ids",
    "repeat_penalty": "repetition_penalty",
    **dict.fromkeys(
        (
            *("typical_p", "tfs_z", "mirostat", "dynatemp_range", "xtc_probability", "top_n_sigma"),
            *("dry_multiplier", "repeat_last_n", "min_keep", "samplers", "lora"),
            *("t_max_predict_ms", "n_indent", "n_keep", "image_data", "early_stopping"),
            *("logits_processors", "documents", "mm_processor_kwargs", "chat_template"),
            *("reasoning_format", "add_special_tokens", "thinking", "echo", "moderation"),
            *("kv_transfer_params", "vllm_xargs", "parse_tool_calls", "post_sampling_probs"),
            *("response_fields", "return_tokens_as_token_ids", "spaces_between_special_tokens"),
            *("n_cmpl", "adaptive_target", "repetition_detection", "data_parallel_rank"),
            "reasoning_budget_tokens",
            # Of requests that embed, rank or decide, or of others at their paths.
            *("embed_dtype", "embd_normalize", "endianness", "use_activation", "softmax"),
            *("truncation_side", "max_tokens_per_doc", "queries", "data_1", "data_2"),
            *("additional_data", "messages", "chat_template_kwargs", "add_generation_prompt"),
            *("instructions", "temperature", "logit_bias", "tools", "previous_response_id"),
        )
    ),
}
_NOTHING: Mapping[str, tuple[Any, ...]] = {  # their values that ask for nothing
    **dict.fromkeys(("typical_p", "tfs_z", "repeat_penalty"), (1,)),
    **dict.fromkeys(("mirostat", "dynatemp_range", "xtc_probability", "dry_multiplier"), (0,)),
    **dict.fromkeys(("min_keep", "n_probs", "n_indent", "n_keep", "t_max_predict_ms"), (0,)),
    **dict.fromkeys(("top_n_sigma", "n_predict"), (-1,)),
    **dict.fromkeys(("image_data", "lora", "logits_processors", "documents"), ([],)),
    **dict.fromkeys(("early_stopping", "echo", "post_sampling_probs", "return_tokens"), (False,)),
    "return_tokens_as_token_ids": (False,),
    **dict.fromkeys(("parse_tool_calls", "spaces_between_special_tokens"), (True,)),
    "add_special_tokens": (False,),
    "reasoning_format": ("auto", "deepseek"),
    "reasoning_budget": (-1,),
    "thinking_budget_tokens": (-1,),
}


def settle(given: dict[str, Any], known: Mapping[str, Any], *, allow_unknown: bool) -> None:
    """Rename, remove or refuse the fields of a request that are not `known`.

    Raises:
        Problem: One is unknown, or asks for what is not here.
    """
    for name in list(given):
        if name in known:
            continue
        value = given[name]
        asks = value is not None and value not in _NOTHING.get(name, ())
        if name in _SAME and _SAME[name].partition(".")[0] in known:
            del given[name]
            if asks:
                _rename(given, name, value)
        elif name in REFUSED and value not in REFUSED[name]:
            raise Problem("unsupported", f"'{name}' is not supported here", param=name)
        elif name in IGNORED or name in REFUSED or (name in _OTHERS and not asks):
            del given[name]
        elif name in _OTHERS or not allow_unknown:
            raise _unknown(name, known)
        else:
            del given[name]


_OTHERS = frozenset({*_SAME, *_ELSEWHERE})


def _rename(given: dict[str, Any], name: str, value: Any) -> None:
    """Put a value where it is called otherwise.

    Raises:
        Problem: There is another value.
    """
    field, _, part = _SAME[name].partition(".")
    if given.get(field) is not None:
        message = f"{name} and {field} are the same: give one"
        raise Problem("invalid_value", message, param=name)
    given[field] = {part: value} if part else value


def _unknown(name: str, known: Mapping[str, Any]) -> Problem:
    own = _ELSEWHERE.get(name)
    if own is not None and own in known:
        near = f" Use '{own}'."
    elif name in _OTHERS:
        return Problem("unsupported", f"'{name}' is not supported here", param=name)
    else:
        near = nearest(name[:MOST_SHOWN], sorted(known))
    message = f"unknown field '{one_line(name, 60)}'.{near}"
    return Problem("unknown_field", message, param=name[:60])
