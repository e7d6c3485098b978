"""What tests of `suffice calibrate` and `suffice quantize` share: a text, and how it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sample_text import OWLS
from suffice import SamplingParams

TEXT = OWLS * 12
ASKED = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def text_flags(folder: Path, windows: int) -> list[str]:
    """Write the text to a folder; return the flags that name it and cut it into windows."""
    (folder / "text.txt").write_text(TEXT)
    return ["--text", str(folder / "text.txt"), "--window", "40", "--limit", str(windows)]


def by_reference(opened: Any, tokens: list[int]) -> list[int]:
    """Return the tokens that the reference decoder goes on with."""
    import torch

    from suffice.cache.growth import Upfront
    from suffice.cache.kv import KVCache
    from suffice.quantize.torch_decoder import TorchDecoder

    config = opened.config
    decoder = TorchDecoder(config, opened.weights)
    cache = KVCache(
        len(config.layers), config.kv_heads, config.head_size, growth=Upfront(), limit=128,
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
