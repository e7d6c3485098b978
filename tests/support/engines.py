"""Engines that share their weights: those of a model are read and packed once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from suffice import LLM
from suffice.decoder.shelf import Shelf
from suffice.engine.config import Config
from suffice.engine.load import load


def sharing(**usual: Any) -> Callable[..., LLM]:
    """Return what makes an engine of a model and options, in addition to the usual ones.

    It keeps the weights of all models that it has loaded; nothing changes them.
    """
    shelf = Shelf()

    def made(model: Path, **options: Any) -> LLM:
        return LLM.from_parts(*load(Config.create(str(model), **{**usual, **options}), shelf))

    return made
