"""What it costs and saves to keep prompts on disk: first tokens after a restart, reading, writing.

    python -m benchmarks.engine.kept_prompts          a small model, and shapes of 1B and 7B
    python -m benchmarks.engine.kept_prompts --shapes llama-3.2-1b    some shapes
    python -m benchmarks.engine.kept_prompts --quick    a tiny shape, to see that it runs

An engine computes a prompt into an empty folder; another, which has just started, reads it. Both
give the first token of the same text. Files come from the page cache. Reading is compared with
copying the same files into memory that is mapped already. Streams decode with a folder and without,
in turn; their speeds are of the same tokens, and a gap is the time between two steps. Where others
use the machine, the processor's time says more than the clock's.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness import script, shaped_models
from benchmarks.harness.tables import markdown
from suffice import LLM, SamplingParams, native
from suffice.cache import block_file, stored_rows
from suffice.cache.block_file import Place
from suffice.cache.block_folder import files
from suffice.cache.kv import KVCache
from suffice.engine.disk_prefixes import READERS, ROWS
from suffice.engine.request import Request

NAME, KIND = "kept_prompts", "Q4_0"
SMALL = "smollm2-135m"
SHAPES = {"llama-3.2-1b": 4096, "llama-2-7b": 2048}  # tokens of a prompt
SMALL_TOKENS = 4096
TYPES = ("bfloat16", "int8", "planes", "kmeans4")
STREAMS, AGAIN = 8, 3
FIRST = SamplingParams(max_tokens=1, temperature=0)
NOTE = "**A quick run of a tiny shape: no figure means anything.**"


def numbers(count: int, seed: int, most: int) -> list[int]:
    """Return random tokens."""
    chance = random.Random(seed)
    return [chance.randrange(3, most) for _ in range(count)]


def first_token(llm: LLM, prompt: list[int]) -> tuple[float, Any]:
    """Return the seconds to a prompt's first token, and the output."""
    began = time.perf_counter()
    (output,) = llm.generate([prompt], FIRST, use_tqdm=False)
    return time.perf_counter() - began, output


