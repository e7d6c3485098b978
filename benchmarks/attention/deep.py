"""Time attention alone at depth, in one thread, on keys and queries with a real model's statistics.

    python -m benchmarks.attention.deep --data-dir DIR            the table (three minutes)
    python -m benchmarks.attention.deep --data-dir DIR --quick    tiny sizes, into build/

32 query heads on 8 key/value heads of size 128, 32,768 keys. SmolLM2 135M has heads of 64 elements
and 8,192 positions. Four texts (WikiText-2) are run through it, and a head here has the keys of one
of its heads in all four texts, then the queries at the end of the last one. An orthogonal matrix
carries keys and queries into 128 elements: scores stay what they are. Values are those of two
heads. What a head reads of four texts is more spread than in one text of that length. Each pass
goes through layers larger than the CPU caches; settings take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks.harness import record
from benchmarks.harness.settings import stored_in
from benchmarks.harness.tables import markdown
from suffice import native
from suffice.attention import ATTENTIONS
from suffice.backends.cpu.attention import attend
from suffice.cache import alike, fits_keys, row_bytes
from suffice.cache.growth import Upfront
from suffice.cache.kv import KVCache
from suffice.decoder.key_rounding import Observed, rounding_of
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.eval.texts import load_text

HEADS, KV_HEADS, SIZE, LAYERS, TEXTS = 32, 8, 128, 3, 4
GROUP = HEADS // KV_HEADS
SEEN = 64  # tokens whose queries are kept; those before the last ones fit the rounding of keys
BASE = "exact @ int8"
SETTINGS = (
    BASE,
    "exact @ planes",
    "exact @ kmeans4",
    "tiers:eps=0.7,skip=0.0002 @ planes",
    "tiers:eps=0.8,skip=0.0007 @ planes",
)
HEAD = ["setting", "K read", "V read", "bytes read", "ms a layer", "int8 / this", "output error"]


class LastQueries:
    """Keeps the queries of a text's last tokens, [layers][H, SEEN, D]."""

    def __init__(self, layers: int) -> None:
        self.found: list[Any] = [None] * layers

    def add(self, layer: int, q: np.ndarray, end: int) -> None:
        """Take the queries of a part of the text."""
        before = self.found[layer]
        parts = q if before is None else np.concatenate([before, q], 1)
        self.found[layer] = parts[:, -SEEN:].copy()


@dataclass
class Rows:
    """Keys and values [LAYERS, KV_HEADS, S, SIZE], queries [LAYERS, SEEN, HEADS, SIZE]."""

    keys: np.ndarray
    values: np.ndarray
    queries: np.ndarray


@dataclass
class Subject:
    """A setting with its cache; `attend` takes a layer and returns the output and the reads."""

    setting: str
    bytes_of_row: int
    attend: Callable[[int], tuple[np.ndarray, list[Any]]]
    seconds: list[float] = field(default_factory=list)


