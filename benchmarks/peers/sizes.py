"""Time suffice and llama.cpp on files in the shapes of models that people run.

    python -m benchmarks.peers.sizes                       everything without a result (hours)
    ... --shapes llama-3.2-1b --types Q4_0 --cases decode-0    a part of it
    ... --isa v3                  with AVX2 alone, next to a llama.cpp that is built for it
    ... --quick                   a trial run of a tiny shape, results in build/

Files have random codes (harness/shaped_models.py). They are made one by one and deleted after use
unless `--keep` is given. In every round the machine's streaming read, llama.cpp with each type of
cache, suffice without flags, and suffice with inputs and cache of 8 bits are measured one after the
other; waiting engines are stopped. Of llama.cpp's types of cache the faster one counts, by case; it
has flash attention and packs Q4_0 again, as is its default. A prompt before decoding is run once
and continued for a greater depth. A result is written after each case, by instruction set and
processor: `sizes_v3_25-17.json`. A later run leaves out what is there, unless `--again` is given,
and tries again what could not be measured.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks.harness import (
    record,
    script,
    shaped_file,
    shaped_latent,
    shaped_models,
    shaped_states,
)
from benchmarks.harness.shaped_models import Model
from benchmarks.harness.tables import CellStore
from benchmarks.peers import install
from benchmarks.peers.client import EngineError, Worker, engine_module
from benchmarks.peers.install import BUILD, PACKAGES, InstallError
from benchmarks.peers.sizes_report import CACHES, CASES, machine_of, row_of, table
from benchmarks.peers.speed import Case, Tell, of_roof, teller
from benchmarks.peers.start import available_bytes
from suffice import native
from suffice.errors import InputError

NAME = "sizes"
MODELS = {**shaped_models.MODELS, **shaped_states.MODELS, **shaped_latent.MODELS}
FILES = record.BUILD / "shaped"
SETTINGS = {
    "default": {"quantization": "file", "kv": "bfloat16"},
    "fast": {"quantization": "file:act_bits=8", "kv": "int8"},
}
AVX2 = "v3"
KEPT = ("seconds", "tokens_per_second", "roof_fraction")  # of an answer, in the results
BATCH_ROWS = 256  # context of each sequence of a batch
# Bytes of an element of all caches together: float16, q8_0, and suffice's two, which a run copies.
CACHE_BYTES = 2 + 34 / 32 + 2 * (2 + 1.1)
SPARE_BYTES = 2 << 30  # of memory, for all else


def cases(quick: bool) -> dict[str, Case]:
    """Return the cases by name; a quick run has the same in tiny sizes."""
    depths, prompts, count = (2000, 3000, 8000), (512, 2048), 32
    if quick:
        depths, prompts, count = (16, 24, 48), (16, 32), 4
    found = (
        Case(count=count),
        *(Case(depth=depth, count=count) for depth in depths),
        Case(batch=8, count=count // 2),
        *(Case(prompt=prompt) for prompt in prompts),
    )
    return dict(zip(CASES, found, strict=True))


def rows(wanted: Iterable[Case]) -> int:
    """Return the tokens of the longest case, rounded up."""
    longest = max(case.prompt or case.depth + 1 + case.count for case in wanted)
    return -(-longest // 256) * 256


def needed_bytes(model: Model, kind: str, case: Case) -> float:
    """Return the memory that a case takes: each engine's weights, and all caches."""
    elements = 2 * model.layers * model.kv_heads * model.head_size
    caches = rows([case]) * elements * CACHE_BYTES * case.batch
    return 2 * shaped_models.data_bytes(model, kind) + caches + SPARE_BYTES


def why_not(model: Model, kind: str, case: Case, available: float) -> str:
    """Return why a case cannot be measured; "" if it can."""
    if rows([case]) > model.context:
        return f"the model's context holds {model.context} tokens"
    needed = needed_bytes(model, kind, case)
    if needed > available:
        return f"needs {needed / 2**30:.1f} GiB of memory, {available / 2**30:.1f} are available"
    return ""


@contextmanager
def engines(path: Path, wanted: Iterable[Case], flags: argparse.Namespace) -> Iterator[Any]:
    """Start suffice and llama.cpp on a file, for cases of these lengths.

    Raises:
        EngineError: One of them does not start.
    """
    package = PACKAGES[package_of(flags.isa)]
    common = {"gguf": str(path), "rows": rows(wanted), "threads": flags.threads}
    ours = {"dtype": "auto", "settings": SETTINGS}
    theirs = {"flash": "on", "batch_rows": BATCH_ROWS}
    own = Path(sys.executable), dict(os.environ) | {"SUFFICE_ISA": flags.isa}
    peer = package.python, package.environment(flags.threads)
    workers: list[Worker] = []
    try:
        for (python, environment), name, options in (
            (own, "settings", common | ours),
            (peer, "llamacpp", common | theirs),
        ):
            log = BUILD / "log" / f"sizes-{name}.log"
            workers.append(Worker(python, engine_module(name), options, environment, log))
        yield workers
    finally:
        for worker in workers:
            worker.close()


def name_of(isa: str) -> str:
    """Return the name of the results of an instruction set on this processor."""
    machine = record.facts()["machine"]
    return f"{NAME}_{isa}_{machine['cpu_family_model'].replace('/', '-')}"


