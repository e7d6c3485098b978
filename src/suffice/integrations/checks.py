"""Checks of `enable`: refuses unsupported models, calls and checkpoints in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from suffice.attention import ATTENTIONS, in_python
from suffice.checkpoints.files import fingerprint, locate
from suffice.engine.config import Config
from suffice.errors import InputError
from suffice.integrations import UNKNOWN
from suffice.policy import POLICIES

# Options of generate that run drafts with the prompt, or split the prompt.
_NOT_WHOLE = (
    "assistant_model",
    "assistant_early_exit",
    "prompt_lookup_num_tokens",
    "prefill_chunk_size",
)

# What transformers calls the argument that takes a cache: since 5.24, and before.
_CACHE_ARGUMENTS = ("cache", "past_key_values")


def cache_argument(function: Callable[..., Any]) -> str | None:
    """Return the name of a function's argument that takes a cache; None: it has none."""
    known = inspect.signature(function).parameters
    return next((name for name in _CACHE_ARGUMENTS if name in known), None)


def given_cache(arguments: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the cache among the arguments of a call and the name it was given by."""
    for name in _CACHE_ARGUMENTS:
        if arguments.get(name) is not None:
            return name, arguments[name]
    return _CACHE_ARGUMENTS[0], None


def check_model(model: Any) -> None:
    """Refuse models other than decoders with replaceable attention, on the CPU or on one GPU.

    Raises:
        InputError: It is another model.
    """
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model must be a transformers model, not {type(model).__name__}")
    name = type(model).__name__
    if not model._can_set_attn_implementation():
        raise InputError(f"{name} does not take its attention from transformers' interface")
    places = sorted({str(each.device) for each in model.parameters()})
    if len(places) > 1 or not places[0].startswith(("cpu", "cuda")):
        raise InputError(
            f"{name} is on {', '.join(places)}: only models on the CPU or on one GPU can be enabled"
        )


def check_attention(config: Config) -> None:
    """Refuse a technique without native code.

    Raises:
        InputError: There is none.
    """
    if in_python(config.attention):
        raise InputError(
            f"attention '{ATTENTIONS.name_of(config.attention)}' has no native code, which enabled "
            "models of transformers need: use it with LLM, or `suffice run` and `eval`"
        )


def source_of(what: str, model: Any, checkpoint: Any) -> Any:
    """Return a model's files: `checkpoint`, or if None the source that transformers recorded.

    Raises:
        InputError: Neither is known, but `what` needs it.
    """
    source = checkpoint or model.name_or_path
    if not source:
        raise InputError(
            f"{what}: {type(model).__name__} does not know its files: give checkpoint="
        )
    return source


def head_shape(decoder: Any, layers: int) -> tuple[int, int, int]:
    """Return layers, key/value heads and head size of a transformers configuration."""
    heads = decoder.num_attention_heads
    size = getattr(decoder, "head_dim", None) or decoder.hidden_size // heads
    return layers, getattr(decoder, "num_key_value_heads", None) or heads, size


def check_source(what: str, name: str, hash: str, model: Any, checkpoint: Any) -> None:
    """Refuse a model whose files do not have the hash `hash`, that of the model `name` behind
    `what`.

    Raises:
        InputError: The hash differs, or there are no files.
    """
    source = source_of(what, model, checkpoint)
    found = fingerprint(locate(source))
    if found != hash:
        raise InputError(f"{what}: is of {name} ({hash}); {source} is another model ({found})")


def check_calibration(config: Config, model: Any, checkpoint: Any, layers: int) -> None:
    """Refuse a calibration of another model than the one in `checkpoint`.

    If `checkpoint` is None, it is the source that transformers recorded.

    Raises:
        InputError: The calibration is of another model, or there is no such checkpoint.
    """
    calibration = config.calibration
    if calibration is None:
        return
    source = source_of(f"calibration {calibration.name}", model, checkpoint)
    calibration.check(str(source), fingerprint(locate(source)))
    decoder = model.config.get_text_config(decoder=True)
    heads = decoder.num_attention_heads
    config.rules(layers, head_shape(decoder, layers)[1])
    if calibration.layers and (len(calibration.layers), calibration.heads) != (layers, heads):
        raise InputError(
            f"calibration {calibration.name}: is of {len(calibration.layers)} layers with "
            f"{calibration.heads} heads; {type(model).__name__} has {layers} with {heads}"
        )


def check_generate(config: Config, options: dict[str, Any], defaults: Any) -> None:
    """Refuse options of `generate`, or of its configuration, that the policy does not allow.

    Raises:
        InputError: No cache, or a policy that chooses after the prompt would see more or less.
    """
    given = {name: options.get(name, getattr(defaults, name, None)) for name in _NOT_WHOLE}
    if options.get("use_cache", defaults.use_cache) is False:
        raise InputError("use_cache=False: an enabled model decodes with its cache only")
    policy = config.policy
    for name, value in given.items():
        if value is not None and (policy.at_prompt or policy.one_by_one):
            raise InputError(
                f"{name} with policy '{POLICIES.name_of(policy)}', which chooses after the prompt, "
                "run alone and whole: the policy must be 'full', or 'quest' with a budget"
            )


def check_asked(module: torch.nn.Module, options: dict[str, Any]) -> None:
    """Refuse unsupported features of a layer's attention.

    Raises:
        InputError: It is not plain causal attention.
    """
    name = type(module).__name__
    for wish in UNKNOWN:
        if options.get(wish) not in (None, False):
            raise InputError(f"{name} asks for {wish}: an enabled model has none")
    if options.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise InputError(f"{name} is not causal: only decoders can be enabled")
