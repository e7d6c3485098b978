"""Measures the residual of the sketch of `certified`, with even codes as stored, or K-means codes.

    python -m benchmarks.attention.sketch --data-dir DIR       (a minute)

The keys come from prompts of Spec-Bench (its longer ones). Even codes: per channel and chunk of 64
tokens, 16 even levels from the smallest to the largest value. K-means codes: one codebook for the
whole model, of values less their mean over their deviation, both refined by least squares. The
bound uses the largest residual norm of 16 keys.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.quant.quality import calibration_text
from suffice.attention.sketch import CHUNK, sketch
from suffice.cache import BLOCK
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.eval.perplexity import PerplexityPlan, windows_of
from suffice.quant.codebook import codebook, codes_of

NAME, MODEL, TOKENS, LEVELS = "sketch", "smollm2-135m", 1024, 16
ROUNDS = 3  # each: codes, then mean and deviation
QUICK = record.BUILD / "sketch-quick"
HEAD = ["codes by channel", "left out of a key, rms", "longest of 16, mean", "of the even codes'"]


def even(keys: np.ndarray) -> np.ndarray:
    """Return keys [..., 64, D] rounded to the codes of their sketches."""
    sketches = [sketch(chunk) for chunk in keys.reshape(-1, *keys.shape[-2:])]
    rounded = np.stack([each.codes * each.scale + each.low for each in sketches])
    return rounded.reshape(keys.shape)


def learned(keys: np.ndarray) -> np.ndarray:
    """Return keys [..., 64, D] rounded to one codebook, scaled by a mean and a deviation."""
    mean, scale = average(keys), keys.std(-2, keepdims=True, ddof=1)
    levels = codebook((keys - mean) / scale, np.ones(()), LEVELS)
    for _ in range(ROUNDS):
        values = levels[codes_of((keys - mean) / scale, levels)]
        centred, above = values - average(values), keys - average(keys)
        scale = average(centred * above) / average(centred * centred)
        mean = average(keys) - scale * average(values)
    found: np.ndarray = levels[codes_of((keys - mean) / scale, levels)] * scale + mean
    return found


def average(x: np.ndarray) -> Any:
    """Return the mean [..., 1, D] over the tokens of chunks [..., 64, D]."""
    return x.mean(-2, keepdims=True)


def keys_of(model: str, text: str) -> np.ndarray:
    """Return the keys [L, G, chunks, 64, D] of a prompt."""
    asked = Config.create(model, dtype="float32", kv_cache_dtype="float32", max_model_len=TOKENS)
    _, runner, tokenizer = load(asked)
    window = windows_of(tokenizer, text, PerplexityPlan(TOKENS, 1), TOKENS)[0]
    sequence = runner.open("sketch", TOKENS)
    runner.prefill(sequence, window)
    rows = len(window) // CHUNK * CHUNK
    keys = np.stack([sequence.cache.keys(layer, rows) for layer in range(sequence.cache.layers)])
    return keys.reshape(*keys.shape[:2], -1, CHUNK, keys.shape[-1])


def main() -> int:
    """Measure, print the table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with spec-bench-questions.jsonl")
    parser.add_argument("--calibrate", help="text file instead of Spec-Bench")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--quick", action="store_true", help="store nothing in the results")
    flags = parser.parse_args()
    name, text = calibration_text(flags)
    keys = keys_of(flags.model, text)
    rows: list[list[Any]] = []
    for kind, code in (("even, as stored", even), ("K-means", learned)):
        left = np.linalg.norm(keys - code(keys), axis=-1)
        longest = float(left.reshape(-1, BLOCK).max(-1).mean())
        rows.append([kind, float(np.sqrt((left**2).mean())), longest])
    for row in rows:
        row.append(row[2] / rows[0][2])
    table = markdown(HEAD, rows)
    facts = record.facts() | {"model": Path(flags.model).name, "text": name, "rows": rows}
    record.write(QUICK if flags.quick else record.results(__file__), NAME, facts, table)
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
