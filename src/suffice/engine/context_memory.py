"""The memory that keys and values of one long text take, known before a model is loaded."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.cache import JOINT_DTYPES, fits_keys, token_bytes, types_of
from suffice.errors import OptionError

if TYPE_CHECKING:
    from suffice.decoder.config import DecoderConfig

TYPES = ("bfloat16", "int8", "planes", "kmeans4")  # the nearest to exact first
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def types_for(model: DecoderConfig) -> tuple[str, ...]:
    """Return the types of keys and values that a model can have, the nearest to exact first."""
    known = JOINT_DTYPES if model.joint else TYPES
    return tuple(each for each in TYPES if each in known and (model.alike or not fits_keys(each)))


def row_bytes(model: DecoderConfig, dtype: str) -> int:
    """Return the bytes of a token's keys and values in all layers; `dtype` may be KEYS/VALUES."""
    return token_bytes(*types_of(dtype), model.rows, joint=model.joint > 0)


def machine_bytes() -> int:
    """Return the bytes of memory of this machine, or of the control group that limits us."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        found.append(int(_CGROUP.read_text(encoding="ascii")))
    return min(found)


def check_context(tokens: int, model: DecoderConfig, dtype: str, limit: int | None) -> None:
    """Refuse a context that no text could ever fill: memory has no room for it.

    `tokens` are asked for; `limit` is that of all keys and values, None for the machine's memory.

    Raises:
        OptionError: A text of this length does not fit even alone; says what would.
    """
    whose = f"the machine's {in_words(machine_bytes())}" if limit is None else in_words(limit)
    room = machine_bytes() if limit is None else limit
    row = row_bytes(model, dtype)
    if tokens * row <= room:
        return
    others = [
        f"{each} {in_words(tokens * row_bytes(model, each))}"
        for each in types_for(model)
        if row_bytes(model, each) < row
    ]
    smaller = f" (as {', '.join(others)})" if others else ""
    raise OptionError(
        "max_model_len",
        tokens,
        f"must be at most {room // row}: a text of {tokens} tokens has {in_words(tokens * row)} of "
        f"keys and values as {dtype}{smaller}, and {whose} are all there is for them",
    )


def fitting(tokens: int, model: DecoderConfig, weights: int, memory: int) -> str | None:
    """Return the type nearest to exact in which a text fits into `memory` bytes with the weights.

    None if there is none.
    """
    room = memory - weights
    types = types_for(model)
    return next((each for each in types if tokens * row_bytes(model, each) <= room), None)


def in_words(size: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
