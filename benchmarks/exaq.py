"""Time attention by codes of few bits against exact attention, alone, in one thread.

    python benchmarks/exaq.py            8192 cached tokens of SmolLM2's heads (a minute)
    python benchmarks/exaq.py --quick    tiny sizes, to see that it runs

9 query heads on 3 of keys and values, size 64, in bfloat16. Scores have the standard deviation that
the levels are made for, so that codes are as frequent as with normal inputs.
Settings take turns and the best of many rounds counts, since a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

import record
from suffice import native
from suffice.attention.exaq import EXAQ
from suffice.attention.exaq_km import levels_of
from suffice.attention.kernel import attend, coded_rule
from suffice.cache.kv import KVCache
from suffice.cache.upfront import Upfront

HEADS, KV_HEADS, SIZE, SIGMA, LEAST = 9, 3, 64, 3.0, -40.0
QUICK = Path(__file__).parent.parent / "build" / "exaq-quick"
SOFTMAXES = {
    "exact": None,
    "exaq:bits=2": EXAQ(2).layer_levels(SIGMA, LEAST),
    "exaq:bits=3": EXAQ(3).layer_levels(SIGMA, LEAST),
    "exaq_km:bits=2": levels_of((0.003, 0.15, 0.45, 0.96)),  # as SmolLM2's are
}


def main() -> int:
    """Measure, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--length", type=int, default=8192)
    flags = parser.parse_args()
    length, rounds = (128, 2) if flags.quick else (flags.length, 60)
    native.set_threads(1)
    torch.manual_seed(0)
    layers = 2 if flags.quick else 16  # more than a cache level holds
    cache = KVCache(layers, KV_HEADS, SIZE, growth=Upfront(), limit=length)
    cache.reserve(length)
    for layer in range(layers):
        cache.append(layer, *torch.randn(2, KV_HEADS, length, SIZE))
    cache.advance(length)
    q = torch.randn(HEADS, 1, SIZE)
    rules = {
        name: coded_rule(None, None if levels is None else [levels] * (HEADS // KV_HEADS))
        for name, levels in SOFTMAXES.items()
    }
    best, read = dict.fromkeys(rules, float("inf")), {}
    for _ in range(rounds):
        for name, rule in rules.items():
            began = time.perf_counter()
            for layer in range(layers):
                reads = attend(rule, q, cache, layer, scale=SIGMA / SIZE**0.5)[1]
            best[name] = min(best[name], (time.perf_counter() - began) / layers)
            read[name] = sum(each.value_rows for each in reads) / (KV_HEADS * length)
    rows = [
        [f"`{name}`", 1e6 * seconds, best["exact"] / seconds, read[name]]
        for name, seconds in best.items()
    ]
    table = record.markdown(["softmax", "us a layer", "over exact", "V read"], rows)
    text = f"## Attention by codes, {length} tokens, one thread\n\n{table}"
    folder = QUICK if flags.quick else record.RESULTS
    record.write(folder, "exaq", record.facts() | {"length": length, "rows": rows}, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
