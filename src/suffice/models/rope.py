"""Rotary position embeddings as tables of cosines and sines.

Source   Su et al. 2021 (default); Chen et al. 2023 (linear); Peng et al. 2023 (yarn, dynamic NTK);
         Llama 3.1 (llama3). transformers' functions give the frequencies of all but the default.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from suffice.errors import InputError
from suffice.models.config import DecoderConfig, Rope

__all__ = ["check_call", "rope_table"]


def rope_table(
    rope: Rope, head_size: int, trained: int, rows: int, first: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [rows, D/2] float32 for the positions from `first` on.

    The kind's attention factor is folded in. The model was trained on `trained` positions. Row p of
    the dynamic kind has the frequencies of a text of p + 1 tokens, by which position p is rotated
    when it is decoded.
    """
    positions = torch.arange(first, first + rows)[:, None]
    frequencies, factor = _frequencies(rope, head_size, trained, None)
    if rope.kind == "dynamic":
        stretched, _ = _frequencies(rope, head_size, trained, positions + 1)
        frequencies = torch.where(positions < trained, frequencies, stretched)
    angles = positions.float() * frequencies
    return angles.cos() * factor, angles.sin() * factor


def check_call(config: DecoderConfig, first: int, rows: int) -> None:
    """Refuse rows from `first` on whose dynamic frequencies would differ if run together.

    transformers rotates all tokens of one call by the frequencies of the text that ends with the
    last one, and leaves the keys of earlier calls unchanged. A table by position equals this only
    up to the trained positions, where frequencies are constant, or one token at a time.

    Raises:
        InputError: Several rows at once that reach beyond the trained positions.
    """
    if rows > 1 and first + rows > config.longest_prompt:
        raise InputError(
            f"a prompt of {first + rows} tokens or more is not supported with rope_type 'dynamic'; "
            f"allowed: {config.trained_positions} (max_position_embeddings), which generated "
            "tokens may exceed"
        )


def _frequencies(
    rope: Rope, head_size: int, trained: int, lengths: torch.Tensor | None
) -> tuple[torch.Tensor, float]:
    """Return frequencies [D/2] (for `lengths` [rows, 1]: [rows, D/2]) and the attention factor."""
    if rope.kind == "default":
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
        frequencies, factor = 1.0 / rope.theta**exponents, 1.0
    else:
        frequencies, factor = _scaled(rope, head_size, trained, lengths)
    if rope.divisors:
        frequencies = frequencies / torch.tensor(rope.divisors, dtype=torch.float32)
    return frequencies, factor


def _scaled(
    rope: Rope, head_size: int, trained: int, lengths: torch.Tensor | None
) -> tuple[torch.Tensor, float]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    # the fields of a transformers configuration that these functions read
    config = SimpleNamespace(
        standardize_rope_params=lambda: None,
        rope_parameters={"rope_theta": rope.theta, **dict(rope.parameters)},
        head_dim=head_size,
        hidden_size=head_size,
        num_attention_heads=1,
        max_position_embeddings=trained,
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope.kind](config, seq_len=lengths)
    return frequencies.float(), float(factor)
