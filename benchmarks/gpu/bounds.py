"""Whether a bound is ever broken: a million softmaxes of a real model, audited on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.parts import Cell, Part, Place
from benchmarks.gpu.techniques import held, prompts
from benchmarks.harness.tables import CellStore, markdown
from suffice.backends.triton.attend import attend
from suffice.backends.triton.audit import audited
from suffice.backends.triton.call import Held, Tokens
from suffice.backends.triton.rules import HeadRules

MODEL, TEXTS, LAST, AT_ONCE = "SmolLM2-135M", 8, 512, 32
SETTINGS = ("certified:eps=0.05", "certified:eps=0.2", "tiers:eps=0.2,bounded=true")
ROUNDING = 1e-5  # of the audit's float32 sums


def measured(place: Place, setting: str) -> dict[str, Any]:
    """Return how many softmaxes were audited, and how many lack more than their bound says.

    They are those of the last LAST tokens of some texts, in all layers.
    """
    last = 4 if place.tiny else LAST
    case = held(place, MODEL, TEXTS, setting, last)
    audits, beyond, worst, read = 0, 0, 0.0, []
    found = prompts(place, MODEL, TEXTS, last)
    for layer, (q, keys, _) in zip(case.layers, found.values(), strict=True):
        batch, _, _, size = q.shape
        exactly = HeadRules.of([None] * keys.shape[1], q.device)
        rows, every = Held(layer.keys, layer.values), layer.lengths + 1
        owner = torch.arange(batch, dtype=torch.int32, device=q.device)
        for begin in range(0, last, AT_ONCE):
            queries = q[:, :, begin : begin + AT_ONCE].transpose(1, 2)
            count = queries.shape[1]
            place_of = torch.arange(begin - last + 1, begin - last + 1 + count, device=q.device)
            lengths = (every[:, None] + place_of).int().flatten()
            tokens = Tokens(owner.repeat_interleave(count), 0 * lengths, lengths, layer.capacity)
            given = queries.flatten(0, 1).contiguous(), rows, tokens
            kept = {"sketches": layer.sketches, "bases": layer.bases}
            _, own = attend(layer.rules, *given, scale=size**-0.5, **kept)
            exact = attend(exactly, *given, scale=size**-0.5)[1]
            missing, _, bound, *_ = audited(own, exact)
            audits += missing.numel()
            beyond += int((missing > bound + ROUNDING).sum())
            worst = max(worst, float((missing / bound.clamp(min=ROUNDING)).max()))
            read.append(float((own.keys.float() / lengths[:, None]).mean()))
    return {"audits": audits, "beyond": beyond, "worst": worst, "read": sum(read) / len(read)}


def cells(place: Place) -> Iterator[Cell]:
    """Return a cell for each setting."""
    for setting in SETTINGS:
        yield Cell(MODEL, setting, partial(measured, place, setting))


def table(store: CellStore) -> str:
    """Return how many softmaxes were audited, and what was found."""
    head = ["", "softmaxes", "beyond their bound", "most of a bound", "keys read"]
    rows = [
        [f"`{setting}`", own["audits"], own["beyond"], own["worst"], own["read"]]
        for columns in store.cells.values()
        for setting, own in columns.items()
    ]
    return markdown(head, rows)


PART = Part("bounds", "a million audited softmaxes of SmolLM2-135M", cells, table)
