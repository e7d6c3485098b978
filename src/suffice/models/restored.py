"""A decoder's weights stored once more, in fewer bytes."""

from __future__ import annotations

import torch

from suffice.models.decoder import Decoder
from suffice.models.pages import gather
from suffice.quant import PackedLinear, Quant

__all__ = ["restored"]


def restored(decoder: Decoder, quant: Quant) -> Decoder:
    """Return a decoder whose layers' matrices are stored by `quant`; it shares all other weights.

    Where that would save nothing the decoder itself is returned.
    """
    layers = {
        name: weight
        for name, weight in decoder.weights.items()
        if isinstance(weight, PackedLinear) and name.startswith("layers.")
    }
    packed: dict[str, PackedLinear | torch.Tensor] = {}
    saved = 0
    for name, weight in layers.items():
        stored = quant.pack(weight.unpack(), weight.bias)
        packed[name] = stored
        saved += weight.bytes - stored.bytes
    if saved <= 0:
        return decoder
    gather(packed)
    return Decoder(decoder.config, decoder.weights | packed, decoder.dtype)
