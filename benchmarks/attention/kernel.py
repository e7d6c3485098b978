"""Time the attention kernel alone, in one thread, against the machine's limits and torch.

    python -m benchmarks.attention.kernel            the table (a few minutes)
    python -m benchmarks.attention.kernel --quick    tiny sizes, to see that it runs

32 query heads on 8 key/value heads of size 128, random numbers. Each pass goes once through a ring
of layers larger than the CPU caches, so that keys and values come from memory. Every round also
measures the streaming read and the rate of multiply-adds, since a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.harness import record
from benchmarks.harness.roofline import MARGIN, torch_read_bandwidth
from benchmarks.harness.tables import markdown
from suffice import native
from suffice.cache import alike, row_bytes
from suffice.cache.growth import Upfront
from suffice.cache.kv import KVCache

HEADS, KV_HEADS, SIZE = 32, 8, 128
SCALE = SIZE**-0.5
ROWS = (1, 8)
DTYPES = ("bfloat16", "float16", "float32", "int8", "planes", "kmeans4")
TORCH_DTYPES = {"torch bfloat16": torch.bfloat16, "torch float32": torch.float32}
RING_BYTES = 512 << 20
READ_BYTES = 512 << 20
RANDOM = np.random.default_rng(0)
QUICK = record.BUILD / "kernel-quick"
PRODUCT = 1024  # a float32 product of this many rows, columns and terms gives the rate


@dataclass
class Subject:
    """A kernel on a ring of layers: `call(layer)` attends once and reads `bytes_read`."""

    kind: str
    rows: int
    layers: int
    bytes_read: int
    call: Callable[[int], Any]

    def seconds(self) -> float:
        """Return the seconds of one call, the mean of a pass through the ring."""
        began = time.perf_counter()
        for layer in range(self.layers):
            self.call(layer)
        return (time.perf_counter() - began) / self.layers


def ring(layer_bytes: int, quick: bool) -> int:
    """Return how many layers exceed the CPU caches."""
    return 2 if quick else max(2, RING_BYTES // layer_bytes)


def suffice_subjects(dtype: str, length: int, quick: bool) -> list[Subject]:
    """Return our kernel on a cache of one type, for each number of query rows."""
    layers = ring(2 * KV_HEADS * length * row_bytes(dtype, SIZE), quick)
    cache = KVCache(
        alike(layers, KV_HEADS, SIZE), growth=Upfront(), limit=length + max(ROWS), key_dtype=dtype,
        value_dtype=dtype,
    )  # fmt: skip
    rows = length + max(ROWS)
    cache.reserve(rows)
    keys, values = RANDOM.standard_normal((2, KV_HEADS, rows, SIZE), np.float32)
    for layer in range(layers):
        cache.append(layer, keys, values)
    return [_suffice(cache, dtype, length, count) for count in ROWS]


def _suffice(cache: KVCache, dtype: str, length: int, rows: int) -> Subject:
    query = RANDOM.standard_normal((rows, HEADS, SIZE), np.float32)
    out = np.empty_like(query)
    visible = np.array([(2 << row) - 1 for row in range(rows)], dtype=np.int32)

    def call(layer: int) -> None:
        cache.native.attend(layer, length, query, visible, SCALE, 0, None, out)

    bytes_read = (length + rows) * cache.row_bytes // cache.layers
    return Subject(dtype, rows, cache.layers, bytes_read, call)


def torch_subjects(kind: str, length: int, quick: bool) -> list[Subject]:
    """Return torch's attention with grouped heads and no mask, for each number of query rows."""
    dtype = TORCH_DTYPES[kind]
    layer_bytes = 2 * KV_HEADS * length * SIZE * dtype.itemsize
    layers = ring(layer_bytes, quick)
    one = torch.randn(2, 1, KV_HEADS, length, SIZE).to(dtype)
    held = [one.clone() for _ in range(layers)]

    def subject(rows: int) -> Subject:
        query = torch.randn(1, HEADS, rows, SIZE).to(dtype)

        def call(layer: int) -> torch.Tensor:
            keys, values = held[layer]
            return torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, enable_gqa=True
            )

        return Subject(kind, rows, layers, layer_bytes, call)

    return [subject(rows) for rows in ROWS]


def multiply_adds_per_second() -> float:
    """Return this core's rate of float32 multiply-adds.

    It is the best of several square matmuls, which run close to the peak in a good library.
    """
    a, b = torch.randn(2, PRODUCT, PRODUCT)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - began)
    return float(PRODUCT**3 / best)


def measure(
    length: int, rounds: int, quick: bool, tell: Callable[[], object]
) -> tuple[list[Subject], list[dict[str, Any]]]:
    """Return the subjects, and the machine's rates and each subject's seconds in each round."""
    subjects = [each for dtype in DTYPES for each in suffice_subjects(dtype, length, quick)]
    subjects += [each for kind in TORCH_DTYPES for each in torch_subjects(kind, length, quick)]
    read_bytes = READ_BYTES // 16 if quick else READ_BYTES
    found = []
    for number in range(rounds + 1):
        roof = native.read_bandwidth(read_bytes, 1, 7)
        check = torch_read_bandwidth(read_bytes)
        rate = multiply_adds_per_second()
        seconds = [subject.seconds() for subject in subjects]
        if number:  # the first does not count
            rates = {"roof": roof, "roof_by_torch": check, "multiply_adds": rate}
            found.append(rates | {"seconds": seconds})
        tell()
    return subjects, found


