"""A decoder's weights stored once more, in fewer bytes."""

from __future__ import annotations

import torch

from suffice.models.decoder import Decoder
from suffice.models.pages import gather
from suffice.quant import PackedLinear, Quant

__all__ = ["restored"]


def restored(decoder: Decoder, quant: Quant) -> Decoder:
    """Return a decoder whose layers' matrices are stored by `quant`; it shares all other weights.

    Where that would save nothing, as the first layer shows, the decoder itself is returned.
    """
    first = _packed(decoder, quant, "layers.0.")
    if sum(stored.bytes - own.bytes for own, stored in first.values()) >= 0:
        return decoder
    packed: dict[str, PackedLinear | torch.Tensor] = {
        name: stored for name, (_, stored) in _packed(decoder, quant, "layers.").items()
    }
    gather(packed)
    return Decoder(decoder.config, decoder.weights | packed, decoder.dtype)


def _packed(
    decoder: Decoder, quant: Quant, prefix: str
) -> dict[str, tuple[PackedLinear, PackedLinear]]:
    """Return the matrices of names with a prefix, as they are and as `quant` stores them."""
    return {
        name: (weight, quant.at(name.rpartition(".")[2]).pack(weight.unpack(), weight.bias))
        for name, weight in decoder.weights.items()
        if isinstance(weight, PackedLinear) and name.startswith(prefix)
    }
