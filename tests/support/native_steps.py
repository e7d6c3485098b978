"""Steps of a native model as tests run them: one causal chain in a cache of its own."""

from __future__ import annotations

import numpy as np

from caches import cache_for
from suffice.cache.kv import KVCache
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.decoder.weights import DecoderWeights


def new_cache(decoder: DecoderWeights, dtype: str = "float32") -> KVCache:
    """Return an empty cache with room for 64 tokens."""
    cache = cache_for(decoder, dtype, growth="upfront", limit=64)
    cache.reserve(64)
    return cache


def run(
    model: NativeModel, cache: KVCache, tokens: list[int], *, prompt: bool = False
) -> np.ndarray:
    """Return the logits [T, V] of all tokens, as one causal chain; more than 32 are a prompt."""
    rows = StepRows(cache, tokens, outputs=None, exact=prompt, counted=not prompt)
    logits = model.step([rows])
    cache.commit(list(range(len(tokens))))
    return logits
