"""The reference of exact attention against PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from suffice.attention.exact import Exact


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
    found = Exact().reference(q, k, v, scale=0.3, visible=visible)
    torch.testing.assert_close(found.output, expected)
