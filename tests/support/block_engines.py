"""Engines with heads that draft blocks, and what such a head drafts after a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from block_heads import BLOCK
from engines import sharing
from suffice import LLM
from suffice.cache.with_head import CacheWithHead
from suffice.engine.block_heads import BlockHead
from suffice.engine.runner import Runner, Sequence
from suffice.errors import InputError

load = sharing(threads=2, dtype="float32")


def with_head(model: Path, head: Path, drafts: int = BLOCK - 1, **options: Any) -> LLM:
    speculator = {"method": "dflash", "model": str(head), "adaptive": False, "quantization": "file"}
    speculator["num_speculative_tokens"] = drafts
    return load(model, speculative_config=speculator, **options)


def parts(llm: LLM) -> tuple[Runner, BlockHead]:
    runner = llm.runner
    assert isinstance(runner, Runner) and isinstance(runner.head, BlockHead)
    return runner, runner.head


def cache_of(sequence: Sequence) -> CacheWithHead:
    assert isinstance(sequence.cache, CacheWithHead)
    return sequence.cache


def drafts(head: BlockHead, sequence: Sequence, last: int, depth: int | None = None) -> np.ndarray:
    depth = head.block_rows - 1 if depth is None else depth
    cache = cache_of(sequence)
    (found,) = head.block([cache], [last], [depth])
    head.end([cache])
    return found


def refusal_of(model: Path, head: Path, drafts: int = BLOCK - 1) -> str:
    """Return why a head is refused, in one line."""
    with pytest.raises(InputError) as error:
        with_head(model, head, drafts)
    message = str(error.value)
    assert "\n" not in message
    return message