def rows_of(length: int, subjects: list[Subject], rounds: list[dict[str, Any]]) -> list[list[Any]]:
    """Return the rows of a table: medians over rounds, ratios within a round."""
    index = {(s.kind, s.rows): at for at, s in enumerate(subjects)}

    def ratio(at: int, other: int) -> float:
        return float(statistics.median(r["seconds"][at] / r["seconds"][other] for r in rounds))

    lines = []
    for at, subject in enumerate(subjects):
        products = 2 * subject.rows * HEADS * length * SIZE
        memory = [subject.bytes_read / r["roof"] for r in rounds]
        arithmetic = [products / r["multiply_adds"] for r in rounds]
        fraction = [m / r["seconds"][at] for m, r in zip(memory, rounds, strict=True)]
        lines.append(
            [
                length,
                subject.kind,
                subject.rows,
                1000 * statistics.median(r["seconds"][at] for r in rounds),
                statistics.median(fraction),
                1000 * statistics.median(memory),
                1000 * statistics.median(arithmetic),
                ratio(at, index["bfloat16", subject.rows]),
                ratio(at, index["int8", subject.rows]),
                ratio(at, index[subject.kind, 1]),
            ]
        )
    return lines


HEAD = ["S", "K and V", "query rows", "ms", "of the streaming read", "ms to read",
        "ms to multiply", "time over bf16's", "time over int8's", "time over 1 row's"]  # fmt: skip


# (kind, query rows) -> a target: its name, column of a row, limit, at least or at most
BARS = {
    ("bfloat16", 1): ("bf16, fraction of the streaming read", 4, 0.60, "at least"),
    ("int8", 1): ("int8, time over bf16's", 7, 0.60, "at most"),
    ("planes", 1): ("planes, time over int8's", 8, 1.10, "at most"),
    ("kmeans4", 1): ("kmeans4, time over int8's", 8, 0.75, "at most"),
    ("bfloat16", 8): ("bf16, 8 query rows over 1", 9, 1.50, "at most"),
}


def bars(lines: list[list[Any]], roof_too_low: bool) -> list[list[Any]]:
    """Return the targets with the measured values."""
    found = []
    for line in lines:
        length, kind, rows = line[:3]
        if (kind, rows) not in BARS:
            continue
        what, column, limit, side = BARS[kind, rows]
        value = line[column]
        reached = "yes" if (value >= limit) == (side == "at least") else "no"
        if roof_too_low and side == "at least":
            reached = "unknown: torch reads faster than this roof"
        found.append([f"{what}, S = {length}", f"{side} {limit:.2f}", value, reached])
    return found


NOTE = (
    "Medians; ratios within a round. 'ms to read': the bytes over this core's streaming read. 'ms"
    " to multiply': the products over the rate of multiply-adds that this core reaches in a float32"
    f" product of {PRODUCT} x {PRODUCT} (torch). A kernel with float32 sums cannot beat the greater"
    " of the two: eight rows of four heads are 32 multiply-adds per element that is read."
    " torch: scaled_dot_product_attention with enable_gqa and no mask."
)


def write(folder: Path, quick: bool, results: dict[int, Any], lines: list[list[Any]]) -> None:
    rounds = [each for _, found in results.values() for each in found]
    roof = statistics.median(each["roof"] for each in rounds)
    check = statistics.median(each["roof_by_torch"] for each in rounds)
    rate = statistics.median(each["multiply_adds"] for each in rounds)
    data = record.facts() | {
        "quick": quick,
        "shape": {"heads": HEADS, "kv_heads": KV_HEADS, "head_size": SIZE},
        "threads": 1,
        "note": NOTE,
        "lines": [dict(zip(HEAD, line, strict=True)) for line in lines],
        "rounds": {
            length: {
                "subjects": [[s.kind, s.rows, s.layers, s.bytes_read] for s in subjects],
                "rounds": found,
            }
            for length, (subjects, found) in results.items()
        },
    }
    text = ["## The attention kernel, 32/8 heads of 128, one thread", ""]
    text += ["**A quick run of tiny sizes: no figure means anything.**", ""] * quick
    reached = bars(lines, check > MARGIN * roof)
    text += [markdown(["what", "to reach", "measured", "reached"], reached), ""]
    text += [markdown(HEAD, lines), "", NOTE, ""]
    text += [
        f"{data['machine']['cpu']}, {data['machine']['isa']}: streaming read"
        f" {roof / 1e9:.1f} GB/s (torch reads {check / 1e9:.1f}), {rate / 1e9:.1f} billion"
        " multiply-adds per second."
    ]
    record.write(folder, "kernel", data, "\n".join(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, results in build/")
    parser.add_argument("--rounds", type=int, default=None, help="default: 7, quick: 2")
    parser.add_argument("--output", type=Path, help="folder for the results")
    options = parser.parse_args()
    rounds = options.rounds or (2 if options.quick else 7)
    lengths = (64, 160) if options.quick else (4096, 16384)
    native.set_threads(1)
    torch.set_num_threads(1)
    results = {}
    with Progress(console=Console(stderr=True)) as progress, torch.inference_mode():
        for length in lengths:
            task = progress.add_task(f"S = {length}", total=rounds + 1)
            tell = partial(progress.advance, task)
            results[length] = measure(length, rounds, options.quick, tell)
    lines = [line for length, found in results.items() for line in rows_of(length, *found)]
    folder = options.output or (QUICK if options.quick else record.results(__file__))
    write(folder, options.quick, results, lines)


if __name__ == "__main__":
    main()
