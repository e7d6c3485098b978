"""The rounding of keys in 4 bits, fitted to a model of transformers as the engine fits it."""

from __future__ import annotations

from typing import Any

from suffice import native
from suffice.decoder.key_rounding import KeyRounding
from suffice.engine.config import Config
from suffice.errors import InputError


def fitted_rounding(
    config: Config, checkpoint: Any, shape: tuple[int, int, int]
) -> KeyRounding | None:
    """Return what the engine fits for the model in `checkpoint`, and keeps on disk.

    None if the technique reads no keys in 4 bits, or if there is no `checkpoint`: the engine loads
    the model once more for it, which may take more memory than there is. `shape` are the model's
    layers, key/value heads and head size.

    Raises:
        InputError: The checkpoint is of another model, or cannot be used.
    """
    if checkpoint is None or not config.technique.based:
        return None
    from suffice.engine.load import load

    asked = Config.create(str(checkpoint), attention="tiers", threads=native.threads())
    runner = load(asked)[1]
    model = runner.decoder.config
    found = len(model.cached), model.kv_heads, model.head_size
    if found != shape:
        words = "layers, key/value heads and head size"
        raise InputError(
            f"checkpoint={str(checkpoint)!r}: has {found}, not {shape} {words}: give the model's"
        )
    return runner.rounding
