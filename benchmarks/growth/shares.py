"""What a decode step of a transformers model consists of: cache update, attention, the rest.

    python -m benchmarks.growth.shares              layers of OPT-6.7B's shape, batch 8 (10 minutes)
    python -m benchmarks.growth.shares --quick      tiny sizes, to see that it runs

Figures 2 to 4 of the BMC paper. `model.generate` decodes a few tokens from some depths, on caches
filled with random keys and values: transformers' DynamicCache, which allocates and copies for each
token (the paper's iterative allocation), and StaticCache, which holds N rows from the start
(upfront). Timers are around `Cache.update`, torch's `scaled_dot_product_attention` and each decoder
layer. The model has a few of the layers, with random weights; layers are alike, so their times
count as often as the whole model has layers. Shares are of the sum over the depths.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.progress import track
from transformers import DynamicCache, StaticCache

from benchmarks.growth import caches
from benchmarks.growth.block import spread
from benchmarks.harness.script import quick_or_whole, store
from benchmarks.harness.tables import markdown
from suffice import native

WHOLE_LAYERS = 32  # of OPT-6.7B
QUICK = replace(caches.TINY, rounds=2)
PARTS = ("update", "attention", "layers", "all")  # each of the last two holds those before it
PUBLISHED = {"update": "60 to 70 %", "attention": "15 to 20 %"}  # Fig. 2, OPT-350M to 66B
PUBLISHED_RATIO = 1.9  # attention layer, iterative over upfront (Fig. 4)


@dataclass
class Spent:
    """Seconds of each part so far, and how often it ran."""

    seconds: Counter[str]
    calls: Counter[str]

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of a block to a part."""
        began = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - began
        self.calls[name] += 1

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that adds its time to a part."""

        def run(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return function(*arguments, **named)

        return run


@contextlib.contextmanager
def watched(model: Any, cache: Any) -> Iterator[Spent]:
    """Time the parts of what a model runs on a cache meanwhile."""
    spent, functions = Spent(Counter(), Counter()), torch.nn.functional
    with contextlib.ExitStack() as stack:
        for owner, function, name in (
            (type(cache), "update", "update"),
            (functions, "scaled_dot_product_attention", "attention"),
            (type(model.model.decoder.layers[0]), "forward", "layers"),
        ):
            timed = spent.timed(name, getattr(owner, function))
            # A method takes the object as its first argument, as a function does.
            stack.enter_context(mock.patch.object(owner, function, timed))
        with spent.part("all"):
            yield spent


def step(model: Any, make: Callable[[], Any], depth: int, size: caches.Size) -> dict[str, float]:
    """Return each part's seconds in a token that follows `depth` rows: the median of some runs."""
    rounds = []
    for _ in range(size.rounds):
        cache = caches.filled(make, depth, size)
        ids = torch.full((size.batch, depth + 1), caches.WORD)
        with watched(model, cache) as spent:
            caches.generate(model, ids, cache, size.tokens)
        assert spent.calls["update"] == spent.calls["attention"] == size.layers * size.tokens
        rounds.append({part: spent.seconds[part] / size.tokens for part in PARTS})
        del cache
    return {part: statistics.median(each[part] for each in rounds) for part in PARTS}


def scaled(seconds: dict[str, float], layers: int) -> dict[str, float]:
    """Return a step's parts in a model of WHOLE_LAYERS layers, if `layers` were timed."""
    more = WHOLE_LAYERS / layers
    inside = {part: seconds[part] * more for part in PARTS[:-1]}
    return inside | {"all": seconds["all"] - seconds["layers"] + inside["layers"]}


def measure(size: caches.Size) -> dict[str, Any]:
    """Return the seconds of each part by cache and depth."""
    model = caches.model_of(size, "sdpa")
    config = model.config
    kinds: dict[str, Callable[[], Any]] = {
        "iterative": lambda: DynamicCache(config=config),
        "upfront": lambda: StaticCache(config=config, max_cache_len=size.rows),
    }
    depths = [at + 1 for at in spread(size.rows - size.tokens - 1, size.depths)]
    found: list[dict[str, Any]] = []
    for depth in track(depths, "shares", console=Console(stderr=True), transient=True):
        for growth, make in kinds.items():
            seconds = scaled(step(model, make, depth, size), size.layers)
            found.append({"growth": growth, "depth": depth} | seconds)
    return {"size": vars(size), "rows": found}


def table(data: dict[str, Any]) -> str:
    """Return the tables in place of Figures 2 to 4."""
    size, found = data["size"], data["rows"]
    title = (
        f"## Parts of a decode step: {WHOLE_LAYERS} layers of width {size['width']}, "
        f"B = {size['batch']}, N = {size['rows']}"
    )
    about = (
        f"transformers' caches and torch's attention, float32, {native.cores()} threads; "
        f"{size['layers']} layers were timed."
    )
    shares = [
        [growth, *(f"{share:.1%}" for share in shares_of(found, growth).values())]
        for growth in ("iterative", "upfront")
    ]
    shares.append(["paper, iterative", *PUBLISHED.values(), "20 to 25 %"])
    parts = [title, about, "### Shares of the step (Fig. 2)"]
    parts += [markdown(["growth", "cache update", "attention", "the rest"], shares)]
    own = {(each["growth"], each["depth"]): each for each in found}
    depths = sorted({each["depth"] for each in found})
    rows = []
    for depth in depths:
        grown, held = own["iterative", depth], own["upfront", depth]
        both, whole = (each["update"] + each["attention"] for each in (grown, held))
        seconds = (grown["update"], grown["attention"], both, held["update"], held["attention"])
        rows.append([depth, *(1000 * each for each in (*seconds, whole)), both / whole])
    head = ["tokens", "update", "attention", "both"]
    head += ["update, upfront", "attention, upfront", "both, upfront", "iterative / upfront"]
    parts += ["### Milliseconds by length, iterative and upfront (Fig. 3, 4)", markdown(head, rows)]
    sums = [
        sum(each["update"] + each["attention"] for each in found if each["growth"] == growth)
        for growth in ("iterative", "upfront")
    ]
    parts.append(
        f"Cache update and attention over all lengths, iterative over upfront: "
        f"{sums[0] / sums[1]:.2f} (the paper: {PUBLISHED_RATIO})."
    )
    return "\n\n".join(parts)


def shares_of(found: list[dict[str, Any]], growth: str) -> dict[str, float]:
    """Return the shares of cache update, attention and the rest, over all depths."""
    rows = [each for each in found if each["growth"] == growth]
    whole = sum(each["all"] for each in rows)
    shares = {part: sum(each[part] for each in rows) / whole for part in PUBLISHED}
    return shares | {"rest": 1 - sum(shares.values())}


def main() -> int:
    """Measure, print the tables and store them."""
    options = quick_or_whole(__doc__)
    torch.set_num_threads(native.cores())
    store(options, __file__, measure(QUICK if options.quick else caches.Size()), table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
