"""Time linear layers of 1 to 128 rows against the machine's limits.

    python -m benchmarks.engine.rows            layers of SmolLM2 and of a 7B model (5 minutes)
    SUFFICE_ISA=v3 python ...                   the same with AVX2, into a file of its own
    python -m benchmarks.engine.rows --quick    tiny sizes, to see that it runs

A layer must at least read its weights once from memory, and multiply each with each row. The
streaming read and the rate of products on the L1 cache are measured in every round, and a layer's
fraction is the longer of the two times that they allow over its own: the median of rounds. Weights
lie in a ring of copies that is larger than the caches, as a model's do; many rows, which take
longer for each, go through fewer. Inputs are float32 and rounded by the layer itself, which is part
of its time. int8 weights and codes of a file take inputs of 16 bits, two products of bytes for each
weight, or of 8 bits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.quant.matmul import normal, of_files, ring, seconds
from suffice import native
from suffice.quant import QUANTS, PackedLinear

SHAPES = ((3072, 576), (576, 1536), (4096, 4096), (14336, 4096))
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
RING_BYTES = 256 << 20
MANY_ROWS = 16  # from here on a fourth of the ring is enough
QUICK = record.BUILD / "rows-quick"
Layer = dict[str, Any]  # a layer's figures; those by rows are dicts


@dataclass(frozen=True)
class Kind:
    """A way to store weights; `products` of a type are taken for each weight and row."""

    name: str
    type: str
    products: int

    def packed(self, rows: int, columns: int) -> PackedLinear:
        """Return a random weight; int8 ones lie as those of a Q8_0 file do."""
        if self.type == "int8":
            name = "Q4_1" if self.name.startswith("Q4_1") else "Q8_0"
            return of_files(name, rows, columns, 8 if self.products == 1 else 16)
        dense = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
        return QUANTS.build("none:dtype=bfloat16").pack(dense)


BF16, INT8, CODES = "bfloat16", "int8, inputs of 16 bits", "Q4_1, inputs of 16 bits"
KINDS = (
    Kind(BF16, "bfloat16", 1),
    Kind(INT8, "int8", 2),
    Kind("int8, inputs of 8 bits", "int8", 1),
    Kind(CODES, "int8", 2),
    Kind("Q4_1, inputs of 8 bits", "int8", 1),
)


def main() -> int:
    """Measure, print the table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    shapes, rounds, size = SHAPES, flags.rounds, RING_BYTES
    if flags.quick:
        shapes, rounds, size = ((64, 256),), 2, 1 << 14
    lines = []
    for threads in sorted({1, native.cores()}):
        native.set_threads(threads)
        for shape in track(
            shapes, f"{threads} threads", console=Console(stderr=True), transient=True
        ):
            lines += measure(shape, threads, rounds, size)
    text = table(lines, native.isa())
    folder = QUICK if flags.quick else record.results(__file__)
    name = "rows" if flags.quick else record.name_of("rows")
    record.write(folder, name, record.facts() | {"rounds": rounds, "layers": lines}, text)
    print(text)
    return 0


def peaks_of(threads: int) -> dict[str, float]:
    """Return the products per second by type of weights.

    Where the processor has no products of bfloat16 pairs, float32 takes their place.
    """
    rates = {
        name: native.product_rate(name, threads, 1) for name in ("bfloat16", "float32", "int8")
    }
    return {"bfloat16": max(rates["bfloat16"], rates["float32"]), "int8": rates["int8"]}


