"""What long texts take: memory, a decode step's time and a prompt's, by type of keys and values.

    python -m benchmarks.engine.long_contexts                          all (an hour)
    ... --shapes llama-3.1-8b --lengths 8192 32768 --types int8        a part of it
    ... --memory 12                   measure what fits into 12 GB, compute the rest
    ... --quick                       a tiny shape, to see that it runs

Files have random codes in a model's shape (Q4_0), and the cache is filled with random rows, the
same thousand again and again, instead of running a text. A step decodes one token at the end of a
text; a part of a prompt has 128 tokens. A prompt's time is computed from its parts: they get longer
along a line, from that at the beginning to that at the end. What does not fit is computed along the
line from a short text to the longest that fits. Each cell says which; it is written when its column
is done, and a later run leaves out what is there, unless `--again` is given. How much `tiers` reads
of random rows is not what it reads of a text.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import record, script, shaped_models
from benchmarks.harness.shaped_models import MODELS, TINY, Model
from benchmarks.harness.tables import CellStore, markdown
from benchmarks.peers.start import available_bytes
from suffice import LLM, native
from suffice.cache import row_bytes, stored_rows

NAME, KIND = "long_contexts", "Q4_0"
FILES = record.BUILD / "shaped"
SHAPES = ("llama-2-7b", "llama-3.1-8b")
LENGTHS, QUICK_LENGTHS = (8192, 32_768, 65_536, 131_072), (256, 512, 1024)
TYPES: dict[str, dict[str, Any]] = {
    "bfloat16": {"kv_cache_dtype": "bfloat16"},
    "int8": {"kv_cache_dtype": "int8"},
    "planes": {"kv_cache_dtype": "planes"},
    "kmeans4": {"kv_cache_dtype": "kmeans4"},
    "tiers": {"kv_cache_dtype": "bfloat16", "attention": "tiers"},
}
SKETCHED = 1.3  # bytes of rows with a copy in 4 bits, over the rows; measured cells say it exactly
PART, STEPS, CHUNK = 128, 5, 1024  # tokens of a prompt; timed steps; random rows
SPARE = 1.5e9  # bytes, for all else
NOTE = "**A quick run of a tiny shape: no figure means anything.**"
HEAD = [
    "shape",
    "tokens",
    "type",
    "rows, GB",
    "all, GB",
    "a step, s",
    "a prompt, s",
    "memory, step",
]
Cell = dict[str, Any]


def rows_bytes(model: Model, kind: str, tokens: int) -> float:
    """Return about how many bytes the cache of a text takes."""
    each = 2 * model.layers * model.kv_heads * row_bytes(TYPES[kind]["kv_cache_dtype"], model.head)
    return tokens * each * (SKETCHED if kind == "tiers" else 1.0)


def fits(model: Model, kind: str, tokens: int, most: float) -> bool:
    """Whether a text is measured: its rows, the weights and all else are at most `most` bytes."""
    weights = shaped_models.data_bytes(model, KIND)
    return 1.1 * weights + rows_bytes(model, kind, tokens) + SPARE <= most


def fill(cache: Any, tokens: int) -> None:
    """Fill a cache up to a length with random rows: those of its beginning again and again."""
    random = np.random.default_rng(0)
    rows = math.gcd(tokens, CHUNK)
    shape = cache.heads(0), rows, cache.size(0)
    keys, values = (random.standard_normal(shape, np.float32) for _ in range(2))
    for layer in range(cache.layers):
        cache.append(layer, keys, values)
    cache.advance(rows)
    with os.fdopen(os.memfd_create("rows"), "wb") as file:
        file.write(stored_rows.taken(cache, 0, rows).data)
        file.flush()
        for first in range(rows, tokens, rows):
            stored_rows.read(cache, first, rows, file.fileno(), 0)
    stored_rows.resume(cache, tokens)


def resident() -> int:
    """Return the bytes of memory that this process has."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return int(found) * 1024


def point(llm: LLM, tokens: int) -> Cell:
    """Return the memory with a text, and the seconds of a step and of a part at its end."""
    runner, vocabulary = llm.runner, llm.runner.vocabulary
    sequence: Any = runner.open("text", tokens + PART + STEPS + 2)
    cache = sequence.cache
    cache.tight = True
    cache.reserve(tokens + PART + STEPS + 2)
    fill(cache, tokens)
    steps = []
    for at in range(STEPS + 1):  # the first makes what follows from rows
        runner.reserve(sequence)
        began = time.perf_counter()
        runner.step([sequence], [at * 7919 % vocabulary])
        steps.append(time.perf_counter() - began)
    parts = []
    for _ in range(2):
        cache.truncate(tokens)
        began = time.perf_counter()
        runner.prefill(sequence, [at * 7919 % vocabulary for at in range(PART)])
        parts.append(time.perf_counter() - began)
    cache.truncate(tokens)
    found = {
        "tokens": tokens,
        "rows": cache.held_bytes,
        "all": resident(),
        "step": statistics.median(steps[1:]),
        "part": min(parts),
    }
    runner.close(sequence)
    return found


