"""Each technique over exact attention, on the caches of real models: time, bytes, error, bound."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from benchmarks.gpu import models
from benchmarks.gpu.parts import Cell, Part, Place
from benchmarks.harness.tables import CellStore, markdown
from suffice.attention import ATTENTIONS
from suffice.backends.triton import attend as kernels
from suffice.backends.triton.audit import audited
from suffice.backends.triton.call import Tokens
from suffice.backends.triton.rules import HeadRules
from suffice.cache.growth import Upfront
from suffice.integrations.device_layer import DeviceLayer

SETTINGS = (
    "aet:keys=0.9,values=0.001",
    "aet:keys=0.7,values=0.001",
    "art",
    "art:change=0.05,angle=0.05,patience=2",
    "art:change=0.01,block=16,order=sketch",
    "certified:eps=0.05",
    "certified:eps=0.2",
    "certified:eps=0.2,bounded=false",
    "skip_softmax:factor=30",
    "skip_softmax:factor=300",
    "tiers:eps=0.7,skip=0.0002",
    "tiers:eps=0.2,bounded=true",
)
# ART's thresholds, swept as in its figures 6 and 7, and a check that never fires (table 6).
SWEEP = tuple(
    f"art:change={change},angle={angle},patience={patience}"
    for change, angle in ((1e-5, 1e-3), (1e-3, 1e-2), (1e-2, 0.1), (0.1, 0.5))
    for patience in (1, 5)
)
NEVER = "art:change=1e-30"
OURS = tuple(
    f"art:change={change},block=16,order=sketch" for change in (1e-4, 1e-3, 1e-2, 2e-2, 5e-2)
)
PROGRAMS = (1, 2, 4, 8, 16)  # for each token and key/value head, and not as many as fill a GPU
TEXTS = (1, 8)


class Held(NamedTuple):
    """A model's layers at the end of its texts: what attention gets there."""

    layers: list[DeviceLayer]
    queries: list[torch.Tensor]  # [B, H, D]
    ranks: torch.Tensor


@functools.lru_cache(maxsize=1)
def prompts(
    place: Place, name: str, count: int, last: int = 1
) -> dict[int, tuple[torch.Tensor, ...]]:
    """Return the last queries, keys and values of a model's full layers after some texts."""
    model, texts = models.real(place, name)
    ids = torch.tensor(texts[:count], device=place.device)
    with models.recording(model, last) as found, torch.no_grad():
        model(ids, logits_to_keep=1)
    return found


def held(place: Place, name: str, count: int, setting: str, last: int = 1) -> Held:
    """Return the layers with what a technique keeps, just before their last token's attention."""
    rule, layers, queries = ATTENTIONS.build(setting).rule(), [], []
    for q, k, v in prompts(place, name, count, last).values():
        batch, heads, rows, _ = k.shape
        lengths = torch.zeros(batch, dtype=torch.int32, device=k.device)
        rules = HeadRules.of([rule] * heads, k.device)
        layer = DeviceLayer(k, rules, lengths, boxed=False)
        layer.reserve([rows] * batch, Upfront(), rows)
        every = torch.arange(1, rows + 1, dtype=torch.int32, device=k.device)
        layer.store(k, v, every.expand(batch, -1))
        lengths += rows - 1
        layers.append(layer)
        queries.append(q[:, :, -1].contiguous())
    return Held(layers, queries, torch.ones(batch, 1, dtype=torch.int32, device=k.device))


def with_programs(
    place: Place, name: str, count: int, setting: str, programs: int
) -> dict[str, Any]:
    """Return what `measured` does, with that many programs for a token and key/value head."""
    with patch.object(kernels, "splits_that_fill", lambda call: programs):
        return measured(place, name, count, setting)


