"""suffice's cache growth for any transformers model with SDPA or eager attention.

    cache = GrowingCache(model.config, growth="bmc")
    model.generate(**inputs, cache=cache)  # before transformers 5.24: past_key_values=cache

Keys and values live in tensors with spare rows and are written in place. The growth policy decides
when larger tensors replace them. Spare rows are kept out of the result in one of two ways:

* `padded=True`, the paper's: attention runs on the whole tensors, which are contiguous and keep
  their shape until the next growth, and a mask gives spare rows no weight. transformers builds that
  mask from the sizes this cache reports. Inside `reused_masks(model)` one additive mask is kept
  instead, broadcast over heads and layers; each step opens one of its columns.
* `padded=False`: attention gets views of the rows in use. Spare rows cost no computation and need
  no mask, but the views are not contiguous from head to head.

On a GPU `bmc` takes r from the GPU's own rates, measured when the first rows come. Pass
`disable_compile=True` to `generate`: shapes change with each growth, and every shape would be
compiled again.

Source   Ramachandran et al., "Striking the Right Balance between Compute and Copy", sections V and
         V-B (the mask). The paper's -1e9 overflows float16; the type's minimum is used.
Exact    with `padded=False` always: attention gets the rows that DynamicCache gives it. With
         `padded=True` up to the order of sums: PyTorch's fused CPU attention sums more rows,
         zeros among them, in blocks of another size, so the last bit of a logit may differ (the
         mask alone changes nothing). Where two tokens are nearly equally likely, the other one may
         be generated: in 48 of 864 random tiny models and prompts with SDPA in bfloat16, and in
         none with float32, float16 or eager attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from suffice.integrations import missing

try:
    import torch
    from transformers import PreTrainedConfig
    from transformers.cache_utils import Cache, CacheLayerMixin, get_layer_types_and_kwargs
    from transformers.masking_utils import create_masks_for_generate
except ImportError as error:
    raise missing(error) from None

from suffice.cache import GROWTHS, Growth, next_capacity, with_defaults
from suffice.errors import InputError, unknown
from suffice.integrations.checks import given_cache
from suffice.integrations.grown import grown

# Sliding layers keep all rows here; the model's own sliding mask picks the window.
_LAYER_TYPES = ("full_attention", "sliding_attention")
_ATTENTION = ("sdpa", "eager")


class GrowingLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values [B, G, capacity, D] of one layer; the first `length` rows are in use."""

    is_sliding = False
    is_croppable = True

    def __init__(self, growth: Growth, limit: int, padded: bool) -> None:
        super().__init__()
        self.keys: Any
        self.values: Any
        self.growth = growth
        self.limit = limit
        self.padded = padded
        # generate and the mask functions then build the mask even for one token, as spare rows
        # require
        self.is_compileable = padded
        self.length = 0

    @property
    def capacity(self) -> int:
        """Rows allocated."""
        return int(self.keys.shape[2]) if self.is_initialized else 0

    @property
    def bytes(self) -> int:
        """Bytes allocated for keys and values."""
        return int(self.keys.nbytes + self.values.nbytes) if self.is_initialized else 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take type, device and shape from the first states [B, G, T, D]; allocate no rows."""
        self.dtype, self.device = key_states.dtype, key_states.device
        if self.device.type == "cuda":
            from suffice.integrations.device_rates import fitted_to_padding

            self.growth = fitted_to_padding(self.growth, key_states)
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append states [B, G, T, D] in place; return the keys and values to attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.length, self.length + key_states.shape[2]
        self._fit(end)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        if self.padded and start > 0:
            return self.keys, self.values
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return rows and offset of what `update` will return for `query_length` tokens."""
        needed = self.length + query_length
        return (self.capacity_for(needed) if self.padded and self.length > 0 else needed), 0

    def get_seq_length(self) -> int:
        """Return the rows in use."""
        return self.length

    def get_max_length(self) -> int:
        """Return the most rows that this layer may hold."""
        return self.limit

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last `-tokens_to_remove` rows; they become spare.

        Raises:
            InputError: A positive number, or more rows than there are.
        """
        if not -self.length <= tokens_to_remove <= 0:
            raise InputError(f"crop({tokens_to_remove}): give a number from -{self.length} to 0")
        if tokens_to_remove < 0:
            kept = self.length + tokens_to_remove
            # Spare rows are multiplied by zero weights, so they must be finite
            self.keys[:, :, kept : self.length] = 0
            self.values[:, :, kept : self.length] = 0
            self.length = kept

    def reset(self) -> None:
        """Drop all rows and free their memory."""
        self.keys, self.values = None, None
        self.is_initialized = False
        self.length = 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let request i continue the rows of request `beam_idx[i]`."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the requests in `indices`, in that order."""
        if self.is_initialized:
            self.keys = self.keys[indices.to(self.device)]
            self.values = self.values[indices.to(self.device)]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each request `repeats` times."""
        if self.is_initialized:
            self.keys = self.keys.repeat_interleave(repeats, dim=0)
            self.values = self.values.repeat_interleave(repeats, dim=0)

    def capacity_for(self, needed: int) -> int:
        """Return the capacity that holds `needed` rows.

        Raises:
            InputError: More rows than the limit.
        """
        if needed <= self.capacity:
            return self.capacity
        if needed > self.limit:
            raise InputError(f"the cache is limited to {self.limit} rows; {needed} are needed")
        return next_capacity(self.growth, needed, self.capacity, self.limit)

    def _fit(self, needed: int) -> None:
        capacity = self.capacity_for(needed)
        if capacity != self.capacity:
            # Both or neither: after a failure the layer is unchanged
            keys, values = (grown(rows, self.length, capacity) for rows in (self.keys, self.values))
            self.keys, self.values = keys, values


class GrowingCache(Cache):  # type: ignore[misc]
    """A transformers `Cache` whose layers grow by a policy of suffice.

    `growth` is a policy or its name ("bmc", "step:256"). `limit` is the most rows per request, by
    default the model's context length. For `padded` see the module.

    Raises:
        InputError: An unknown growth, no configuration or that of an unsupported model, or no
            usable limit.
    """

    def __init__(
        self,
        config: Any,
        growth: str | Growth = "bmc",
        *,
        limit: int | None = None,
        padded: bool = True,
    ) -> None:
        if not isinstance(config, PreTrainedConfig):
            raise InputError(
                "config must be a model's configuration (model.config), "
                f"not {type(config).__name__}"
            )
        decoder = config.get_text_config(decoder=True)
        windows = layer_windows(config, decoder, "GrowingCache", _ATTENTION if padded else None)
        rows = context_length(decoder, limit)
        # Keys are repeated for every query head of a group before the matmul: Eq. 8 applies.
        heads = decoder.num_attention_heads
        shared = getattr(decoder, "num_key_value_heads", None) or heads
        policy = with_defaults(growth_policy(growth), group=heads // shared)
        super().__init__(layers=[GrowingLayer(policy, rows, padded) for _ in windows])
        self._mask = _AdditiveMask()

    @property
    def capacity(self) -> int:
        """Rows allocated per request."""
        return int(self.layers[0].capacity)

    @property
    def bytes(self) -> int:
        """Bytes allocated for keys and values of all layers."""
        return sum(layer.bytes for layer in self.layers)

    def decode_mask(
        self, dtype: torch.dtype, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the additive mask [1 or B, 1, 1, capacity] for the next token of each request.

        0 where a row is in use (and `attention_mask` [B, S + 1], where given, is not 0), the
        minimum of `dtype` elsewhere. The same memory is returned until the cache grows.
        """
        layer = self.layers[0]
        capacity = layer.capacity_for(layer.length + 1)
        mask = self._mask.opened(layer.length + 1, capacity, dtype, attention_mask)
        return mask.to(layer.device)


