"""Rotary position embeddings as tables of cosines and sines.

Source   Su et al. 2021 (default); Chen et al. 2023 (linear); Peng et al. 2023 (yarn, dynamic NTK);
         Llama 3.1 (llama3). transformers' functions give the frequencies of all but the default.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from suffice.models.config import Rope

__all__ = ["rope_table"]


def rope_table(
    rope: Rope, head_size: int, max_positions: int, rows: int, first: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [rows, D/2] float32 for the positions from `first` on.

    The kind's attention factor is folded in. Row p of the dynamic kind has the frequencies of a
    text of p + 1 tokens, those by which position p is turned when it is decoded.
    """
    positions = torch.arange(first, first + rows, dtype=torch.float32)
    plain, factor = _frequencies(rope, head_size, max_positions, None)
    angles = positions[:, None] * plain
    if rope.kind == "dynamic":
        for row in range(max(0, max_positions - first), rows):
            length = torch.tensor(first + row + 1)
            stretched, _ = _frequencies(rope, head_size, max_positions, length)
            angles[row] = positions[row] * stretched
    return angles.cos() * factor, angles.sin() * factor


def _frequencies(
    rope: Rope, head_size: int, max_positions: int, length: torch.Tensor | None
) -> tuple[torch.Tensor, float]:
    if rope.kind == "default":
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
        frequencies, factor = 1.0 / rope.theta**exponents, 1.0
    else:
        frequencies, factor = _scaled(rope, head_size, max_positions, length)
    if rope.divisors:
        frequencies = frequencies / torch.tensor(rope.divisors, dtype=torch.float32)
    return frequencies, factor


def _scaled(
    rope: Rope, head_size: int, max_positions: int, length: torch.Tensor | None
) -> tuple[torch.Tensor, float]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    # what these functions read of a transformers configuration
    config = SimpleNamespace(
        standardize_rope_params=lambda: None,
        rope_parameters={"rope_theta": rope.theta, **dict(rope.parameters)},
        head_dim=head_size,
        hidden_size=head_size,
        num_attention_heads=1,
        max_position_embeddings=max_positions,
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope.kind](config, seq_len=length)
    return frequencies.float(), float(factor)
