"""What tests of calibrations share: a text, how it is given, and what may come of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sample_text import OWLS
from suffice import SamplingParams
from suffice.attention import calibration
from suffice.checkpoints.files import fingerprint

TEXT = OWLS * 12
ASKED = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def text_flags(folder: Path, windows: int) -> list[str]:
    """Write the text to a folder; return the flags that name it and cut it into windows."""
    (folder / "text.txt").write_text(TEXT)
    return ["--text", str(folder / "text.txt"), "--window", "40", "--limit", str(windows)]


def write_levels(path: Path, checkpoint: Path, family: str, layers: int, heads: int) -> None:
    """Write a calibration with another sigma in each layer and another codebook in each head."""
    book = {
        str(bits): [
            [
                {
                    "borders": [-3 - 0.5 * layer + 2 * i / 2**bits for i in range(1, 2**bits)],
                    "weights": [
                        (0.6 + 0.1 * head) * ((i + 1) / 2**bits) ** (2 + layer % 2)
                        for i in range(2**bits)
                    ],
                }
                for head in range(heads)
            ]
            for layer in range(layers)
        ]
        for bits in (2, 3, 4)
    }
    model = {"name": family, "hash": fingerprint(checkpoint), "heads": heads}
    softmax = {
        "layers": [{"sigma": 1.5 + 0.2 * i, "least": -30.0} for i in range(layers)],
        "codebooks": book,
        "clips": {
            tail: {str(bits): [[-6.0] * heads] * layers for bits in (2, 3, 4)}
            for tail in ("clip", "flush")
        },
    }
    calibration.write(path, {"model": model, "softmax": softmax})


def by_reference(opened: Any, tokens: list[int]) -> list[int]:
    """Return the tokens that the reference decoder goes on with."""
    import torch

    from suffice.cache.growth import Upfront
    from suffice.cache.kv import KVCache
    from suffice.quantize.torch_decoder import TorchDecoder

    config = opened.config
    decoder = TorchDecoder(config, opened.weights)
    cache = KVCache(
        config.rows, growth=Upfront(), limit=128,
        key_dtype="float32", value_dtype="float32",
    )  # fmt: skip
    found: list[int] = []
    new = tokens
    for _ in range(12):
        logits = decoder.forward(torch.tensor(new), cache)
        assert logits is not None
        new = [int(logits.argmax())]
        found += new
    return found
