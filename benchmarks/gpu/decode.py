"""Tokens a second through transformers: static caches compiled, and enabled models with graphs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from transformers import PreTrainedModel, StaticCache

import suffice.integrations.transformers as st
from benchmarks.gpu import models
from benchmarks.gpu.lent import Lent
from benchmarks.gpu.parts import Cell, Part, Place
from benchmarks.harness.tables import CellStore, markdown
from suffice.integrations.checks import cache_argument, head_shape
from suffice.integrations.device_requests import DeviceRequests
from suffice.integrations.native_cache import NativeCache

ROWS, BATCHES = 32768, (1, 2, 4, 8)
STEPS, WARM = 32, 6
STATIC, EXACT = "StaticCache, compiled", "exact"
LENT_TO = "Mistral-7B"
STOPPING = (
    "art:change=0.05,angle=0.05,patience=2",
    "art:change=0.01,block=16,order=sketch",
    "aet:keys=0.7,values=0.001",
    "certified:eps=0.2",
    "skip_softmax:factor=30",
    "tiers:eps=0.7,skip=0.0002",
)
RANDOM = (
    STATIC,
    EXACT,
    "exact without graphs",
    *STOPPING,
)
# Attention, and a policy, of enabled models whose prompt is a text.
REAL = (
    (STATIC, "full"),
    (EXACT, "full"),
    *((attention, "full") for attention in STOPPING),
    *(
        (attention, f"{policy}:{share}")
        for policy in ("snapkv", "pyramidkv")
        for share in (0.8, 0.2)
        for attention in (EXACT, STOPPING[0])
    ),
)


@functools.lru_cache(maxsize=1)
def random_model(place: Place, name: str) -> PreTrainedModel:
    """Return a model with random weights, which stays while its cells are measured."""
    return models.random(place, name)


@functools.lru_cache(maxsize=1)
def real_model(place: Place, name: str) -> tuple[PreTrainedModel, list[list[int]]]:
    """Return a model and its texts, which stay while its cells are measured."""
    return models.real(place, name)


def tokens_per_second(
    place: Place, model: PreTrainedModel, cache: Any, batch: int, rows: int, *, compiles: bool
) -> float:
    """Return the tokens a second of greedy steps, from a cache of `rows` rows on."""
    forward = torch.compile(model, mode="reduce-overhead") if compiles and place.cuda else model
    name = cache_argument(model.forward) or ""
    ids = torch.full((batch, 1), 3, device=place.device)
    at = [rows]
    state = [ids]

    def step() -> None:
        positions = torch.full((batch, 1), at[0], device=place.device)
        found = forward(state[0], position_ids=positions, **{name: cache})
        state[0] = found.logits[:, -1:].argmax(-1)
        at[0] += 1

    steps, warm = (1, 1) if place.tiny else (STEPS, WARM)
    with torch.no_grad():
        for _ in range(warm):
            step()

        def timed() -> None:
            for _ in range(steps):
                step()

        seconds = place.once(timed)
    return batch * steps / seconds


def filled(
    place: Place, model: PreTrainedModel, cache: Any, shape: tuple[int, int], lent: Lent | None
) -> Any:
    """Fill a cache of a batch of rows with random keys and values, or those that are lent."""
    _, heads, size = head_shape(model.config.get_text_config(decoder=True), 0)
    batch, rows = shape
    for layer in range(model.config.num_hidden_layers):
        if lent is None:
            key, value = (place.random(batch, heads, rows, size) for _ in range(2))
        else:
            key, value = (each[:batch] for each in lent.rows(layer))
        if not isinstance(cache, NativeCache):
            cache.update(key, value, layer)
            continue
        if layer == 0:
            cache.requests.begin(key, None)
        cache.requests.store(layer, key, value)
        cache.requests.end_layer(layer, key, 1.0)
    return cache


def of_random(
    place: Place, name: str, batch: int, column: str, *, lends: bool = False
) -> dict[str, Any]:
    """Return the tokens a second of a random model by a way to decode.

    If SmolLM2 `lends` it rows and queries, stops and bytes are those of texts.
    """
    model, rows, lent = random_model(place, name), 60 if place.tiny else ROWS, None
    if lends:
        lent = Lent(place, model)
        batch, rows = min(batch, lent.batch), lent.count
    shape = batch, rows
    most = rows + WARM + STEPS + 2
    if column == STATIC:
        cache = filled(place, model, StaticCache(model.config, most), shape, lent)
        return {"rate": tokens_per_second(place, model, cache, batch, rows, compiles=True)}
    attention = EXACT if column.startswith(EXACT) else column
    graphs = column != "exact without graphs"
    with contextlib.ExitStack() as stack:
        if lent is not None:
            stack.enter_context(lent.asking(batch))
        options = {"attention": attention, "graphs": graphs}
        enabled = stack.enter_context(enabled_with(place, model, **options))
        cache = filled(place, model, enabled.new_cache(), shape, lent)
        rate = tokens_per_second(place, model, cache, batch, rows, compiles=False)
        return {"rate": rate, "share": enabled.trace.key_fraction}


def of_real(place: Place, name: str, batch: int, attention: str, policy: str) -> dict[str, Any]:
    """Return the tokens a second of a real model that continues its texts."""
    model, texts = real_model(place, name)
    ids = torch.tensor(texts[:batch], device=place.device)
    batch, rows = ids.shape
    cache_name = cache_argument(model.forward) or ""
    with contextlib.ExitStack() as stack, torch.no_grad():
        share: Callable[[], float] = lambda: 1.0  # noqa: E731  # a trace has it
        if attention == STATIC:
            cache: Any = StaticCache(model.config, rows + WARM + STEPS + 2)
        else:
            options = {"attention": attention, "policy": policy}
            enabled = stack.enter_context(enabled_with(place, model, graphs=True, **options))
            cache, share = enabled.new_cache(), lambda: float(enabled.trace.key_fraction)
        model(ids, logits_to_keep=1, **{cache_name: cache})
        compiles = attention == STATIC
        rate = tokens_per_second(place, model, cache, batch, rows, compiles=compiles)
        return {"rate": rate, "share": share()}


@contextlib.contextmanager
def enabled_with(
    place: Place, model: PreTrainedModel, *, graphs: bool, **options: Any
) -> Iterator[st.Enabled]:
    """Enable a model; a tiny run has the kernels on the CPU, and no graphs."""
    with contextlib.ExitStack() as stack:
        graphs = graphs and place.cuda
        if place.tiny:
            stack.enter_context(patch.object(st, "requests_on", lambda device: DeviceRequests))
        yield stack.enter_context(st.enable(model, growth="step:4096", graphs=graphs, **options))


def cells(place: Place) -> Iterator[Cell]:
    """Return a cell for each model, batch and way to decode."""
    batches = (1,) if place.tiny else BATCHES
    for name in list(models.SHAPES)[:1] if place.tiny else models.SHAPES:
        for batch in batches:
            for column in RANDOM:
                row = f"{name}, random, batch {batch}"
                yield Cell(row, column, partial(of_random, place, name, batch, column))
    for batch in batches[:1] if place.tiny else (1, 8):
        for column in (STATIC, EXACT, *STOPPING):
            row = f"{LENT_TO}, random, rows of texts, batch {batch}"
            own = partial(of_random, place, LENT_TO, batch, column, lends=True)
            yield Cell(row, column, own)
    for name in list(models.REAL)[:1] if place.tiny else models.REAL:
        for batch in batches[:1] + batches[-1:] if not place.tiny else (1,):
            for attention, policy in REAL[5::4] if place.tiny else REAL:
                column = attention if policy == "full" else f"{attention} {policy}"
                measure = partial(of_real, place, name, batch, attention, policy)
                yield Cell(f"{name}, batch {batch}", column, measure)


def table(store: CellStore) -> str:
    """Return tokens a second, and over the compiled static cache and exact attention."""
    head = ["", "", "tokens/s", "over StaticCache", "over exact", "share of rows read"]
    rows = []
    for name, columns in store.cells.items():
        static, exact = (columns.get(each, {}).get("rate") for each in (STATIC, EXACT))
        for column, own in columns.items():
            over = [own["rate"] / each if each else "" for each in (static, exact)]
            rows.append([name, f"`{column}`", own["rate"], *over, own.get("share", "")])
    return markdown(head, rows)


PART = Part("decode", "tokens a second through transformers", cells, table)
