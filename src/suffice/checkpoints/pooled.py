"""How an opened model embeds: as its files say, else by the last token's state, normalized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suffice.checkpoints.checkpoint import Checkpoint
from suffice.checkpoints.formats.quantized_file import Quantized
from suffice.decoder.pooling import LAST, MODES, Pooling
from suffice.errors import InputError, brief

FACT = "pooling"  # in a quantized file's header, and the end of a GGUF key
_GGUF = {1: "mean", 2: "cls", 3: LAST}  # llama.cpp's numbers; 0 is none


def pooling_of(opened: Checkpoint | Quantized) -> Pooling:
    """Return how a model embeds.

    Raises:
        InputError: Its files say so in a way that is damaged or not supported.
    """
    width = 0 if opened.config.projected else opened.config.width
    if isinstance(opened, Quantized):
        return _stored(opened, width)
    if opened.metadata is not None:
        found = _of_gguf(opened.path, opened.metadata)
    else:
        from suffice.checkpoints.sentence_folder import read_modules

        found = read_modules(opened.path, width)
    return Pooling(**{"size": width, **found}, headless=opened.headless)


def pooling_facts(opened: Checkpoint) -> dict[str, Any]:
    """Return the entry of a quantized file's header that says how a model embeds, if its files do.

    Raises:
        InputError: It has matrices after pooling, for which the file has no place.
    """
    pooling = pooling_of(opened)
    if pooling.dense:
        raise InputError("the model has Dense modules after pooling: these cannot be quantized")
    return {FACT: pooling.plain} if pooling.embeds or pooling.yes_no else {}


def _stored(opened: Quantized, width: int) -> Pooling:
    facts = opened.facts.get(FACT, {"size": width})
    try:
        found = Pooling.of(facts)
    except (TypeError, ValueError, AttributeError, IndexError):
        found = None
    if found is None or found.size != width or found.mode not in MODES:
        raise InputError(f"{opened.path} is damaged: '{FACT}' of its header has another form")
    return found


def _of_gguf(path: Path, metadata: Any) -> dict[str, Any]:
    key = f"{metadata.get('general.architecture')}.{FACT}_type"
    kind = metadata.get(key, 0)
    if kind == 0:
        return {}
    if not isinstance(kind, int) or kind not in _GGUF:
        raise InputError(
            f"{path}: the GGUF key '{key}' = {brief(kind)} is not supported; supported: 0 (none), "
            + ", ".join(f"{number} ({mode})" for number, mode in _GGUF.items())
        )
    return {"mode": _GGUF[kind], "declared": True}
