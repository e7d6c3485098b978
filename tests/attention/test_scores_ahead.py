"""Threads that help a traversal that may stop change no bit of it.

They score keys ahead of it, and estimate blocks from sketches before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from caches import cache_of
from suffice import native
from suffice.attention import ATTENTIONS
from suffice.attention.exaq import EXAQ
from suffice.attention.rule import coded_rule
from suffice.backends.cpu.attention import attend
from suffice.cache import KV_DTYPES
from suffice.native import core

ROWS, SIZE, ROUNDS = 2000, 64, 8  # several pieces of 256 rows, also after a stop
SCALE = 0.1
SETTINGS = (
    "art:change=1e-18",
    "art:change=3e-2,angle=1,patience=2,block=16",
    "art:change=0.1,angle=1,patience=2,block=48,values=0.05",
    "art:change=3e-2,angle=1,patience=2,block=16,order=sketch",
    "aet:keys=0.6,values=0",
    "aet:keys=0.9,values=0.05",
    "aet:keys=all,values=0.05",
    "aet:keys=0.6,block=1",
    "skip_softmax:factor=500",
    "skip_softmax:factor=500,block=16,split=512",
)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = native.threads()
    yield
    native.set_threads(before)


def attended(setting: str, q: np.ndarray, cache: Any, coded: bool = False) -> tuple[Any, ...]:
    """Return the bits of the output, and what was read."""
    rule = ATTENTIONS.build(setting).rule()
    if coded:
        levels = EXAQ(3).layer_levels(3.0, -40.0)
        rule = coded_rule(rule, [levels] * (len(q) // cache.heads(0)))
    out, reads = attend(rule, q, cache, 0, scale=SCALE)
    return out.tobytes(), [(each.key_rows, each.value_rows, each.per_head_rows) for each in reads]


def same_by_any_threads(setting: str, q: np.ndarray, cache: Any, coded: bool = False) -> int:
    """Compare one thread with several; return the keys that were read."""
    core.set_threads(1)
    alone = attended(setting, q, cache, coded)
    for count in (2, 4):  # also more than there are cores
        core.set_threads(count)
        for _ in range(ROUNDS):
            assert attended(setting, q, cache, coded) == alone, (setting, count)
    return sum(each[0] for each in alone[1])


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_threads_do_not_change_a_bit(setting: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    keys, values = random.standard_normal((2, 1, ROWS, SIZE)).astype(np.float32)
    cache = cache_of(keys, values, dtype, sketch=True)
    q = 2 * random.standard_normal((3, 1, SIZE)).astype(np.float32)  # one head: a thread is idle
    read = same_by_any_threads(setting, q, cache)
    whole = any(each in setting for each in ("1e-18", "all", "skip_softmax"))
    assert read == ROWS if whole else 250 < read < ROWS, "it stops, but not at once"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_many_rows_share_keys(dtype: str) -> None:
    random = np.random.default_rng(2)
    keys, values = random.standard_normal((2, 1, ROWS, SIZE)).astype(np.float32)
    cache = cache_of(keys, values, dtype, sketch=True)
    q = random.standard_normal((40, 1, SIZE)).astype(np.float32)
    same_by_any_threads("art:change=1e-18", q, cache)


def test_drafts_and_codes() -> None:
    random = np.random.default_rng(3)
    keys, values = random.standard_normal((2, 1, ROWS, SIZE)).astype(np.float32)
    cache = cache_of(keys, values, "bfloat16", sketch=True)
    q = random.standard_normal((3, 5, SIZE)).astype(np.float32)
    stops = "art:change=3e-2,angle=1,patience=2"
    for setting in (stops, f"{stops},block=16,order=sketch", "aet:keys=0.9,values=0.05"):
        same_by_any_threads(setting, q, cache)
        same_by_any_threads(setting, q[:, :1], cache, coded=True)
