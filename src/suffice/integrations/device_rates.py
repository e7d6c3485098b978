"""Rates of a GPU: copying a cache, computing on it and reading it, which `bmc` balances.

They are measured once a process, in a fraction of a second.

Source   as `suffice.cache.machine`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from suffice.backends.triton.attend import attend
from suffice.backends.triton.call import Held, Tokens
from suffice.backends.triton.rules import HeadRules
from suffice.cache import Growth, with_defaults
from suffice.cache.machine import ELEMENT_BYTES, Machine
from suffice.integrations.grown import grown

_SHAPE = (8, 32, 2048, 128)  # requests, heads, rows, size: 128 MiB of keys, more than a GPU's cache
_SMALL = (1, 2, 64, 16)  # for Triton's interpreter
_SPARE, _REPEATS = 64, 5


@functools.cache
def rates(device: torch.device) -> Machine:
    """Return what a device does in a second."""
    batch, heads, rows, size = _SHAPE if device.type == "cuda" else _SMALL
    keys, values = (
        torch.zeros(batch, heads, rows, size, dtype=torch.bfloat16, device=device) for _ in range(2)
    )
    query = torch.zeros(batch, heads, 1, size, dtype=torch.bfloat16, device=device)
    owner, first = (torch.arange(batch, dtype=torch.int32, device=device) * x for x in (1, 0))
    tokens = Tokens(owner, first, first + rows, rows)
    rules, held = HeadRules.of([None] * heads, device), Held(keys, values)
    copies = 2 * keys.nbytes / _seconds(lambda: grown(keys, rows, rows + _SPARE), device)
    computed = _seconds(lambda: scaled_dot_product_attention(query, keys, values), device)
    read = _seconds(lambda: attend(rules, query[:, :, 0], held, tokens, scale=1.0), device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    reads = 2 * keys.nbytes / read
    today = time.strftime("%Y-%m-%d", time.gmtime())
    return Machine(name, 1, copies, 2 * keys.numel() / computed, reads, reads, today)


def fitted_to_device(growth: Growth, device: torch.device) -> Growth:
    """Return a growth policy fitted to a device and to the kernels, which skip spare rows."""
    return with_defaults(growth, copy_cost=rates(device).copy_cost, group=1, shrink=1.0)


def fitted_to_padding(growth: Growth, rows: torch.Tensor) -> Growth:
    """Return a growth policy fitted to a device where attention computes on spare `rows`, too."""
    shrink = ELEMENT_BYTES / rows.element_size()
    return with_defaults(growth, ratio=rates(rows.device).ratio, shrink=shrink)


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Return the median time of `work` after a warm-up run."""
    work()
    times = []
    for _ in range(_REPEATS):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
