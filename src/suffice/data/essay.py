"""A text that comes with the package: hay for RULER's needles, and what keys are looked at on."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def essay() -> str:
    """Return an essay of 5000 words in English."""
    return (files("suffice.data") / "essay.txt").read_text(encoding="utf-8")
