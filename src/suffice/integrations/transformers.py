"""suffice's attention and cache in any decoder of transformers.

    import suffice.integrations.transformers as st

    with st.enable(model, attention="aet:k=0.8", cache="bmc") as enabled:
        tokens = model.generate(**inputs)
    print(enabled.trace.key_fraction)

`enable` works at once and until `disable`, or to the end of a `with` block, which undoes it even if
an exception ends it. Nothing outside the model changes: the model's configuration names an
attention that only this model has, its `generate` gets a cache of suffice, and hooks see to it
that a call of the model itself does too.

Prompts, and chunks of more than 32 tokens, are computed by PyTorch's SDPA. Decode steps, and chunks
of up to 32 tokens that continue a cache (drafts, a short second prompt), run the native kernel of
the technique, one request after the other. Padding, on the left or anywhere, is not even stored. A
sliding window is read off transformers' own mask. What the technique has learnt (`aet`) advances
token by token; refused drafts leave it as it was.

What cannot be honoured is an `InputError` of one line: encoder-decoder models, chunked or linear
attention, scores that are capped or biased, layers that differ in their heads, head sizes that are
no multiple of 16, models that are not on the CPU, other caches, `use_cache=False`, masks that hide
more than padding and what is outside a window.

`GrowingCache` is another way: suffice's growth of the cache under transformers' own attention.

Exact    attention="exact" up to the order of sums: tokens are those of SDPA unless two are nearly
         as likely.
"""

from __future__ import annotations

import inspect
import itertools
from functools import wraps
from types import TracebackType
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from suffice.attention import ATTENTIONS, SOFTMAXES, Attention
from suffice.cache import Growth, fitted, machine
from suffice.errors import InputError
from suffice.integrations.growing_cache import (
    GrowingCache,
    context_length,
    count_layers,
    growth_policy,
    reused_masks,
)
from suffice.integrations.native_cache import NativeCache, NativeLayer, Requests
from suffice.policy import POLICIES, Policy
from suffice.policy.full import Full
from suffice.trace import Trace

__all__ = ["Enabled", "GrowingCache", "disable", "enable", "reused_masks"]

# What some families ask of attention that the native kernel does not do.
_UNKNOWN = ("softcap", "position_bias", "s_aux", "output_attentions")
_numbers = itertools.count()


def enable(
    model: Any,
    *,
    attention: str | Attention = "exact",
    policy: str | Policy = "full",
    cache: str | Growth = "bmc",
    softmax: str = "exact",
    limit: int | None = None,
) -> Enabled:
    """Let a transformers model decode with suffice's attention and cache, until `disable`.

    Techniques are given by name ("art:tau=1e-3") or as objects. `cache` is how the cache grows,
    `limit` the most rows of a request, the model's context length if None.

    Raises:
        InputError: An unknown technique, or one that this model or transformers cannot be served
            with; nothing has changed then.
    """
    technique = ATTENTIONS.take("attention", attention)
    _check_honoured(POLICIES.take("policy", policy), softmax)
    _check_model(model)
    decoder = model.config.get_text_config(decoder=True)
    layers = count_layers(model.config, decoder, "enable")
    rows = context_length(decoder, limit)
    # The native kernel reads a key once for its group, in the type in which it is stored.
    ratio = machine.load_or_default().ratio
    growth = fitted(growth_policy(cache), ratio=ratio, group=1, shrink=1.0)
    return Enabled(model, layers, technique, growth, rows)


def disable(model: Any) -> None:
    """Undo `enable`.

    Raises:
        InputError: The model is not enabled.
    """
    enabled = _enabled(model)
    if enabled is None:
        raise InputError(f"{type(model).__name__} is not enabled: there is nothing to undo")
    enabled.disable()


