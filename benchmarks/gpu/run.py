"""Measure the kernels for GPUs: parts of about a minute each, kept cell by cell.

    python -m benchmarks.gpu.run --models DIR --data DIR      everything, on the GPU
    python -m benchmarks.gpu.run --parts exact,growth         some parts
    python -m benchmarks.gpu.run --interpret                  tiny sizes by Triton's interpreter
    python -m benchmarks.gpu.run --cpu --models DIR --data DIR   quality by native code on the CPU

A second run goes on where the first stopped: --minutes says when that is. Results are by device.
Nothing is downloaded: --models has SmolLM2-135M and Gemma 3 270M as folders of transformers or as
GGUF files, whose weights become bfloat16; --data has WikiText-2's test set. Parts that need neither
are exact, softmax and growth.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.gpu.parts import Part, Place


def main() -> int:
    """Run the parts that the command line names."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", help="their names, with commas between; default: all")
    parser.add_argument("--interpret", action="store_true", help="tiny sizes, without a GPU")
    parser.add_argument("--cpu", action="store_true", help="the part quality, on the CPU")
    parser.add_argument("--models", type=Path, help="folder of the models")
    parser.add_argument("--data", type=Path, help="folder of the texts")
    parser.add_argument("--minutes", type=float, help="begin no cell after this time")
    parser.add_argument("--output", type=Path, help="folder for the results")
    options = parser.parse_args()
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    from benchmarks.harness.script import printed

    return printed("gpu", lambda: run(options))


def run(options: argparse.Namespace) -> str:
    """Measure what is not measured yet; return the tables."""
    from suffice.errors import InputError, unknown

    parts = every_part()
    place = _place(options)
    usual = ["quality"] if options.cpu else list(parts)
    names = options.parts.split(",") if options.parts else usual
    for name in names:
        if name not in parts:
            raise unknown("part", name, parts)
    if options.cpu and names != ["quality"]:
        raise InputError(f"--cpu with --parts {options.parts}: must be quality")
    if options.minutes is not None and options.minutes <= 0:
        raise InputError(f"--minutes={options.minutes}: must be above 0")
    end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    return "\n\n".join(_measured(parts[name], place, options, end) for name in names)


def every_part() -> dict[str, Part]:
    """Return the parts by name."""
    from benchmarks.gpu import bounds, decode, exact, growth, quality, softmax, techniques

    modules = exact, techniques, bounds, decode, growth, softmax, quality
    every = [*(module.PART for module in modules), techniques.SWEPT]
    return {part.name: part for part in every}


def _place(options: argparse.Namespace) -> Place:
    import torch

    from benchmarks.gpu.parts import Place
    from suffice.errors import InputError

    if options.interpret:
        return Place(torch.device("cpu"), True, None, None)
    if options.cpu:
        return Place(torch.device("cpu"), False, options.models, options.data)
    if not torch.cuda.is_available():
        raise InputError("PyTorch sees no GPU: --interpret runs tiny sizes without one")
    device = torch.device("cuda", torch.cuda.current_device())
    return Place(device, False, options.models, options.data)


def _measured(part: Part, place: Place, options: argparse.Namespace, end: float) -> str:
    from rich.console import Console
    from rich.progress import Progress
    from triton.errors import TritonError

    from benchmarks.harness import record
    from benchmarks.harness.tables import CellStore

    slug = re.sub(r"\W+", "-", place.name.lower())
    usual = record.BUILD / "gpu" if options.interpret else record.results(__file__)
    config = {"device": place.name, "tiny": place.tiny}
    store = CellStore(
        options.output or usual, f"{part.name}_{slug}", config, record.facts(), part.table
    )
    store.read()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        cells = list(part.cells(place))
        for cell in progress.track(cells, description=part.name):
            done = cell.column in store.cells.get(cell.row, {})
            if done or time.monotonic() > end:
                continue
            try:
                store.keep(cell.row, cell.column, cell.measure())
            # No memory, a kernel that PyTorch does not have here, or one that Triton cannot build.
            except (RuntimeError, TritonError) as error:
                if options.interpret:
                    raise
                store.refused[f"{cell.row}, {cell.column}"] = str(error).splitlines()[0][:200]
                store.write()
    refused = [f"{cell}: {why}" for cell, why in store.refused.items()]
    return "\n\n".join([f"{part.about}, on {place.name}", part.table(store), *refused])


if __name__ == "__main__":
    sys.exit(main())
