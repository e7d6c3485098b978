"""suffice's attention, policies, softmaxes and cache in any decoder of transformers.

    import suffice.integrations.transformers as st

    with st.enable(model, attention="art", policy="snapkv:0.8", growth="bmc") as enabled:
        tokens = model.generate(**inputs)
    print(enabled.trace.key_fraction)
    with st.enable(model, softmax="exaq:2", calibration="smollm2.json"):
        tokens = model.generate(**inputs)

`enable` takes effect at once, until `disable` or the end of a `with` block, even if an exception
ends it. Nothing outside the model changes: the model's configuration names an attention that only
this model has, its `generate` gets a cache of suffice, and hooks give one to direct calls of the
model too.

Prompts, and chunks of more than 32 tokens, are computed by PyTorch's SDPA, or by the native kernel
with `prefill=true` of a coded softmax. After each prompt the policy chooses, separately for each
request. An evicting policy frees the memory; later tokens keep their positions in the text. Decode
steps, and chunks of up to 32 tokens that continue a cache (drafts, a short second prompt), run the
technique's native kernel, one call per layer for the whole batch. Padding, on the left or anywhere
else, is not stored. Sliding windows are read from transformers' own mask. A technique's state
(`aet`) advances token by token; refused drafts leave it unchanged.

On a GPU, attention is computed by kernels in Triton (`pip install 'suffice[gpu]'`); the policy
`h2o`, `sample` of `tiers`, a coded softmax with another attention than `exact`, and coded prompts
need a model on the CPU.

`tiers` reads keys in 4 bits. Their rounding is fitted to the model if `checkpoint` is given.

Unsupported cases are an `InputError` of one line: combinations of techniques that the engine does
not support either, a prompt that continues evicted tokens, drafts with a policy that chooses after
the prompt, encoder-decoder models, chunked or linear attention, scores that are capped or biased,
layers with different heads, head sizes that are not multiples of 16, models on several devices,
other caches, `use_cache=False`, and masks that hide more than padding and tokens outside a
window.

`quantize` and `load_quantized` replace linear layers and combine with all of this.

`GrowingCache` is an alternative: suffice's cache growth under transformers' own attention.

Exact    up to the order of sums, with attention, policy and softmax at their exact limits: tokens
         are those of SDPA unless two are nearly equally likely.
"""

from __future__ import annotations

import inspect
import itertools
import os
from functools import partial, wraps
from types import TracebackType
from typing import Any

from suffice.integrations import missing

try:
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask
except ImportError as error:
    raise missing(error) from None

from suffice.attention import Attention
from suffice.attention.calibration import Calibration
from suffice.attention.softmax import Softmax
from suffice.cache import Growth, machine
from suffice.engine.config import Config
from suffice.errors import InputError
from suffice.integrations.checks import (
    cache_argument,
    check_asked,
    check_attention,
    check_calibration,
    check_generate,
    check_model,
    given_cache,
    head_shape,
)
from suffice.integrations.fitted import fitted_rounding
from suffice.integrations.growing_cache import (
    GrowingCache,
    context_length,
    layer_windows,
    reused_masks,
)
from suffice.integrations.native_cache import NativeCache, NativeLayer
from suffice.integrations.quantized_linear import load_quantized, quantize
from suffice.integrations.requests import Requests, ServedSettings
from suffice.policy import Policy
from suffice.trace import Trace

__all__ = [
    "Enabled",
    "GrowingCache",
    "disable",
    "enable",
    "load_quantized",
    "quantize",
    "reused_masks",
]

_numbers = itertools.count()


