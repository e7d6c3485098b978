"""Time matmuls of the formats of files and of other types, the streaming read, and counted pairs.

    python -m benchmarks.quant.matmul            two sizes of a 7B model's layers (minutes)
    SUFFICE_ISA=v3 python ...                    the same with AVX2, into a file of its own
    python -m benchmarks.quant.matmul --quick    tiny sizes, to see that it runs

A ring of copies of each weight is larger than the caches, as a model's layers are. `codes` are
codebook weights of 4 bits, names in capitals the types of GGUF files; inputs have 16 bits unless
int8 is said. The limits are the streaming read, and integer products of inputs in the L1 cache:
int8 if inputs are int8, else int16. Settings take turns. Because a
machine's speed drifts, a ratio compares times of one round, and the median over rounds counts; for
times the best counts. `counted` is the paper's index-based product (counters of pairs of codes, for
4-bit activations), on one thread with a single copy in the cache: a circuit gains from it, a CPU
does not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from suffice import native
from suffice.backends.cpu.linear import native_linear
from suffice.backends.cpu.outliers import outliers
from suffice.backends.cpu.rounding import pack_groups
from suffice.checkpoints.formats.gguf_types import CODES
from suffice.decoder.pages import to_huge_pages
from suffice.quant import QUANTS, PackedLinear
from suffice.quant.code_layout import NESTED
from suffice.quant.code_panels import spans as spans_of
from suffice.quant.coded import Coded, Grid
from suffice.quant.kmeans import INT8, NARROW
from suffice.quant.outliers import reference
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes, pack_codes
from suffice.quant.panels import ROWS as PANEL_ROWS

SIZES = [(4096, 4096), (14336, 4096)]
RANDOM = np.random.default_rng(0)
QUICK = record.BUILD / "matmul-quick"
RING_BYTES = 256 << 20  # of all copies of a weight, and of the streaming read
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


def main() -> int:
    """Measure, print the tables and store them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    flags = parser.parse_args()
    sizes, rounds, ring = (SIZES, flags.rounds, RING_BYTES)
    if flags.quick:
        sizes, rounds, ring = [(64, 256)], 2, 1 << 14
    products: list[list[object]] = []
    for threads in sorted({1, native.cores()}):
        native.set_threads(threads)
        for size in sizes:
            products += measure(size, threads, rounds, ring)
    native.set_threads(1)
    counts = [counted(size, rounds) for size in sizes]
    picks = [picked(n, k, rounds) for n, k in ((576, 3), (1536, 8), (4096, 20), (14336, 72))]
    head = ["N x K", "threads", "weights", "rows", "us", "GB/s"]
    head += ["of the roof", "of the products", "over one row"]
    text = "\n\n".join(
        (
            f"## Products out of the cache, {native.isa()}\n\n" + markdown(head, products),
            "## Counted pairs of codes, one thread\n\n"
            + markdown(["N x K", "counted us", "codes us", "times slower"], counts),
            "## The k greatest and least of N, one thread\n\n"
            + markdown(["N", "k", "kernel us", "torch.topk us", "comparisons"], picks),
        )
    )
    data = {"products": products, "counted": counts, "outliers": picks}
    folder = QUICK if flags.quick else record.results(__file__)
    name = "matmul" if flags.quick else record.name_of("matmul")
    record.write(folder, name, record.facts() | data, text)
    print(text)
    return 0