class Enabled:
    """A model whose decode steps suffice runs; as a context manager it undoes that at the end."""

    def __init__(
        self, model: Any, layers: int, attention: Attention, growth: Growth, limit: int
    ) -> None:
        """Change the model: everything has been checked."""
        self.model = model
        self._settings = layers, attention, growth, limit
        self._last: NativeCache | None = None
        self._name = f"suffice-{next(_numbers)}"
        parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
        self._before = [(part.config, part.config._attn_implementation) for part in parts]
        self._generate = vars(model).get("generate")
        AttentionInterface.register(self._name, _attention)
        AttentionMaskInterface.register(self._name, sdpa_mask)
        model.config._attn_implementation = self._name
        for part in parts:
            part.config._attn_implementation = self._name
        self._hooks = [
            part.register_forward_pre_hook(_give_cache(part, self), with_kwargs=True)
            for part in parts
            if "past_key_values" in inspect.signature(part.forward).parameters
        ]
        model.generate = self._generating(model.generate)
        vars(model)["_suffice"] = self

    def new_cache(self) -> NativeCache:
        """Return an empty cache, as `generate` and a call without a cache get one."""
        self._last = NativeCache(Requests(*self._settings))
        return self._last

    @property
    def trace(self) -> Trace | None:
        """What the decode steps with the newest cache read, None before the first pass."""
        return None if self._last is None else self._last.trace

    def disable(self) -> None:
        """Leave the model as it was. A second time does nothing."""
        if _enabled(self.model) is not self:
            return
        del vars(self.model)["_suffice"], self.model.generate
        if self._generate is not None:
            self.model.generate = self._generate
        for hook in self._hooks:
            hook.remove()
        for config, attention in self._before:  # outer ones first: they set those inside, too
            config._attn_implementation = attention
        for interface in (AttentionInterface, AttentionMaskInterface):
            del interface._global_mapping[self._name]

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disable()

    def _generating(self, generate: Any) -> Any:
        @wraps(generate)
        def with_cache(*given: Any, **options: Any) -> Any:
            config = options.get("generation_config") or self.model.generation_config
            if options.get("use_cache", config.use_cache) is False:
                raise InputError("use_cache=False: an enabled model decodes with its cache only")
            if options.get("past_key_values") is None:
                options["past_key_values"] = self.new_cache()
            return generate(*given, **options)

        return with_cache


def _enabled(model: Any) -> Enabled | None:
    enabled: Enabled | None = vars(model).get("_suffice")
    return enabled


def _check_honoured(policy: Policy, softmax: str) -> None:
    """Refuse what the seams have and these models do not get."""
    if not isinstance(policy, Full):
        raise InputError(f"policy={policy!r}: transformers models are served with 'full' only")
    if SOFTMAXES.take("softmax", softmax).coded:
        raise InputError(f"softmax={softmax!r}: transformers models are served with 'exact' only")


def _check_model(model: Any) -> None:
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model must be a transformers model, not {type(model).__name__}")
    name = type(model).__name__
    if _enabled(model) is not None:
        raise InputError(f"{name} is enabled already: disable it first")
    if not model._can_set_attn_implementation():
        raise InputError(f"{name} does not take its attention from transformers' interface")
    if model.device.type != "cpu":
        raise InputError(f"{name} is on '{model.device}': only models on the CPU can be enabled")


def _give_cache(part: Any, enabled: Enabled) -> Any:
    """Return a hook that gives a call without a cache one, and refuses those of others."""
    names = list(inspect.signature(part.forward).parameters)

    def hook(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        arguments = dict(zip(names, given, strict=False)) | named
        past = arguments.get("past_key_values")
        if past is not None and not isinstance(past, NativeCache):
            raise InputError(
                f"past_key_values is a {type(past).__name__}: an enabled model takes none or "
                "that of enabled.new_cache()"
            )
        asked = arguments.get("use_cache")
        uses = getattr(module.config, "use_cache", True) if asked is None else asked
        if past is not None or uses is False or module.training:
            return given, named
        at = names.index("past_key_values")
        if at < len(given):
            return (*given[:at], enabled.new_cache(), *given[at + 1 :]), named
        return given, named | {"past_key_values": enabled.new_cache()}

    return hook


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers asks: query [B, H, T, D], key and value [B, G, T, D]."""
    layer: NativeLayer | None = getattr(key, "suffice_layer", None)
    if layer is not None:
        _check_asked(module, options)
        if layer.index == 0:
            layer.requests.begin(key, attention_mask)
        layer.requests.store(layer.index, key, value)
        if layer.requests.decodes:
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            output = layer.requests.decode(layer.index, query, attention_mask, scale)
            return output.transpose(1, 2).contiguous(), None
        key = layer.requests.dense(layer.index, key)
        value = layer.requests.dense(layer.index, value, values=True)
    found: tuple[torch.Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout, scaling, **options
    )
    return found


def _check_asked(module: torch.nn.Module, options: dict[str, Any]) -> None:
    name = type(module).__name__
    for wish in _UNKNOWN:
        if options.get(wish) not in (None, False):
            raise InputError(f"{name} asks for {wish}: an enabled model has none")
    if options.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise InputError(f"{name} is not causal: only decoders can be enabled")
