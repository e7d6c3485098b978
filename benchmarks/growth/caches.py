"""Time transformers' generation with suffice's GrowingCache and with transformers' own caches.

    python -m benchmarks.growth.caches              layers of OPT-6.7B's shape, batch 8 (10 minutes)
    python -m benchmarks.growth.caches --quick      tiny sizes, to see that it runs

`model.generate` decodes from some depths, on caches filled with random keys and values; the caches
take turns. A window is a few tokens without a growth; the growths of GrowingCache are timed apart,
each depth's as one token of a full cache less a token of a window, and shared among the tokens
between two. Seconds are those of S tokens: the mean over the depths times S. The model has few of
the layers, with random weights, and a whole vocabulary; layers are alike.

Greedy tokens of all caches are compared from a prompt on. They are the same but for near ties: a
padded cache adds zeros in another order.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from transformers import DynamicCache, OPTConfig, OPTForCausalLM, StaticCache

from benchmarks.growth.block import spread
from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from suffice import native
from suffice.cache.bmc import BMC
from suffice.integrations.checks import cache_argument
from suffice.integrations.growing_cache import GrowingCache, reused_masks

BAR = 1.15  # GrowingCache over DynamicCache
QUICK = record.BUILD / "growth-caches-quick"
ATTENTIONS = ("sdpa", "eager")
WORD = 3  # a token that is not padding


@dataclass(frozen=True)
class Size:
    """A model of OPT's kind, the requests, and what is timed."""

    layers: int = 2
    width: int = 4096
    heads: int = 32
    vocabulary: int = 50272
    batch: int = 8
    rows: int = 2048
    depths: int = 5
    tokens: int = 6
    rounds: int = 3


TINY = Size(width=64, heads=4, vocabulary=100, batch=2, rows=64, depths=2, tokens=3, rounds=1)


def main() -> int:
    """Measure, print the table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    flags = parser.parse_args()
    torch.set_num_threads(native.cores())
    size = TINY if flags.quick else Size()
    found = [each for attention in ATTENTIONS for each in measure(size, attention)]
    text = table(found, size)
    folder = QUICK if flags.quick else record.results(__file__)
    record.write(folder, "caches", record.facts() | {"size": vars(size), "rows": found}, text)
    print(text)
    return 0


def model_of(size: Size, attention: str) -> Any:
    """Return a model with random weights."""
    torch.manual_seed(0)
    config = OPTConfig(
        num_hidden_layers=size.layers,
        hidden_size=size.width,
        word_embed_proj_dim=size.width,
        ffn_dim=4 * size.width,
        num_attention_heads=size.heads,
        vocab_size=size.vocabulary,
        max_position_embeddings=size.rows,
        attn_implementation=attention,
    )
    return OPTForCausalLM(config).eval()


def caches_of(config: Any, rows: int) -> dict[str, Callable[[], Any]]:
    """Return the caches by name: transformers' and ours."""
    return {
        "DynamicCache": lambda: DynamicCache(config=config),
        "StaticCache": lambda: StaticCache(config=config, max_cache_len=rows),
        "GrowingCache": lambda: GrowingCache(config, limit=rows),
        "GrowingCache, views": lambda: GrowingCache(config, limit=rows, padded=False),
    }


