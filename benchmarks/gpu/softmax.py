"""EXAQ on a GPU: a softmax by codes next to the exact one, alone and within attention."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.exact import SIZE, Case
from benchmarks.gpu.parts import Cell, Part, Place
from benchmarks.harness.tables import CellStore, markdown
from suffice.attention.exaq import EXAQ
from suffice.backends.triton.attend import attend
from suffice.backends.triton.call import Held, Tokens
from suffice.backends.triton.coded import Tables, ValueSums
from suffice.backends.triton.rules import HeadRules

ROWS, BATCHES, BITS, SIGMA = (4096, 16384, 65536), (1, 8), (2, 3, 4), 2.0
EXACT = "exact"


def measured(place: Place, batch: int, rows: int, column: str) -> dict[str, Any]:
    """Return the seconds of attention, and the values that it reads for codes above 0.

    Queries are scaled so that scores have a standard deviation of SIGMA; C is that of Table 1.
    """
    heads, shared = (4, 2) if place.tiny else (32, 8)
    case = Case(place, (batch, heads, shared, rows, 32 if place.tiny else SIZE))
    q, k, v = case.tensors()
    owner = torch.arange(batch, dtype=torch.int32, device=q.device)
    tokens = Tokens(owner, 0 * owner, 0 * owner + rows, rows)
    rules, held = HeadRules.of([None] * shared, q.device), Held(k, v)
    options: dict[str, Any] = {}
    if column != EXACT:
        levels = EXAQ(int(column[-1])).layer_levels(SIGMA, -50.0)
        options["tables"] = Tables.of([levels] * heads, q.device)
        options["value_sums"] = ValueSums(batch, shared, k.shape[-1], q.device)
        options["value_sums"].extend(held, tokens)  # of the tokens before
    queries = (SIGMA * q[:, :, 0]).contiguous()
    scale = k.shape[-1] ** -0.5

    def work() -> Any:
        return attend(rules, queries, held, tokens, scale=scale, **options)[1]

    reads = work()
    share = float(reads.values.float().mean()) / rows
    return {"seconds": place.seconds(work), "values": share}


def alone(place: Place, batch: int, rows: int, column: str) -> dict[str, Any]:
    """Return the seconds of a softmax of scores [B, H, S] alone, by PyTorch."""
    heads = 4 if place.tiny else 32
    x = SIGMA * place.random(batch, heads, rows, dtype=torch.float32)
    if column == EXACT:
        return {"seconds": place.seconds(lambda: x.softmax(-1))}
    levels = EXAQ(int(column[-1])).layer_levels(SIGMA, -50.0)
    borders, weights = (
        torch.tensor(each, device=x.device) for each in (levels.borders, levels.weights)
    )

    def work() -> torch.Tensor:
        codes = torch.bucketize(x - x.amax(-1, keepdim=True), borders, right=True)
        found = weights[codes]
        return found / found.sum(-1, keepdim=True)

    return {"seconds": place.seconds(torch.compile(work) if place.cuda else work)}


def cells(place: Place) -> Iterator[Cell]:
    """Return a cell for each shape and number of bits."""
    shapes = [(batch, rows) for batch in BATCHES for rows in ROWS]
    for batch, rows in [(1, 100)] if place.tiny else shapes:
        for column in (EXACT, *(f"exaq:bits={bits}" for bits in BITS[: 1 if place.tiny else 3])):
            name = f"batch {batch}, {rows} keys"
            yield Cell(f"attention, {name}", column, partial(measured, place, batch, rows, column))
            yield Cell(f"softmax alone, {name}", column, partial(alone, place, batch, rows, column))


def table(store: CellStore) -> str:
    """Return the time of each softmax, and the speed over the exact one."""
    head = ["", "softmax", "us", "over exact", "values read"]
    rows = []
    for name, columns in store.cells.items():
        exact = columns.get(EXACT, {}).get("seconds")
        for column, own in columns.items():
            over = exact / own["seconds"] if exact else ""
            rows.append([name, f"`{column}`", 1e6 * own["seconds"], over, own.get("values", "")])
    return markdown(head, rows)


PART = Part("softmax", "a softmax by codes, alone and within attention", cells, table)
