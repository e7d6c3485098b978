"""Time attention of 1 to 128 rows of a request against the machine's limits.

    python -m benchmarks.engine.attention_rows            heads of 7B models, SmolLM2 (10 minutes)
    SUFFICE_ISA=v3 python ...                             the same with AVX2, into a file of its own
    python -m benchmarks.engine.attention_rows --quick    tiny sizes, to see that it runs

Attention must read a request's keys and values at least once, and multiply each with every query
row. The streaming read and the rate of products on the L1 cache are measured in every round, and
the fraction is the longer of the two times that they allow over the time taken: the median of
rounds. Layers form a ring that is larger than the caches. Rows are those of a prompt or a chain of
drafts, 32 at a time as in a step. int8 keys and values are multiplied as pairs of int16; where the
instruction set has no products of a type, the fastest of what takes their place counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from suffice import native
from suffice.cache import alike
from suffice.cache.growth import Upfront
from suffice.cache.kv import MAX_TENTATIVE, KVCache
from suffice.trace import Trace

SHAPES = ((32, 8, 128), (9, 3, 64))  # query heads, key/value heads, size
DEPTHS = (1024, 4096)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
PEAKS = {  # of a storage type: the products that serve it, the fastest counts
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("int16",),
    "float32": ("float32",),
}
RING_BYTES = 128 << 20
BARS = {"chunk": 0.5, "over_one": 2.0}  # 128 rows at the greatest depth; 8 rows over one
QUICK = record.BUILD / "attention-rows-quick"


@dataclass(frozen=True)
class Subject:
    """Attention of rows after `depth` tokens of a request, in layers of one storage type."""

    shape: tuple[int, int, int]
    depth: int
    type: str

    def pairs(self, rows: int) -> int:
        """Return how many keys the rows see together, each row its own and those before."""
        return rows * self.depth + rows * (rows + 1) // 2

    def products(self, rows: int) -> int:
        """Return the multiply-adds of one layer: of scores and of values."""
        heads, _, size = self.shape
        return 2 * heads * size * self.pairs(rows)

    def cache(self, ring_bytes: int) -> KVCache:
        """Return a cache whose layers fill the ring, with random keys and values."""
        _, groups, size = self.shape
        rows = self.depth + max(ROWS)
        random = np.random.default_rng(0)
        keys, values = random.standard_normal((2, groups, rows, size), np.float32)
        one = self._empty(1, rows)
        cache = self._empty(max(2, ring_bytes // (one.row_bytes * rows)), rows)
        cache.reserve(rows)
        for layer in range(cache.layers):
            cache.append(layer, keys, values)
        return cache

    def _empty(self, layers: int, rows: int) -> KVCache:
        _, groups, size = self.shape
        return KVCache(
            alike(layers, groups, size), growth=Upfront(), limit=rows, key_dtype=self.type,
            value_dtype=self.type,
        )  # fmt: skip

    def bytes_read(self, cache: KVCache, rows: int) -> int:
        """Return the bytes of a layer's keys and values that the rows see."""
        return (self.depth + rows) * cache.row_bytes // cache.layers