def codes(rows: int, columns: int, group: int, a: int = 16, bits: int = 4) -> PackedCodes:
    """Return a random weight in codes, for inputs of `a` bits."""
    most = NARROW if a == 8 else INT8
    levels = np.rint(np.linspace(-most, most, 2**bits, dtype=np.float32))
    grid = Grid(levels, np.ones((rows, -(-columns // group)), np.float32), group)
    random = np.random.default_rng(0).integers(2**bits, size=(rows, columns), dtype=np.uint8)
    return pack_codes(Coded(random, grid), a=a)


def of_files(name: str, rows: int, columns: int, a: int) -> PackedCodes:
    """Return a random weight in the codes of a type of GGUF files, for inputs of `a` bits."""
    layout, levels = CODES[name]
    random = np.random.default_rng(0)
    given: dict[str, Any] = {"bias": None, "levels": levels, "most": INPUT_LEVELS[a]}
    if layout.grid != "none":  # all bytes are places and scales, but those of outer scales
        shape = (-(-rows // PANEL_ROWS), layout.panel_bytes(columns))
        data = random.integers(256, size=shape, dtype=np.uint8)
        for header, _ in spans_of(layout, columns):
            data[:, header : header + 4 * PANEL_ROWS] = np.ones(PANEL_ROWS, np.float32).view(
                np.uint8
            )
        return PackedCodes(data, rows, columns, layout=layout, **given)
    stored = random.integers(2**layout.bits, size=(rows, columns), dtype=np.uint8)
    groups, spans = (rows, columns // layout.group), (rows, columns // NESTED, 2)
    # Bytes near 128 are scales near 1 if they are powers, and small whole numbers if nested.
    bytes_of = {"nested": np.int8, "power": np.uint8, "e4m3": np.uint8}
    scales = random.integers(100, 128, groups).astype(bytes_of.get(layout.scales, np.float16))
    minima = None
    if layout.minima != "none":
        minima = random.integers(16, size=groups)
        minima = minima.astype(np.float16 if layout.minima == "float16" else np.uint8)
    outer = np.ones(spans, np.float16) if layout.scales == "nested" else None
    data = pack_groups(stored, layout, scales, minima, outer)
    return PackedCodes(data, rows, columns, layout=layout, **given)


def measure(
    size: tuple[int, int], threads: int, rounds: int, ring_bytes: int
) -> list[list[object]]:
    """Return a line of the table for each type of weight and number of rows."""
    rows, columns = size
    dense = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
    weights: dict[str, PackedLinear] = {
        **{name: of_files(name, rows, columns, 16) for name in CODES},
        **{f"{name}, int8 inputs": of_files(name, rows, columns, 8) for name in CODES},
        "codes, group 32": codes(rows, columns, 32),
        "codes, a scale a row": codes(rows, columns, columns),
        "codes, a scale a row, int8 inputs": codes(rows, columns, columns, 8),
        "bfloat16": QUANTS.build("none:dtype=bfloat16").pack(dense),
    }
    rings = {name: ring(weight, ring_bytes) for name, weight in weights.items()}
    taken: dict[tuple[str, int], list[float]] = {}
    roofs: list[float] = []
    peaks: dict[str, list[float]] = {"int8": [], "int16": []}
    for _ in range(rounds):
        roofs.append(native.read_bandwidth(ring_bytes, threads, 1))
        for kind, rates in peaks.items():
            rates.append(native.product_rate(kind, threads, 1))
        for name, copies in rings.items():
            for count in ROWS:
                took = seconds(copies, normal(count, columns))
                taken.setdefault((name, count), []).append(took)
    table: list[list[object]] = []
    for (name, count), times in taken.items():
        size_of = weights[name].bytes
        of_roof = [size_of / took / roof for took, roof in zip(times, roofs, strict=True)]
        peak = peaks["int8" if "int8" in name else "int16"]
        products = [
            rows * columns * count / took / at for took, at in zip(times, peak, strict=True)
        ]
        over_one = [took / one for took, one in zip(times, taken[name, 1], strict=True)]
        best = min(times)
        line = [f"{rows} x {columns}", threads, name, count, 1e6 * best, size_of / best / 1e9]
        of_products = "" if name == "bfloat16" else statistics.median(products)
        table.append([*line, statistics.median(of_roof), of_products, statistics.median(over_one)])
    return table


def ring(weight: PackedLinear, size: int) -> list[PackedLinear]:
    """Return copies of a weight that fill `size` bytes, allocated as a model's weights are."""
    copies: dict[str, PackedLinear | np.ndarray] = {
        str(i): replace(weight) for i in range(max(2, size // weight.bytes))
    }
    to_huge_pages(copies)
    return [each for each in copies.values() if isinstance(each, PackedLinear)]


def normal(*shape: int) -> np.ndarray:
    """Return normal random numbers, float32."""
    return RANDOM.standard_normal(shape, np.float32)


def seconds(copies: list[PackedLinear], x: np.ndarray) -> float:
    """Return the mean time of a matmul over a ring."""
    y = np.empty((len(x), -(-copies[0].rows // 16) * 16), np.float32)
    layers = [native_linear(copy) for copy in copies]
    began = time.perf_counter()
    for layer in layers:
        layer(x, y)
    return (time.perf_counter() - began) / len(layers)


def counted(size: tuple[int, int], rounds: int) -> list[object]:
    """Return the times of counting pairs and of the matmul of codes, in the cache."""
    weight = codes(*size, size[1])
    x = RANDOM.integers(16, size=size[1], dtype=np.uint8)
    levels = np.linspace(-1, 1, 16, dtype=np.float32)
    y = np.empty(size[0], np.float32)
    slow = fast = float("inf")
    for _ in range(max(2, rounds // 4)):
        began = time.perf_counter()
        native_linear(weight).count_pairs(x, levels, y)
        slow = min(slow, time.perf_counter() - began)
        fast = min(fast, seconds([weight] * 4, normal(1, size[1])))
    return [f"{size[0]} x {size[1]}", 1e6 * slow, 1e6 * fast, slow / fast]


def picked(size: int, count: int, rounds: int) -> list[object]:
    """Return the time of selecting outliers, and the comparisons of the two trees."""
    values, found = normal(size), np.empty((2, count), np.int32)
    tensor = torch.from_numpy(values)
    own = theirs = float("inf")
    for _ in range(10 * rounds):
        began = time.perf_counter()
        native.core.outliers(values, found)
        own = min(own, time.perf_counter() - began)
        began = time.perf_counter()
        tensor.topk(count)
        tensor.topk(count, largest=False)
        theirs = min(theirs, time.perf_counter() - began)
    trees = reference(values, count)
    assert outliers(values, count).greatest == trees.greatest
    return [size, count, 1e6 * own, 1e6 * theirs, trees.comparisons]


if __name__ == "__main__":
    sys.exit(main())