def column(path: Path, kind: str, lengths: Sequence[int], threads: int | None) -> list[Cell]:
    """Return the points of a type: of a short text, then of these; in a process of its own."""
    longest = max([PART, *lengths]) + PART + STEPS + 2
    given = {"packed": False, "threads": threads, "max_model_len": longest}
    llm = LLM(str(path), **TYPES[kind], **given)
    return [point(llm, tokens) for tokens in (PART, *lengths)]


def line(first: Cell, last: Cell, name: str, tokens: int) -> float:
    """Return a figure of a text of `tokens`, along the line through two others."""
    slope = (last[name] - first[name]) / (last["tokens"] - first["tokens"])
    return float(last[name] + slope * (tokens - last["tokens"]))


def cell(model: Model, kind: str, points: list[Cell], tokens: int) -> Cell:
    """Return what is said of a text, by the points of its type."""
    first, *others = points
    own = next((each for each in others if each["tokens"] == tokens), None)
    if own is None and not others:
        weights = shaped_models.data_bytes(model, KIND)
        rows = rows_bytes(model, kind, tokens)
        return {"how": "computed", "rows": rows, "all": weights + rows}
    found = own or {
        name: line(first, others[-1], name, tokens) for name in ("rows", "all", "step", "part")
    }
    each = (first["part"] + found["part"]) / 2 / PART
    named = {name: found[name] for name in ("rows", "all", "step")}
    how = "computed" if own is None else "measured"
    return {"how": how, **named, "prompt": each * tokens, "part": found["part"]}


def table(store: CellStore) -> str:
    """Return the cells as a table."""
    rows = []
    named = ((*row.split(" "), columns) for row, columns in store.cells.items())
    for shape, tokens, columns in sorted(named, key=lambda each: (each[0], int(each[1]))):
        for kind in (kind for kind in TYPES if kind in columns):
            own = columns[kind]
            times = [own.get(name, "not known") for name in ("step", "prompt")]
            sizes = [own[name] / 1e9 for name in ("rows", "all")]
            rows.append([shape, int(tokens), f"`{kind}`", *sizes, *times, own["how"]])
    about = (
        f"Weights in {KIND}, {store.config['threads']} threads. 'rows' are keys and values with "
        "what is kept of them, 'all' is the process, weights included. A prompt's time is always "
        "computed, from parts at its beginning and its end. 'computed' is along the line through a "
        "short text and the longest that fitted. Rows are random: of a text's, `tiers` reads "
        "another share."
    )
    quick = [NOTE] * store.config["quick"]
    return "\n\n".join(["## Long contexts", *quick, about, markdown(HEAD, rows)])


def measure(flags: argparse.Namespace, store: CellStore, model: Model, kinds: list[str]) -> None:
    """Measure the columns of a shape, each in a process of its own, and keep their cells."""
    longest = dataclasses.replace(model, context=max(flags.lengths) + 4 * PART)
    path = FILES / f"{model.name}-{KIND}-long.gguf"
    if not path.exists():
        shaped_models.write(path, longest, KIND)
    spawn = multiprocessing.get_context("spawn")  # its memory is that of its column alone
    for kind in kinds:
        most = min(flags.memory * 1e9, available_bytes())
        lengths = [tokens for tokens in flags.lengths if fits(model, kind, tokens, most)]
        print(f"{model.name}, {kind}: {lengths or 'nothing'} measured", file=sys.stderr)
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            points = pool.submit(column, path, kind, lengths, flags.threads).result()
        for tokens in flags.lengths:
            store.keep(f"{model.name} {tokens}", kind, cell(model, kind, points, tokens))
    if not flags.keep:
        path.unlink()


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=MODELS)
    parser.add_argument("--lengths", nargs="+", type=int)
    parser.add_argument("--types", nargs="+", default=list(TYPES), choices=TYPES)
    parser.add_argument("--memory", type=float, default=20.0, help="GB of a process; default: 20")
    parser.add_argument("--threads", type=int, default=native.cores())
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    parser.add_argument("--keep", action="store_true", help="keep the files of the shapes")
    parser.add_argument("--quick", action="store_true", help="a tiny shape; figures mean nothing")
    parser.add_argument("--output", type=Path, help="folder for the results")
    flags = parser.parse_args()
    flags.lengths = sorted(flags.lengths or (QUICK_LENGTHS if flags.quick else LENGTHS))
    if any(each < 1 or each % PART for each in flags.lengths):
        parser.error(f"--lengths must be multiples of {PART}")
    return flags


def run() -> str:
    """Measure what is missing, store and print."""
    flags = options()
    usual = record.BUILD / "results" if flags.quick else record.results(__file__)
    config = {"weights": KIND, "threads": flags.threads, "quick": flags.quick}
    name = record.name_of(NAME)
    store = CellStore(flags.output or usual, name, config, record.facts(), table)
    store.read()
    for model in [TINY] if flags.quick else [MODELS[each] for each in flags.shapes]:
        rows = [f"{model.name} {tokens}" for tokens in flags.lengths]
        missing = [
            kind
            for kind in flags.types
            if flags.again or any(kind not in store.cells.get(row, {}) for row in rows)
        ]
        if missing:
            measure(flags, store, model, missing)
    return table(store)


if __name__ == "__main__":
    try:
        sys.exit(script.printed(NAME, run))
    except KeyboardInterrupt:
        sys.exit(130)
