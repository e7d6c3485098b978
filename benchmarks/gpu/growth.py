"""Growth of the cache on a GPU: token by token, at once, r rows at a time; transformers' caches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache, StaticCache

from benchmarks.gpu.decode import random_model
from benchmarks.gpu.parts import Cell, Part, Place
from benchmarks.harness.tables import CellStore, markdown
from suffice.integrations.checks import cache_argument
from suffice.integrations.device_rates import rates
from suffice.integrations.growing_cache import GrowingCache, reused_masks

BATCHES, TOKENS, MODEL = (32, 64, 128), 1024, "Mistral-7B"
ITERATIVE, UPFRONT, OURS = "token by token", "upfront", "bmc"
GROWTHS = {ITERATIVE: "step:1", UPFRONT: "upfront", OURS: "bmc"}
ROWS = (16, 64, 128, 256)  # Fig. 15 sweeps r
CACHES = (*GROWTHS, *(f"r = {rows}" for rows in ROWS), "DynamicCache", "StaticCache")


def measured(place: Place, batch: int, column: str) -> dict[str, Any]:
    """Return the seconds in which a batch of requests grows from nothing to all its tokens."""
    model, tokens = random_model(place, MODEL), 12 if place.tiny else TOKENS
    name = cache_argument(model.forward) or ""
    growth = GROWTHS.get(column) or column.replace("r = ", "step:")
    ids = torch.full((batch, 1), 3, device=place.device)

    def made() -> Any:
        if column == "DynamicCache":
            return DynamicCache(config=model.config)
        if column == "StaticCache":
            return StaticCache(model.config, tokens)
        return GrowingCache(model.config, growth, limit=tokens)

    def run(cache: Any, count: int) -> None:
        state = ids
        for _ in range(count):
            found = model(state, **{name: cache})
            state = found.logits[:, -1:].argmax(-1)

    with torch.no_grad(), reused_masks(model):
        run(made(), 3)
        cache = made()
        seconds = place.once(lambda: run(cache, tokens))
    found = {"seconds": seconds, "tokens": tokens * batch}
    if column == OURS:
        found["rows"] = cache.layers[0].growth.spare(tokens)
        found["ratio"] = rates(place.device).ratio
    return found


def cells(place: Place) -> Iterator[Cell]:
    """Return a cell for each batch and cache."""
    for batch in (2,) if place.tiny else BATCHES:
        for column in CACHES:
            yield Cell(f"batch {batch}", column, partial(measured, place, batch, column))


def table(store: CellStore) -> str:
    """Return tokens a second of each cache, and over growth token by token and upfront."""
    head = ["", "cache", "tokens/s", "over token by token", "over DynamicCache", "over upfront"]
    rows = []
    for name, columns in store.cells.items():
        peers = [columns.get(x, {}).get("seconds") for x in (ITERATIVE, "DynamicCache", UPFRONT)]
        for column, own in columns.items():
            over = [each / own["seconds"] if each else "" for each in peers]
            title = f"{column} (r = {own['rows']})" if "rows" in own else column
            rows.append([name, title, own["tokens"] / own["seconds"], *over])
    return markdown(head, rows)


PART = Part("growth", "growth of the cache, Mistral-7B's shape", cells, table)