def main() -> int:
    """Measure, print the table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    subjects = [
        Subject(shape, depth, type) for shape in SHAPES for depth in DEPTHS for type in PEAKS
    ]
    rounds, size = flags.rounds, RING_BYTES
    if flags.quick:
        subjects, rounds, size = [Subject((4, 2, 32), 64, type) for type in PEAKS], 2, 1 << 16
    lines = []
    for threads in sorted({1, native.cores()}):
        native.set_threads(threads)
        for subject in track(
            subjects, f"{threads} threads", console=Console(stderr=True), transient=True
        ):
            lines.append(measure(subject, threads, rounds, size))
    text = f"## Attention by rows, {native.isa()}\n\n" + markdown(
        ["heads", "depth", "threads", "stored as", *(f"{rows} rows" for rows in ROWS), "8 over 1"],
        [line(each) for each in lines],
    )
    text += (
        "\n\nMicroseconds of a layer, and the fraction of what the machine's limits allow."
        f" Wanted: {BARS['chunk']} for 128 rows at depth {max(DEPTHS)} in bfloat16; for heads 32/8"
        f" there, 8 rows within {BARS['over_one']} times the time of one."
    )
    folder = QUICK if flags.quick else record.results(__file__)
    name = "attention_rows" if flags.quick else record.name_of("attention_rows")
    record.write(folder, name, record.facts() | {"rounds": rounds, "layers": lines}, text)
    print(text)
    return 0


def attention(
    subject: Subject, cache: KVCache, rows: int
) -> tuple[Callable[[int], object], np.ndarray]:
    """Return what attends once in a given layer, and its output [rows, H, D].

    As in a step, 32 rows are a piece.
    """
    heads, groups, size = subject.shape
    starts = range(0, rows, MAX_TENTATIVE)
    counts = [min(MAX_TENTATIVE, rows - start) for start in starts]
    q = np.random.default_rng(1).standard_normal((rows, heads, size), np.float32)
    out = np.empty_like(q)
    visible = np.array([(2 << row % MAX_TENTATIVE) - 1 for row in range(rows)], dtype=np.uint32)
    lengths = np.array([subject.depth + start for start in starts], dtype=np.int32)
    reads = Trace(cache.layers, groups).rows

    def call(layer: int) -> object:
        return native.core.attend_rows(
            [cache.native] * len(counts), layer, lengths, np.array(counts, dtype=np.int32), q,
            visible.view(np.int32), size**-0.5, 0, out, [], reads,
        )  # fmt: skip

    return call, out


def seconds(call: Callable[[int], object], layers: int) -> float:
    """Return the mean time of a layer over the ring."""
    began = time.perf_counter()
    for layer in range(layers):
        call(layer)
    return (time.perf_counter() - began) / layers


def measure(subject: Subject, threads: int, rounds: int, ring_bytes: int) -> dict[str, object]:
    """Return a subject's figures by rows."""
    cache = subject.cache(ring_bytes)
    calls = {rows: attention(subject, cache, rows)[0] for rows in ROWS}
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    fractions: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for number in range(rounds + 1):  # the first does not count
        roof = native.read_bandwidth(ring_bytes, threads, 1)
        peak = max(native.product_rate(name, threads, 1) for name in PEAKS[subject.type])
        for rows, call in calls.items():
            # Many rows take long and wait for products, not for memory: some layers are enough.
            taken = seconds(call, max(2, cache.layers // rows))
            limit = max(subject.bytes_read(cache, rows) / roof, subject.products(rows) / peak)
            if number:
                times[rows].append(taken)
                fractions[rows].append(limit / taken)
    over = {
        rows: [many / one for many, one in zip(own, times[1], strict=True)]
        for rows, own in times.items()
    }
    return {
        "shape": subject.shape,
        "depth": subject.depth,
        "threads": threads,
        "type": subject.type,
        "seconds": {rows: statistics.median(own) for rows, own in times.items()},
        "fraction": {rows: statistics.median(own) for rows, own in fractions.items()},
        "over_one": {rows: statistics.median(own) for rows, own in over.items()},
    }


def line(each: dict[str, object]) -> list[object]:
    """Return a subject's line of the table."""
    shape, times, fractions, over = (
        each[name] for name in ("shape", "seconds", "fraction", "over_one")
    )
    assert isinstance(shape, tuple)
    assert isinstance(times, dict) and isinstance(fractions, dict) and isinstance(over, dict)
    heads, groups, size = shape
    cells = [f"{1e6 * times[rows]:.0f}, {fractions[rows]:.2f}" for rows in ROWS]
    name = f"{heads}/{groups} of {size}"
    return [name, each["depth"], each["threads"], each["type"], *cells, f"{over[8]:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