def enable(
    model: Any,
    *,
    attention: str | Attention = "exact",
    policy: str | Policy = "full",
    growth: str | Growth = "bmc",
    softmax: str | Softmax = "exact",
    calibration: str | os.PathLike[str] | Calibration | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    audit: int | None = None,
    graphs: bool = False,
) -> Enabled:
    """Let a transformers model decode with suffice's techniques and cache, until `disable`.

    Techniques are given by name ("art:change=1e-3") or as objects. `growth` is the growth policy of
    the cache, `limit` the most tokens of a request (None: the model's context length). A coded
    softmax and a calibrated attention need a `calibration`, a file of `suffice calibrate`; None:
    the one next to the model, or the thresholds in its config.json. It must be made from
    `checkpoint`: the folder, hub id or .gguf file of the model. This is needed only if transformers
    has not recorded it (of a .gguf file it records the folder). With `tiers` and a
    `checkpoint` that is given, the rounding of keys in 4 bits is fitted to the model, as the engine
    does: it loads the model once more for that. Without one it is not fitted, so
    `tiers` estimates scores less well and reads more: see `Enabled.keys_fitted`. Every `audit`-th
    decode step also computes exact attention, and notes in `trace.audit` how far the technique was
    from it. With `graphs`, a GPU replays recorded decode steps; see `suffice.integrations.graphs`.

    Raises:
        InputError: An unknown technique, or one that this model or transformers does not
            support; the model is then unchanged.
    """
    config = Config.create(
        str(checkpoint or getattr(model, "name_or_path", "") or type(model).__name__),
        attention=attention,
        policy=policy,
        growth=growth,
        softmax=softmax,
        calibration=calibration,
        audit=audit,
    )
    if config.technique.unread_in_prompts:
        raise InputError(
            f"attention={attention!r}: transformers runs prompts by attention to everything: leave "
            "out prompt"
        )
    check_model(model)
    check_attention(config)
    device = None if requests_on(model.device) is Requests else model.device
    decoder = model.config.get_text_config(decoder=True)
    _check_device(config, device, graphs, head_shape(decoder, 1)[2])
    if _enabled(model) is not None:
        raise InputError(f"{type(model).__name__} is enabled already: disable it first")
    windows = layer_windows(model.config, decoder, "enable")
    rows = context_length(decoder, limit)
    check_calibration(config, model, checkpoint, len(windows))
    growth = fitted_growth(config.growth, device)
    rounding = fitted_rounding(config, checkpoint, head_shape(decoder, len(windows)))
    return Enabled(model, ServedSettings(config, windows, growth, rows, rounding), graphs)


def _check_device(config: Config, device: torch.device | None, graphs: bool, size: int) -> None:
    if device is None:
        if graphs:
            raise InputError("graphs=True for a model on the CPU: needs a GPU")
        return
    from suffice.integrations.device_requests import check_device

    check_device(config, size)


def fitted_growth(growth: Growth, device: torch.device | None) -> Growth:
    """Return a growth policy fitted to this machine, or to a GPU, and to suffice's kernels."""
    if device is None:
        return machine.fitted_to_kernel(growth)
    from suffice.integrations.device_rates import fitted_to_device

    return fitted_to_device(growth, device)