def rows_of(runner: Runner, texts: list[list[int]], report: Callable[[], object]) -> Rows:
    """Run the texts through the model; return keys, values and queries in heads of this shape."""
    model = runner.decoder.config
    own = model.head_size
    random = np.random.default_rng(0)
    turn = np.linalg.qr(random.standard_normal((SIZE, SIZE)))[0][:own].astype(np.float32)
    length = len(texts[0])
    every = [(layer, head) for layer in range(len(model.layers)) for head in range(model.kv_heads)]
    chosen = [every[i * len(every) // (LAYERS * KV_HEADS)] for i in range(LAYERS * KV_HEADS)]
    keys, values = np.empty((2, len(chosen), len(texts) * length, SIZE), np.float32)
    queries = np.empty((len(chosen), SEEN, GROUP, SIZE), np.float32)
    share = model.heads // model.kv_heads
    for t, text in enumerate(texts):
        seen, sequence = LastQueries(len(model.layers)), runner.open("text", length)
        runner.observe(sequence, text, seen)
        at = slice(t * length, (t + 1) * length)
        for i, (layer, head) in enumerate(chosen):
            held = sequence.cache.values(layer)
            keys[i, at] = sequence.cache.keys(layer)[head] @ turn
            parts = [held[(head + part) % model.kv_heads] for part in range(SIZE // own)]
            values[i, at] = np.concatenate(parts, -1)
            heads = [head * share + min(q, share - 1) for q in range(GROUP)]
            queries[i] = np.stack([seen.found[layer][each] @ turn for each in heads], 1)
            if share < GROUP:  # of the token before, where the model's groups are smaller
                queries[i, 1:, share:] = queries[i, :-1, :1]
        runner.close(sequence)
        report()
    shape = LAYERS, KV_HEADS
    ordered = queries.reshape(*shape, SEEN, GROUP, SIZE).swapaxes(1, 2)
    return Rows(
        keys.reshape(*shape, -1, SIZE),
        values.reshape(*shape, -1, SIZE),
        np.ascontiguousarray(ordered).reshape(LAYERS, SEEN, HEADS, SIZE),
    )


def rounding(rows: Rows) -> Any:
    """Return the rounding of keys fitted to the first queries, as a model's is to a text's."""
    means = rows.keys.mean(2)
    along = (rows.keys * means[:, :, None]).sum(-1, keepdims=True)
    rest = rows.keys - means[:, :, None] * (along / np.square(means).sum(-1)[..., None, None])
    first = rows.queries[:, : SEEN // 2].reshape(LAYERS, -1, KV_HEADS, GROUP, SIZE)
    moments = np.einsum("lthgd,lthge->lhde", first, first)
    return rounding_of(Observed(means, np.square(rest).mean(2), moments)).native


def subject(setting: str, rows: Rows, scale: float) -> Subject:
    """Return a setting with the rows in a cache of its type."""
    technique, stored = stored_in(setting)
    dtype, length = stored or "bfloat16", rows.keys.shape[2]
    fitted = {"rounding": rounding(rows)} if fits_keys(dtype) else {}
    cache = KVCache(
        alike(LAYERS, KV_HEADS, SIZE), growth=Upfront(), limit=length, key_dtype=dtype,
        value_dtype=dtype, **fitted,
    )  # fmt: skip
    cache.reserve(length)
    for layer in range(LAYERS):
        cache.append(layer, rows.keys[layer], rows.values[layer])
    cache.advance(length)
    rule = ATTENTIONS.build(technique).rule()
    last = np.ascontiguousarray(rows.queries[:, -1:].swapaxes(1, 2))

    def run(layer: int) -> tuple[np.ndarray, list[Any]]:
        return attend(rule, last[layer], cache, layer, scale=scale)

    return Subject(setting, 2 * row_bytes(dtype, SIZE), run)


def measured(subjects: list[Subject], rounds: int, tell: Callable[[], object]) -> None:
    """Time all settings in turn; the first round does not count."""
    for number in range(rounds + 1):
        for each in subjects:
            began = time.perf_counter()
            for layer in range(LAYERS):
                each.attend(layer)
            if number:
                each.seconds.append((time.perf_counter() - began) / LAYERS)
        tell()


def row(each: Subject, base: Subject, wanted: list[np.ndarray], length: int) -> list[Any]:
    """Return a setting's row of the table."""
    found = [each.attend(layer) for layer in range(LAYERS)]
    reads = [read for _, of_heads in found for read in of_heads]
    keys, values, bases = (
        sum(getattr(read, name) for read in reads)
        for name in ("key_rows", "value_rows", "sketch_bytes")
    )
    all_rows = LAYERS * KV_HEADS * length
    both = (keys + values) * each.bytes_of_row / 2 + bases
    lost = sum(
        float(np.square(out - want).sum()) for (out, _), want in zip(found, wanted, strict=True)
    )
    size = sum(float(np.square(want).sum()) for want in wanted)
    pairs = zip(base.seconds, each.seconds, strict=True)
    return [
        f"`{each.setting}`",
        keys / all_rows,
        values / all_rows,
        both / (all_rows * 4 * SIZE),
        1000 * statistics.median(each.seconds),
        statistics.median(before / after for before, after in pairs),
        (lost / size) ** 0.5,
    ]


def measure(flags: argparse.Namespace, progress: Progress) -> list[list[Any]]:
    """Return the rows of the table."""
    length = 128 if flags.quick else 8192
    config = Config.create(flags.model, max_model_len=length, attention="exact")
    _, runner, tokenizer = load(config)
    tokens = tokenizer.encode(load_text("wikitext2", flags.data_dir)[: 6 * TEXTS * length])
    texts = [tokens[i * length : (i + 1) * length] for i in range(TEXTS)]
    task = progress.add_task("keys and queries", total=TEXTS)
    rows = rows_of(runner, texts, lambda: progress.advance(task))
    native.set_threads(1)
    scale = runner.decoder.config.head_size**-0.5
    exact = subject("exact @ float32", rows, scale)
    wanted = [exact.attend(layer)[0] for layer in range(LAYERS)]
    subjects = [subject(setting, rows, scale) for setting in flags.settings]
    task = progress.add_task("rounds", total=flags.rounds + 1)
    measured(subjects, flags.rounds, lambda: progress.advance(task))
    return [row(each, subjects[0], wanted, TEXTS * length) for each in subjects]


def main() -> int:
    """Measure all and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", required=True, help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), help="int8 comes first")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, results in build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    flags.settings = [BASE, *(each for each in flags.settings if each != BASE)]
    flags.rounds = flags.rounds or (2 if flags.quick else 15)
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    with Progress(transient=True) as progress:
        rows = measure(flags, progress)
    about = (
        f"{HEADS}/{KV_HEADS} heads of {SIZE}, one thread, keys and queries with the statistics of "
        f"{flags.model}'s on {TEXTS} texts; bytes are over those of exact attention in bfloat16, "
        "'output error' is relative to exact attention in float32, root of the mean square."
    )
    text = f"## Attention at depth\n\n{about}\n\n{markdown(HEAD, rows)}"
    found = [dict(zip(HEAD, each, strict=True)) for each in rows]
    record.write(flags.out, "deep", record.facts() | {"rows": found}, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
