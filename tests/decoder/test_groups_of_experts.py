"""Tests of routing.py: the steps that leave groups of experts, in the reference."""

from __future__ import annotations

import pytest
import torch

from suffice.decoder.routing import Experts
from suffice.quantize.torch_layers import route


@pytest.mark.parametrize(
    ("limit", "bias", "expected"),
    [
        ("best_groups", None, [0.0, 0.0, 0.0, 0.0, 4.0, 1.0]),  # by the greatest of each
        ("best_pairs", None, [0.0, 0.0, 3.0, 3.0, 0.0, 0.0]),  # by the sum of the two greatest
        ("best_pairs", [3.0, 0.0, 0.0, 0.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_reference_of_groups(
    limit: str, bias: list[float] | None, expected: list[float]
) -> None:
    """On logits whose softmax is 2, 2, 3, 3, 4, 1, of 15, in three groups; one is left."""
    logits = torch.tensor([[2.0, 2.0, 3.0, 3.0, 4.0, 1.0]]).log()
    rule = Experts(6, 2, 16, ("softmax", limit, "top"), groups=3, kept_groups=1)
    found = route(logits, rule, None if bias is None else torch.tensor(bias))
    torch.testing.assert_close(15 * found, torch.tensor([expected]))