def requests_on(device: torch.device) -> Any:
    """Return the class of requests whose attention is computed on a device.

    Raises:
        InputError: A GPU, without Triton.
    """
    if device.type == "cpu":
        return Requests
    try:
        from suffice.integrations.device_requests import DeviceRequests
    except ImportError as error:
        raise InputError(
            f"a model on '{device}' needs {error.name}: pip install 'suffice[gpu]'"
        ) from None
    return DeviceRequests


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
    """A model whose decode steps suffice runs; a context manager that disables it at the end."""

    def __init__(self, model: Any, settings: ServedSettings, graphs: bool) -> None:
        """Change the model; everything has been checked before."""
        self.model = model
        self._settings, self._device = settings, model.device
        self._last: NativeCache | None = None
        self._name = f"suffice-{next(_numbers)}"
        parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
        self._before = [(part.config, part.config._attn_implementation) for part in parts]
        self._own = {name: vars(model).get(name) for name in ("generate", "forward")}
        AttentionInterface.register(self._name, _attention)
        AttentionMaskInterface.register(self._name, sdpa_mask)
        model.config._attn_implementation = self._name
        for part in parts:
            part.config._attn_implementation = self._name
        self._hooks = [
            part.register_forward_pre_hook(_give_cache(part, self), with_kwargs=True)
            for part in parts
            if cache_argument(part.forward)
        ]
        model.generate = self._generating(model.generate)
        if graphs:
            from suffice.integrations.graphs import with_graphs

            model.forward = with_graphs(model.forward)
        vars(model)["_suffice"] = self

    def new_cache(self) -> NativeCache:
        """Return an empty cache, as `generate` and a call without a cache get one.

        Raises:
            InputError: The model is on another device than when it was enabled.
        """
        if self.model.device != self._device:
            raise InputError(
                f"{type(self.model).__name__} was enabled on '{self._device}' and is on "
                f"'{self.model.device}' now: enable it there"
            )
        self._last = NativeCache(requests_on(self.model.device)(self._settings))
        return self._last

    @property
    def trace(self) -> Trace | None:
        """Reads of the decode steps with the newest cache; None before the first pass."""
        return None if self._last is None else self._last.trace

    @property
    def keys_fitted(self) -> bool | None:
        """Whether the rounding of keys in 4 bits is fitted to the model; None: there are none."""
        settings = self._settings
        return settings.rounding is not None if settings.config.technique.based else None

    def disable(self) -> None:
        """Restore the model. A second call does nothing."""
        if _enabled(self.model) is not self:
            return
        del vars(self.model)["_suffice"]
        for name, own in self._own.items():
            vars(self.model).pop(name, None)
            if own is not None:
                setattr(self.model, name, own)
        for hook in self._hooks:
            hook.remove()
        for config, attention in self._before:  # outer ones first, since they also set inner ones
            config._attn_implementation = attention
        for interface in (AttentionInterface, AttentionMaskInterface):
            del interface._global_mapping[self._name]

    def __deepcopy__(self, memo: Any) -> Any:
        """Refuse: the copy's `generate` would be that of the original model.

        Raises:
            InputError: Always.
        """
        raise InputError(f"{type(self.model).__name__} is enabled: disable it before it is copied")

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
            defaults = options.get("generation_config") or self.model.generation_config
            check_generate(self._settings.config, options, defaults)
            _, cache = given_cache(options)
            if cache is None:
                name = cache_argument(self.model.prepare_inputs_for_generation)
                assert name, "a decoder takes a cache"
                options[name] = self.new_cache()
            elif cache.get_seq_length():
                self._settings.config.check_session()
            return generate(*given, **options)

        return with_cache


def _enabled(model: Any) -> Enabled | None:
    enabled: Enabled | None = vars(model).get("_suffice")
    return enabled


def _give_cache(part: Any, enabled: Enabled) -> Any:
    """Return a hook that gives a cache to calls without one, and refuses other caches."""
    names = list(inspect.signature(part.forward).parameters)
    own = cache_argument(part.forward)
    assert own, "other parts have no hook"

    def hook(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        arguments = dict(zip(names, given, strict=False)) | named
        name, past = given_cache(arguments)
        if past is not None and not isinstance(past, NativeCache):
            raise InputError(
                f"{name} is a {type(past).__name__}: an enabled model takes none or "
                "that of enabled.new_cache()"
            )
        asked = arguments.get("use_cache")
        uses = getattr(module.config, "use_cache", True) if asked is None else asked
        if past is not None or uses is False or module.training:
            return given, named
        at = names.index(own)
        if at < len(given):
            return (*given[:at], enabled.new_cache(), *given[at + 1 :]), named
        return given, named | {own: enabled.new_cache()}

    return hook


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a graph ends before it
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
    """Attention by transformers' interface: query [B, H, T, D], key and value [B, G, T, D]."""
    sdpa = partial(
        sdpa_attention_forward,
        module,
        query,
        attention_mask=attention_mask,
        dropout=dropout,
        scaling=scaling,
        **options,
    )
    layer: NativeLayer | None = getattr(key, "suffice_layer", None)
    if layer is None:
        found, _ = sdpa(key=key, value=value)
        return found, None
    check_asked(module, options)
    requests, index = layer.requests, layer.index
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    try:
        if index == 0:
            requests.begin(key, attention_mask)
        requests.store(index, key, value)
        if requests.attends:
            found = requests.attend(index, query, attention_mask, scale)
        else:
            keys, values = requests.dense(index, key), requests.dense(index, value, values=True)
            found, _ = sdpa(key=keys, value=values)
    except BaseException:
        requests.abandon()
        raise
    requests.end_layer(index, query, scale)
    return found, None