def measured(place: Place, name: str, count: int, setting: str) -> dict[str, Any]:
    """Return the seconds of all full layers' attention, what it read, and how far off it was."""
    case = held(place, name, count, setting)
    scale = case.queries[0].shape[-1] ** -0.5
    tokens = [layer.tokens(case.ranks, None) for layer in case.layers]
    triples = list(zip(case.layers, case.queries, tokens, strict=True))
    figures, shares = [], []
    for layer, q, own in triples:
        _, reads = layer.attend(q, own, scale)
        figures.append(audited(reads, layer.attend_exactly(q, own, scale)))
        shares.append(read_share(reads, own, layer))
    missing, error, bound, *_ = torch.cat([each.flatten(1) for each in figures], 1)
    exactly = HeadRules.of([None] * case.layers[0].keys.shape[1], case.ranks.device)
    own_rules = case.layers[0].rules

    def work() -> None:
        for layer, q, own in triples:
            layer.attend(q, own, scale)

    own_seconds = place.seconds(work)
    for layer in case.layers:
        layer.rules = exactly
    exact = place.seconds(work)
    for layer in case.layers:
        layer.rules = own_rules
    known = bound[bound.isfinite()]
    return {
        "seconds": own_seconds,
        "exact_seconds": exact,
        "share": float(torch.stack(shares).mean()),
        "error": float(error.square().mean().sqrt()),
        "error_most": float(error.max()),
        "missing": float(missing.mean()),
        "bound": float(known.max()) if len(known) else None,
        "beyond": int((missing > bound + 1e-5).sum()),
        "queries": missing.numel(),
    }


def read_share(reads: Any, tokens: Tokens, layer: DeviceLayer) -> torch.Tensor:
    """Return the bytes that came from memory over those of all keys and values."""
    row = layer.keys.shape[-1] * layer.keys.element_size()
    read = reads.fetched.sum() * row
    if reads.sketched is not None:
        read = read + reads.sketched.sum()
    return read / (2 * row * tokens.length.sum() * layer.keys.shape[1])


def texts_of(place: Place) -> Iterator[tuple[str, int, str]]:
    """Return each model, number of texts, and the name of their row."""
    for name in list(models.REAL)[:1] if place.tiny else models.REAL:
        for count in TEXTS[:1] if place.tiny else TEXTS:
            yield name, count, f"{name}, {count} texts"


def cells(place: Place) -> Iterator[Cell]:
    """Return a cell for each model, number of texts and setting."""
    for name, count, row in texts_of(place):
        for setting in SETTINGS:
            yield Cell(row, setting, partial(measured, place, name, count, setting))


def swept(place: Place) -> Iterator[Cell]:
    """Return a cell for each model, number of texts, and thresholds or programs of `art`."""
    settings = (NEVER, *SWEEP, *OURS)
    for name, count, row in texts_of(place):
        for setting in settings[::5] if place.tiny else settings:
            yield Cell(row, setting, partial(measured, place, name, count, setting))
        for programs in PROGRAMS[1:2] if place.tiny else PROGRAMS:
            own = partial(with_programs, place, name, count, SETTINGS[3], programs)
            yield Cell(row, f"{SETTINGS[3]}, {programs} programs a head", own)


def table(store: CellStore) -> str:
    """Return time over exact next to the share of bytes, with errors and bounds."""
    head = ["", "", "bytes read", "time over exact", "over share + 0.05"]
    head += ["error", "largest", "missing", "bound", "beyond"]
    rows = []
    for name, columns in store.cells.items():
        for setting, own in columns.items():
            time = own["seconds"] / own["exact_seconds"]
            bound = "" if own["bound"] is None else own["bound"]
            figures = [own["share"], time, time / (own["share"] + 0.05)]
            figures += [own["error"], own["error_most"], own["missing"], bound, own["beyond"]]
            rows.append([name, f"`{setting}`", *figures])
    return markdown(head, rows)


PART = Part(
    "techniques",
    "techniques over exact attention on caches of real models",
    cells,
    table,
)
SWEPT = Part(
    "art",
    "ART's thresholds swept, its order and programs, and a check that never fires",
    swept,
    table,
)