def package_of(isa: str) -> str:
    """Return the llama.cpp that an instruction set is compared with."""
    return "llama-cpp-python-v3" if isa == AVX2 else "llama-cpp-python"


def in_turn(ours: Worker, peer: Worker, case: Case, rounds: int, tell: Tell) -> list[Any]:
    """Return the rounds of a case, after one that does not count."""
    found = []
    for number in range(rounds + 1):
        tell(f"round {number} of {rounds}")
        read = ours.ask("roof")
        turn: dict[str, Any] = {
            "roof": read["bytes_per_second"],
            "roof_by_torch": read["torch_bytes_per_second"],
        }
        vocabulary = ours.about["vocabulary"]
        for cache in CACHES:
            turn[cache] = case.run(peer, vocabulary, number, cache=cache)
        for setting in SETTINGS:
            answer = case.run(ours, vocabulary, number, setting=setting)
            turn[setting] = of_roof(answer, turn["roof"])
        for engine in (*CACHES, *SETTINGS):
            turn[engine] = {name: turn[engine][name] for name in KEPT if name in turn[engine]}
        if number:
            found.append(turn)
    return found


def measure(
    store: CellStore, model: Model, kind: str, wanted: dict[str, Case], flags: argparse.Namespace
) -> None:
    """Make a file, measure cases of it and keep each.

    Raises:
        InputError: The disk has no room.
    """
    path = FILES / f"{model.name}-{kind}.gguf"
    try:
        if not path.exists():
            shaped_models.write(path, model, kind)
        while wanted:
            wanted = until_one_fails(store, row_of(model.name, kind), path, wanted, flags)
    finally:
        if not flags.keep:
            path.unlink(missing_ok=True)


def until_one_fails(
    store: CellStore, row: str, path: Path, wanted: dict[str, Case], flags: argparse.Namespace
) -> dict[str, Case]:
    """Measure cases of a file; return those after one that fails, whose reason is kept."""
    console = Console(stderr=True)
    names = list(wanted)
    try:
        with Progress(console=console) as progress, engines(path, wanted.values(), flags) as pair:
            task = progress.add_task("", total=len(wanted))
            while names:
                name = names[0]
                tell = teller(console, progress, task, f"{row}, {CASES[name]}")
                found = in_turn(*pair, wanted[name], flags.rounds, tell)
                facts = record.facts()
                about = {key: facts[key] for key in ("date", "commit", "command", "versions")}
                about |= {"machine": machine_of(facts["machine"]), "peer": pair[1].about}
                store.refused.pop(refused_as(row, name), None)
                store.keep(row, name, {"rounds": found, **about})
                names.pop(0)
                progress.advance(task)
    except EngineError as error:
        refuse(store, row, names.pop(0), str(error))
    return {name: wanted[name] for name in names}


def refused_as(row: str, case: str) -> str:
    """Return the name of a case in the list of what cannot be measured."""
    return f"{row}, {CASES[case]}"


def refuse(store: CellStore, row: str, case: str, reason: str) -> None:
    """Keep the reason why a case cannot be measured."""
    store.refused[refused_as(row, case)] = reason
    store.write()


def missing(
    store: CellStore, model: Model, kind: str, flags: argparse.Namespace
) -> dict[str, Case]:
    """Return the cases of a file that are asked for, fit, and have no result."""
    row, found = row_of(model.name, kind), {}
    for name, case in cases(flags.quick).items():
        known = name in store.cells.get(row, {})
        if name not in flags.cases or (known and not flags.again):
            continue
        if reason := why_not(model, kind, case, available_bytes()):
            refuse(store, row, name, reason)
        else:
            found[name] = case
    return found


def run(flags: argparse.Namespace) -> str:
    """Measure what has no result yet and return the table.

    Raises:
        InputError: llama.cpp cannot be installed, the disk has no room, or the stored results have
            another number of threads.
    """
    native.use_isa(flags.isa)
    folder = flags.output or (record.BUILD if flags.quick else record.results(__file__))
    config = {"threads": flags.threads, "isa": flags.isa, "quick": flags.quick}
    store = CellStore(folder, name_of(flags.isa), config, record.facts(), table)
    store.read()
    try:
        install.install(PACKAGES[package_of(flags.isa)], flags.jobs)
    except InstallError as error:
        raise InputError(str(error)) from None
    models = [shaped_models.TINY] if flags.quick else [MODELS[name] for name in flags.shapes]
    for model in models:
        for kind in flags.types:
            if wanted := missing(store, model, kind, flags):
                measure(store, model, kind, wanted, flags)
    return table(store)


def main() -> int:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=MODELS, default=list(MODELS))
    types = shaped_file.TYPES
    choices = (*types, *shaped_file.LOW)
    parser.add_argument("--types", nargs="+", choices=choices, default=list(types))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--isa", choices=native.isas(), default=native.isa())
    parser.add_argument("--again", action="store_true", help="measure what has a result, too")
    parser.add_argument("--keep", action="store_true", help="keep the files of the shapes")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, results in build/")
    flags = script.with_peers(parser)
    return script.printed(NAME, lambda: run(flags))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    sys.exit(main())
