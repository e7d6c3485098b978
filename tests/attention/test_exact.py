"""Exact attention: the reference against PyTorch's, the kernel against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from suffice.attention.exact import Exact
from suffice.backends.cpu.attention import attend
from suffice.cache import GROWTHS, alike
from suffice.cache.kv import KVCache


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 1), (6, 2)])
@pytest.mark.parametrize("masked", [False, True])
def test_reference_is_softmax_attention(heads: int, groups: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(n, rows, 16, generator=generator, dtype=torch.float64)
        for n, rows in ((heads, 3), (groups, 9), (groups, 9))
    )
    visible = torch.ones(3, 9, dtype=torch.bool).tril(6) if masked else None
    expected = scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=visible, scale=0.3, enable_gqa=True
    )[0]
    seen = None if visible is None else visible.numpy()
    found = Exact().reference(q.numpy(), k.numpy(), v.numpy(), scale=0.3, visible=seen)
    np.testing.assert_allclose(found.output, expected.numpy(), rtol=1e-7, atol=1e-7)


def test_drafts_see_no_further_than_a_window_that_is_shorter_than_they_are() -> None:
    size, committed, drafts, window = 32, 20, 6, 3
    growth, kind = GROWTHS.build("double"), "float32"
    cache = KVCache(alike(1, 2, size), growth=growth, limit=64, key_dtype=kind, value_dtype=kind)
    random = np.random.default_rng(0)
    k, v = random.standard_normal((2, 2, committed + drafts, size), np.float32)
    cache.reserve(committed + drafts)
    cache.append(0, k[:, :committed], v[:, :committed])
    cache.advance(committed)
    cache.append_tentative(k[None, :, committed:], v[None, :, committed:], list(range(-1, 5)))
    q = random.standard_normal((4, drafts, size), np.float32)
    distance = np.arange(committed, committed + drafts)[:, None] - np.arange(26)
    visible = (distance >= 0) & (distance < window)
    wanted = Exact().reference(q, k, v, scale=0.2, visible=visible).output
    actual = attend(Exact().rule(), q, cache, 0, scale=0.2, window=window)[0]
    np.testing.assert_allclose(actual, wanted, rtol=1.3e-6, atol=1e-5)