def measure(size: Size, attention: str) -> list[dict[str, Any]]:
    """Return the figures of each cache."""
    model = model_of(size, attention)
    kinds = caches_of(model.config, size.rows)
    same = equal_tokens(model, kinds, size)
    spans = {name: [] for name in kinds}  # type: dict[str, list[float]]
    growths = {name: [] for name in kinds}  # type: dict[str, list[float]]
    step = BMC().spare(size.rows)
    depths = [at // step * step + 1 for at in spread(size.rows - step, size.depths)]
    for depth in track(depths, attention, console=Console(stderr=True), transient=True):
        for name, make in kinds.items():
            window = token_seconds(model, make, depth, size.tokens, size)
            spans[name].append(window)
            grows = name.startswith("Growing")
            full = token_seconds(model, make, depth - 1, 1, size) if grows and depth > 1 else window
            growths[name].append(max(full - window, 0.0) / step)
    found = []
    for name in kinds:
        token = statistics.mean(spans[name]) + statistics.mean(growths[name])
        found.append(
            {
                "attention": attention,
                "cache": name,
                "seconds": size.rows * token,
                "growing": statistics.mean(growths[name]) / token,
                "r": step if name.startswith("Growing") else None,
                "equal": same[name],
            }
        )
    return found


def filled(make: Callable[[], Any], depth: int, size: Size) -> Any:
    """Return a cache that holds `depth` random rows."""
    cache = make()
    shape = (size.batch, size.heads, depth, size.width // size.heads)
    for layer in range(size.layers):
        cache.update(torch.randn(shape), torch.randn(shape), layer)
    return cache


def token_seconds(
    model: Any, make: Callable[[], Any], depth: int, tokens: int, size: Size
) -> float:
    """Return the median seconds of a token that follows `depth` rows."""
    times = []
    for _ in range(size.rounds):
        cache = filled(make, depth, size)
        ids = torch.full((size.batch, depth + 1), WORD)
        began = time.perf_counter()
        generate(model, ids, cache, tokens)
        times.append((time.perf_counter() - began) / tokens)
        del cache
    return statistics.median(times)


def generate(model: Any, ids: torch.Tensor, cache: Any, tokens: int) -> torch.Tensor:
    """Return the greedy tokens after `ids`; the cache holds all but the last of these."""
    padded = isinstance(cache, GrowingCache) and cache.layers[0].padded
    name = cache_argument(type(model).forward)
    assert name
    with reused_masks(model) if padded else contextlib.nullcontext():
        found = model.generate(
            ids,
            **{name: cache},
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            disable_compile=True,
        )
    return found[:, ids.shape[1] :]


def equal_tokens(model: Any, kinds: dict[str, Callable[[], Any]], size: Size) -> dict[str, str]:
    """Return how many requests' tokens equal those of the first cache, by cache."""
    ids = torch.randint(WORD, size.vocabulary, (size.batch, 8))
    tokens = {name: generate(model, ids, make(), 16) for name, make in kinds.items()}
    first = next(iter(tokens.values()))
    return {
        name: f"{int((own == first).all(1).sum())} of {size.batch}" for name, own in tokens.items()
    }


def table(found: list[dict[str, Any]], size: Size) -> str:
    """Return the table, and what the bar says."""
    seconds = {(each["attention"], each["cache"]): each["seconds"] for each in found}
    lines = [
        [
            each["attention"],
            each["cache"],
            f"{each['seconds']:.0f}",
            f"{seconds[each['attention'], 'DynamicCache'] / each['seconds']:.2f}",
            f"{seconds[each['attention'], 'StaticCache'] / each['seconds']:.2f}",
            f"{each['growing']:.1%}" if each["r"] else "",
            each["equal"],
        ]
        for each in found
    ]
    head = ["attention", "cache", "seconds", "over DynamicCache", "over StaticCache", "growing",
            "equal tokens"]  # fmt: skip
    over = [seconds[a, "DynamicCache"] / seconds[a, "GrowingCache"] for a in ATTENTIONS]
    mean = math.exp(statistics.mean(map(math.log, over)))
    title = (
        f"## Caches in transformers: {size.layers} layers of width {size.width}, "
        f"B = {size.batch}, S = {size.rows}"
    )
    steps = next(each["r"] for each in found if each["r"])
    reached = "reached" if mean >= BAR else "**not reached**"
    note = (
        f"Seconds for S tokens of each request, float32, {native.cores()} threads, r = {steps}. "
        f"GrowingCache over DynamicCache, geometric mean: {mean:.2f} ({BAR} asked: {reached})."
    )
    return "\n\n".join([title, markdown(head, lines), note])


if __name__ == "__main__":
    sys.exit(main())