def restarted(model: Path | str, tokens: int, **options: Any) -> dict[str, Any]:
    """Return the seconds to a first token, computed and after a restart, and the bytes kept."""
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(model, prefix_dir=folder, prefix_disk_bytes=None, **options)
        prompt = numbers(tokens, 1, llm.runner.vocabulary)
        computed, wanted = first_token(llm, prompt)
        assert llm.loop.disk is not None
        llm.loop.disk.writer.flush(600)
        llm.generate([prompt[:40]], FIRST, use_tqdm=False)
        row_bytes = _row_bytes(llm)
        read = []
        for _ in range(AGAIN):
            llm.loop.disk = None
            fresh = LLM.from_parts(llm.config, llm.runner, llm.tokenizer)
            seconds, found = first_token(fresh, prompt)
            assert found.outputs == wanted.outputs, "the same text"
            assert found.num_cached_tokens == tokens // ROWS * ROWS - (tokens % ROWS == 0)
            read.append(seconds)
        kept = sum(each.size for each in files(Path(folder)))
    return {
        "tokens": tokens,
        "computed": computed,
        "read": statistics.median(read),
        "bytes_per_token": kept / (tokens // ROWS * ROWS),
        "over_rows": kept / (tokens // ROWS * ROWS * row_bytes),
    }


def _row_bytes(llm: LLM) -> int:
    sequence = llm.runner.open("", 16)
    found = int(sequence.cache.row_bytes)
    llm.runner.close(sequence)
    return found


def reading(model: Path | str, tokens: int, **options: Any) -> dict[str, float]:
    """Return the bytes a second of reading blocks into a cache, and of copying their files."""
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(model, prefix_dir=folder, prefix_disk_bytes=None, **options)
        cache = llm.runner.open("", tokens).cache
        cache.reserve(tokens)
        while not cache.populate(1 << 40):
            pass
        paths, places = [], []
        for first in range(0, tokens // ROWS * ROWS, ROWS):
            place = Place(first.to_bytes(4, "little") * 5, first, ROWS)
            paths.append(Path(folder) / str(first))
            block_file.write(
                paths[-1], block_file.Block(place, stored_rows.taken(cache, first, ROWS))
            )
            places.append(place)
        size = sum(path.stat().st_size for path in paths)
        memory = [bytearray(path.stat().st_size) for path in paths]
        for each in memory:
            each[::4096] = bytes(len(each[::4096]))
        found: dict[str, list[float]] = {"read": [], "copied": []}
        with ThreadPoolExecutor(READERS) as pool:
            for _ in range(3 * AGAIN):
                began = time.perf_counter()
                list(pool.map(lambda p: _read(cache, *p), zip(paths, places, strict=True)))
                found["read"].append(size / (time.perf_counter() - began))
                began = time.perf_counter()
                list(pool.map(lambda p: _copied(*p), zip(paths, memory, strict=True)))
                found["copied"].append(size / (time.perf_counter() - began))
        cache.close()
    return {name: statistics.median(rates) for name, rates in found.items()}


def _read(cache: KVCache, path: Path, place: Place) -> None:
    file = os.open(path, os.O_RDONLY)
    block_file.read(file, place, cache)
    os.close(file)


def _copied(path: Path, memory: bytearray) -> None:
    with path.open("rb", buffering=0) as stream:
        stream.readinto(memory)


def streams(model: Path | str, tokens: int, **options: Any) -> dict[str, float]:
    """Return the speed and the longest gap of streams with a folder, compared with none."""
    folder = Path(tempfile.mkdtemp())
    llm = LLM(model, prefix_dir=folder, max_num_seqs=STREAMS, **options)
    disk = llm.loop.disk
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    try:
        for at in range(2 * AGAIN + 2):
            own = LLM.from_parts(llm.config, llm.runner, llm.tokenizer)
            own.loop.disk = own.loop.memory.disk._disk = disk if at % 2 else None
            gone = _streamed(own, tokens, at // 2)
            if at > 1:
                found[bool(at % 2)].append(gone)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert disk is not None and disk.folder.counts.written > 0
    speeds = [without[0] / kept[0] for without, kept in zip(found[False], found[True], strict=True)]
    gaps = [kept[1] - without[1] for without, kept in zip(found[False], found[True], strict=True)]
    busy = [kept[2] / without[2] for without, kept in zip(found[False], found[True], strict=True)]
    return {
        "speed": statistics.median(speeds),
        "gap": statistics.median(gaps),
        "processor": statistics.median(busy),
    }


def _streamed(llm: LLM, tokens: int, seed: int) -> tuple[float, float, float]:
    """Return the seconds of streams, the longest between two steps, and those of processors."""
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    made: list[Request] = [
        llm.maker.make(numbers(40, seed * STREAMS + at, llm.runner.vocabulary), params, reuse=True)
        for at in range(STREAMS)
    ]
    for request in made:
        llm.loop.add(request)
    while not all(request.samples[0].tokens for request in made):
        llm.loop.step()
    began = last = time.perf_counter()
    busy, longest = time.process_time(), 0.0
    while not all(request.finished for request in made):
        llm.loop.step()
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    if llm.loop.disk is not None:
        llm.loop.disk.writer.flush(60)
    return last - began, longest, time.process_time() - busy


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return all figures."""
    models: dict[str, tuple[Path | str, int]] = {}
    if options.quick:
        models["tiny"] = shaped_models.write(folder / "tiny.gguf", shaped_models.TINY, KIND), 200
    else:
        models[SMALL] = SMALL, SMALL_TOKENS
    for name in () if options.quick else options.shapes:
        path = folder / f"{name}.gguf"
        models[name] = shaped_models.write(path, shaped_models.MODELS[name], KIND), SHAPES[name]
    first, *_ = models.values()
    decoded = 80 if options.quick else 400
    return {
        "quick": options.quick,
        "threads": native.threads(),
        "restarts": {
            name: restarted(model, tokens, max_model_len=tokens + 64)
            for name, (model, tokens) in models.items()
        },
        "types": {
            kind: restarted(first[0], 4 * ROWS, kv_cache_dtype=kind, max_model_len=1024)
            for kind in TYPES
        },
        "reading": reading(first[0], first[1], max_model_len=first[1]),
        "streams": streams(first[0], decoded, max_model_len=1024),
    }


def table(data: dict[str, Any]) -> str:
    """Return the results as tables."""
    rows = [
        [name, own["tokens"], own["computed"], own["read"], own["read"] / own["computed"]]
        for name, own in data["restarts"].items()
    ]
    head = ["model", "tokens", "computed, s", "after a restart, s", "ratio"]
    types = [
        [name, own["bytes_per_token"], own["over_rows"]] for name, own in data["types"].items()
    ]
    rates, own = data["reading"], data["streams"]
    about = (
        f"Blocks are read at {rates['read'] / 1e9:.2f} GB/s, {rates['read'] / rates['copied']:.2f} "
        f"of copying their files from the page cache. {STREAMS} streams decode at "
        f"{own['speed']:.3f} of their speed without a folder; the longest gap changes by "
        f"{1e3 * own['gap']:.1f} ms. Processors work {own['processor']:.3f} times as long, the "
        "writer included."
    )
    quick = [NOTE] * data["quick"]
    parts = ["## Prompts on disk", *quick, markdown(head, rows), about]
    return "\n\n".join([*parts, markdown(["keys and values", "bytes a token", "over rows"], types)])


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny shape; figures mean nothing")
    parser.add_argument("--output", type=Path, help="folder for the results")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=SHAPES)
    return parser.parse_args()


def run() -> str:
    """Measure, store and print."""
    given = options()
    with tempfile.TemporaryDirectory() as folder:
        data = measure(given, Path(folder))
    script.store(given, __file__, data, table)
    return ""


if __name__ == "__main__":
    sys.exit(script.printed(NAME, run))
