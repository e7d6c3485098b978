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

import numpy as np
import torch

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.quant.quality import calibration_text
from suffice import native
from suffice.attention.sketch import CHUNK, sketch
from suffice.cache import BLOCK
from suffice.cache.bmc import BMC
from suffice.cache.kv import KVCache
from suffice.eval.perplexity import PerplexityPlan, windows_of
from suffice.models.files import locate
from suffice.models.open import open_checkpoint
from suffice.models.quantize.torch_decoder import TorchDecoder
from suffice.models.tokenizer import load_tokenizer
from suffice.quant.codebook import borders, codebook
from suffice.quant.none import NoQuant

NAME, MODEL, TOKENS, LEVELS = "sketch", "smollm2-135m", 1024, 16
ROUNDS = 3  # each: codes, then mean and deviation
QUICK = record.BUILD / "sketch-quick"
HEAD = ["codes by channel", "left out of a key, rms", "longest of 16, mean", "of the even codes'"]


def even(keys: torch.Tensor) -> torch.Tensor:
    """Return keys [..., 64, D] rounded to the codes of their sketches."""
    flat = keys.reshape(-1, *keys.shape[-2:])
    sketches = [sketch(chunk) for chunk in flat]
    return torch.stack([each.codes * each.scale + each.low for each in sketches]).view_as(keys)


def learned(keys: torch.Tensor) -> torch.Tensor:
    """Return keys [..., 64, D] rounded to one codebook, scaled by a mean and a deviation."""
    mean, scale = keys.mean(-2, keepdim=True), keys.std(-2, keepdim=True)
    normal = (keys - mean) / scale
    levels = torch.from_numpy(codebook(normal.numpy(), np.ones(()), LEVELS))
    for _ in range(ROUNDS):
        values = levels[torch.bucketize((keys - mean) / scale, borders(levels))]
        centred = values - values.mean(-2, keepdim=True)
        above = keys - keys.mean(-2, keepdim=True)
        scale = (centred * above).sum(-2, keepdim=True) / centred.square().sum(-2, keepdim=True)
        mean = keys.mean(-2, keepdim=True) - scale * values.mean(-2, keepdim=True)
    return levels[torch.bucketize((keys - mean) / scale, borders(levels))] * scale + mean


def keys_of(model: str, text: str) -> torch.Tensor:
    """Return the keys [L, G, chunks, 64, D] of a prompt."""
    path = locate(model)
    decoder = TorchDecoder.from_checkpoint(open_checkpoint(path), NoQuant("float32"))
    config = decoder.config
    shape = len(config.layers), config.kv_heads, config.head_size
    cache = KVCache(*shape, growth=BMC(), limit=TOKENS, key_dtype="float32")
    window = windows_of(load_tokenizer(path), text, PerplexityPlan(TOKENS, 1), TOKENS)[0]
    decoder.forward(torch.tensor(window), cache, logits="none")
    rows = len(window) // CHUNK * CHUNK
    layers = [cache.keys(layer, rows) for layer in range(len(config.layers))]
    return torch.stack(layers).float().unflatten(-2, (-1, CHUNK))


def main() -> int:
    """Measure, print the table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with spec-bench-questions.jsonl")
    parser.add_argument("--calibrate", help="text file instead of Spec-Bench")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--quick", action="store_true", help="store nothing in the results")
    flags = parser.parse_args()
    native.set_threads(1)
    name, text = calibration_text(flags)
    keys = keys_of(flags.model, text)
    rows: list[list[object]] = []
    for kind, code in (("even, as stored", even), ("K-means", learned)):
        left = (keys - code(keys)).norm(dim=-1)
        longest = float(left.unflatten(-1, (-1, BLOCK)).amax(-1).mean())
        rows.append([kind, float(left.square().mean().sqrt()), longest])
    for row in rows:
        row.append(row[2] / rows[0][2])
    table = markdown(HEAD, rows)
    facts = record.facts() | {"model": Path(flags.model).name, "text": name, "rows": rows}
    record.write(QUICK if flags.quick else record.results(__file__), NAME, facts, table)
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