class _AdditiveMask:
    """A mask of one row that opens a column per step."""

    def __init__(self) -> None:
        self.values: torch.Tensor | None = None
        self.columns = 0
        self.padding: torch.Tensor | None = None  # the padding that the mask was built for

    def opened(
        self, columns: int, capacity: int, dtype: torch.dtype, padding: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the mask with its first `columns` columns open, except where `padding` is 0."""
        if padding is not None and bool((padding != 0).all()):
            padding = None  # one row then serves all requests
        values = self.values
        if values is None or not self._extends(values, columns, capacity, dtype, padding):
            values = self.values = self._built(columns, capacity, dtype, padding)
        else:
            values[..., columns - 1] = 0
        self.columns, self.padding = columns, padding
        return values

    def _extends(
        self,
        values: torch.Tensor,
        columns: int,
        capacity: int,
        dtype: torch.dtype,
        padding: torch.Tensor | None,
    ) -> bool:
        if values.dtype != dtype or values.shape[-1] != capacity or columns != self.columns + 1:
            return False
        if padding is None or self.padding is None:
            return padding is self.padding
        return bool(padding[:, -1].all()) and torch.equal(padding[:, :-1], self.padding)

    @staticmethod
    def _built(
        columns: int, capacity: int, dtype: torch.dtype, padding: torch.Tensor | None
    ) -> torch.Tensor:
        rows = 1 if padding is None else padding.shape[0]
        values = torch.full((rows, 1, 1, capacity), torch.finfo(dtype).min, dtype=dtype)
        if padding is None:
            values[..., :columns] = 0
        else:
            values[..., :columns].masked_fill_(padding[:, None, None, :columns] != 0, 0)
        return values


@contextmanager
def reused_masks(model: Any) -> Iterator[None]:
    """Let `model.generate` use `GrowingCache.decode_mask` instead of a new mask per step.

    Applies inside the `with` block and to this model object only. Prompts, models with sliding
    windows and other caches keep transformers' own masks.
    """
    original = getattr(model, "create_masks_for_generate", create_masks_for_generate)
    previous = vars(model).get("create_masks_for_generate")
    model.create_masks_for_generate = _reusing(original)
    try:
        yield
    finally:
        if previous is None:
            del model.create_masks_for_generate
        else:
            model.create_masks_for_generate = previous


def _reusing(original: Callable[..., Any]) -> Callable[..., Any]:
    def masks(**given: Any) -> Any:
        (_, cache), inputs = given_cache(given), given["inputs_embeds"]
        types = set(getattr(given["config"].get_text_config(), "layer_types", None) or ())
        windowed = getattr(given["config"].get_text_config(), "sliding_window", None)
        if (
            not isinstance(cache, GrowingCache)
            or inputs.shape[1] != 1
            or cache.get_seq_length() == 0
            or types - {"full_attention"}
            or (windowed and not types)
        ):
            return original(**given)
        mask = cache.decode_mask(inputs.dtype, given["attention_mask"])
        return {"full_attention": mask} if types else mask

    return masks


def growth_policy(growth: Any) -> Growth:
    """Return a growth policy, given as an object or by its name.

    Raises:
        InputError: It is neither.
    """
    policy = GROWTHS.build(growth) if isinstance(growth, str) else growth
    if isinstance(policy, type) or not callable(getattr(policy, "next_capacity", None)):
        raise InputError(
            f"growth={growth!r} must be a growth policy or its name. "
            f"Known: {', '.join(GROWTHS.names())}"
        )
    return policy  # type: ignore[no-any-return]


def layer_windows(
    config: Any, decoder: Any, who: str, attentions: tuple[str, ...] | None = None
) -> list[int | None]:
    """Return each layer's sliding window (None: no window); check that `who` supports the model.

    `attentions`: the model's attention must be one of them.

    Raises:
        InputError: It does not.
    """
    family = getattr(config, "model_type", type(config).__name__)
    if config.is_encoder_decoder or getattr(decoder, "add_cross_attention", False):
        raise InputError(f"{who} serves decoder-only models; '{family}' has cross-attention")
    attention = decoder._attn_implementation
    if attentions and attention not in (None, *attentions):
        raise unknown("attention for a padded cache", attention, attentions)
    types, options = get_layer_types_and_kwargs(decoder)
    for kind in types:
        if kind not in _LAYER_TYPES:
            raise unknown(f"layer type of '{family}'", kind, _LAYER_TYPES)
    return [own.get("sliding_window") for own in options]


def context_length(decoder: Any, limit: int | None) -> int:
    """Return the most rows of a request: `limit`, or the model's context length.

    Raises:
        InputError: A limit that is not a positive whole number, or no limit at all.
    """
    rows = limit if limit is not None else getattr(decoder, "max_position_embeddings", None)
    if rows is None:
        raise InputError("the model's config names no context length: give limit=")
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        raise InputError(f"limit={rows!r} must be a whole number of at least 1 row")
    return rows
