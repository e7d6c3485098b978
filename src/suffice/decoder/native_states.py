"""Blocks with states in native code, and the states' sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from suffice.decoder.blocks import ACTIVATIONS
from suffice.decoder.states import Convolution, Recurrence, StateBlock
from suffice.native import core


def state_shapes(blocks: Sequence[StateBlock]) -> list[core.StateShape]:
    """Return the sizes of the states that a request keeps, layer by layer."""
    return [_shape(block) for block in blocks]


def _shape(block: StateBlock) -> core.StateShape:
    if isinstance(block, Convolution):
        return core.StateShape(0, 0, 0, 0, False, block.width, block.taps)
    sizes = block.heads, block.key_heads, block.key_size, block.value_size
    return core.StateShape(*sizes, block.by_entry, block.channels, block.taps, block.tiled)


def add_state_block(model: core.Model, block: StateBlock, parts: dict[str, object]) -> None:
    """Append a block with a state to the core's last layer."""
    if isinstance(block, Recurrence) and block.apart:
        filters = [parts.pop(f"{part}_convolution") for part in block.order]
        parts["convolution"] = np.concatenate(cast(list[np.ndarray], filters))
    filters_by_tap = _by_tap(parts["convolution"])
    if isinstance(block, Recurrence):
        counts, scales = zip(*block.channel_scales, strict=True)
        filters_by_tap = filters_by_tap * np.repeat(np.array(scales, np.float32), counts)
    parts["convolution"] = filters_by_tap
    if isinstance(block, Convolution):
        model.add_convolution(parts, block.width, block.taps)
        return
    rates = parts["rates"]
    assert isinstance(rates, np.ndarray)
    parts["rates"] = rates.repeat(block.decays // block.heads)
    model.add_recurrence(
        parts,
        _shape(block),
        (block.place("queries"), block.place("keys"), block.place("values")),
        ACTIVATIONS.index("silu"),
        (block.norm_size, block.shared_norm, block.gates_first, block.norm_eps),
        ACTIVATIONS.index(block.gate_activation),
        block.most_strength,
        block.least_step,
        block.gate_scale,
        block.decay_scale,
    )


def _by_tap(stored: object) -> np.ndarray:
    """Return the weights [taps, channels] of a convolution stored as [channels, 1, taps]."""
    assert isinstance(stored, np.ndarray)
    return np.ascontiguousarray(stored[:, 0].T)