def measure(shape: tuple[int, int], threads: int, rounds: int, ring_bytes: int) -> list[Layer]:
    """Return, for each kind of weight, the figures of its layer by rows."""
    n, k = shape
    rings = {kind: ring(kind.packed(n, k), ring_bytes) for kind in KINDS}
    taken: dict[tuple[Kind, int], list[float]] = {}
    limits: dict[tuple[Kind, int], list[float]] = {}
    roofs: list[dict[str, float]] = []
    for _ in range(rounds + 1):  # the first does not count
        roof = native.read_bandwidth(ring_bytes, threads, 1)
        peaks = peaks_of(threads)
        roofs.append({"read": roof} | peaks)
        for kind, copies in rings.items():
            for rows in ROWS:
                some = copies if rows < MANY_ROWS else copies[: -(-len(copies) // 4)]
                taken.setdefault((kind, rows), []).append(seconds(some, normal(rows, k)))
                products = n * k * rows * kind.products / peaks[kind.type]
                limits.setdefault((kind, rows), []).append(max(copies[0].bytes / roof, products))
    found = []
    for kind, copies in rings.items():
        times = {rows: taken[kind, rows][1:] for rows in ROWS}
        fractions = {
            rows: [limit / time for limit, time in zip(limits[kind, rows][1:], own, strict=True)]
            for rows, own in times.items()
        }
        over = {
            rows: [many / one for many, one in zip(times[rows], times[1], strict=True)]
            for rows in ROWS
        }
        found.append(
            {
                "shape": shape,
                "threads": threads,
                "weights": kind.name,
                "bytes": copies[0].bytes,
                "products_of_a_row": n * k * kind.products,
                "bytes_per_second": statistics.median(each["read"] for each in roofs),
                "products_per_second": statistics.median(each[kind.type] for each in roofs),
                "seconds": {rows: statistics.median(own) for rows, own in times.items()},
                "fraction": {rows: statistics.median(own) for rows, own in fractions.items()},
                "over_one": {rows: statistics.median(own) for rows, own in over.items()},
            }
        )
    return found


def line(each: Layer) -> list[object]:
    """Return the line of the table of a layer."""
    shape, over = each["shape"], each["over_one"]
    times, fractions = each["seconds"], each["fraction"]
    cells = [f"{1e6 * times[rows]:.0f}, {fractions[rows]:.2f}" for rows in ROWS]
    return [
        f"{shape[0]} x {shape[1]}",
        each["threads"],
        each["weights"],
        f"{each['bytes'] / 1e6:.2f}",
        f"{each['products_of_a_row'] / 1e6:.2f}",
        *cells,
        f"{over[8]:.2f}, {over[32]:.2f}",
    ]


def bars(lines: list[Layer]) -> list[list[object]]:
    """Return what was asked of the layers on all threads, and the range over their shapes."""
    threads = max(each["threads"] for each in lines)
    found = {
        (*each["shape"], each["weights"]): each for each in lines if each["threads"] == threads
    }

    def values(weights: str, figure: Callable[[Layer], float]) -> list[float]:
        return [figure(each) for (*_, name), each in found.items() if name == weights]

    pairs = [(found[n, k, CODES], found[n, k, INT8]) for n, k in sorted({key[:2] for key in found})]
    over = [codes["seconds"][128] / int8["seconds"][128] for codes, int8 in pairs]
    asked = [
        ("bfloat16, 128 rows: of the peak", 0.80, True, values(BF16, lambda e: e["fraction"][128])),
        ("int8, 128 rows: of the peak", 0.75, True, values(INT8, lambda e: e["fraction"][128])),
        ("Q4_1 over int8, 128 rows: time", 1.15, False, over),
        ("int8, 8 rows over one: time", 1.25, False, values(INT8, lambda e: e["over_one"][8])),
        ("int8, 32 rows over one: time", 2.2, False, values(INT8, lambda e: e["over_one"][32])),
    ]
    return [
        [
            what,
            f"at {'least' if least else 'most'} {limit}",
            f"{min(own):.2f} to {max(own):.2f}",
            f"{sum(each >= limit if least else each <= limit for each in own)} of {len(own)}",
        ]
        for what, limit, least, own in asked
    ]


def table(lines: list[Layer], isa: str) -> str:
    """Return the page."""
    limits = "; ".join(
        f"{each['threads']} threads, {each['weights']}: "
        f"{each['bytes_per_second'] / 1e9:.1f} GB/s, {each['products_per_second'] / 1e9:.0f} "
        "billion products/s"
        for each in lines
        if each["shape"] == lines[0]["shape"] and each["weights"] in (BF16, INT8)
    )
    head = ["N x K", "threads", "weights", "MB", "million products a row"]
    return "\n\n".join(
        [
            f"## Linear layers by rows, {isa}",
            markdown(["all threads", "asked", "measured", "shapes that reach it"], bars(lines)),
            markdown(
                [*head, *(f"{rows} rows" for rows in ROWS), "8, 32 over 1"],
                [line(each) for each in lines],
            ),
            "Microseconds, and the fraction of what the machine's limits allow. Inputs are rounded "
            f"by all threads, each some rows. Limits, measured in every round: {limits}.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
