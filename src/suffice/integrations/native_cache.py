"""suffice's native caches as transformers sees them.

Lengths count columns of the batch. Padding, which is not stored, and evicted tokens count too, so
positions and masks stay unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from suffice.errors import InputError
from suffice.integrations.requests import Requests
from suffice.trace import Trace

if TYPE_CHECKING:
    from suffice.integrations.device_requests import DeviceRequests


class NativeLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of `Requests`: passes new keys to the attention, which stores and reads them."""

    is_sliding = False
    is_croppable = True

    def __init__(self, requests: Requests | DeviceRequests, index: int) -> None:
        super().__init__()
        self.requests = requests
        self.index = index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate nothing: memory is allocated with the first rows."""
        self.is_initialized = True

    def update(
        self, key_states: Any, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new keys and values, [B, G, T, D] each; the keys know their layer."""
        key_states.suffice_layer = self
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of columns that `query_length` tokens see, and their offset."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Return the columns so far, padding included."""
        return self.requests.columns.count

    def get_max_length(self) -> int:
        """Return the most rows a request may hold."""
        return self.requests.settings.limit


class NativeCache(Cache):  # type: ignore[misc]
    """A transformers `Cache` over `Requests`; `trace` counts the reads of decode steps."""

    def __init__(self, requests: Requests | DeviceRequests) -> None:
        super().__init__(layers=[NativeLayer(requests, i) for i in range(requests.layers)])
        self.requests = requests

    @property
    def trace(self) -> Trace | None:
        """Reads of the decode steps; None before the first pass."""
        return self.requests.trace

    @property
    def bytes(self) -> int:
        """Bytes of memory mapped for all requests."""
        return self.requests.bytes

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last `-tokens_to_remove` columns.

        Raises:
            InputError: A positive number, or more columns than there are.
        """
        if not -self.requests.columns.count <= tokens_to_remove <= 0:
            raise InputError(
                f"crop({tokens_to_remove}): give a number from -{self.requests.columns.count} to 0"
            )
        self.requests.crop(-tokens_to_remove)

    def reset(self) -> None:
        """Drop all requests and free their memory."""
        self.requests.reset()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let request i continue the rows of request `beam_idx[i]`; an empty cache stays so."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the requests in `indices`, in that order; an empty cache stays so."""
        if self.requests.columns.count:
            self.requests.select(torch.arange(len(self.requests.caches))[indices].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each request `repeats` times; an empty cache stays so."""
        count = len(self.requests.caches)
        if count:
            self.requests.select([index for index in range(count) for _ in range(repeats)])
