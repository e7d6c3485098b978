"""ART with a threshold for each layer: what its paper names as future work.

    python -m benchmarks.attention.by_layer --data-dir DIR          SmolLM2, minutes
    python -m benchmarks.attention.by_layer --data-dir DIR --quick  seconds

A prompt is run exactly; the last tokens' queries of all layers are kept with the keys and values
before them. On every second token, for each layer and each threshold tau of a ladder, the blocks
that are read and the mean square of the output's relative error are found. Of all choices of a
threshold a layer that read as little as one threshold for all does, the one of least error is
chosen, by a price a block. Both are then measured on the other tokens: a choice that only fits its
own tokens would show. The heads of a group stop together.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

import numpy as np
from numpy.linalg import norm

from benchmarks.attention import last_tokens
from benchmarks.attention.last_tokens import Layer, Tokens
from benchmarks.harness.tables import markdown
from suffice.attention.art import ART
from suffice.attention.art_bounds import changes, stops, trajectory

NAME = "by_layer"
LADDER = (0.0, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # 0: never stops
ONE = (1e-4, 1e-3, 1e-2)  # thresholds for all layers, to compare with
PRICES = np.geomspace(1e-8, 1e4, 400)  # of a layer's blocks, as a share, in units of the error


def stopped(layer: Layer, art: ART) -> tuple[float, float]:
    """Return the share of blocks that a token's groups read, and the mean square error."""
    q, keys, values = layer
    read, errors = [], []
    for own, k, v in zip(np.split(q, len(keys)), keys, values, strict=True):
        path = trajectory(own, k, v, scale=1.0, block=art.block)
        scales, directions = changes(art, path.outputs)
        steady = (scales < art.change) & (directions < art.angle)
        blocks = path.masses.shape[1]
        at = min(stops(steady.all(0, keepdims=True), art.patience).item(), blocks) - 1
        whole = path.outputs[:, -1]
        read.append((at + 1) / blocks)
        errors.append(
            np.square(norm(path.outputs[:, at] - whole, axis=-1) / norm(whole, axis=-1)).mean()
        )
    return float(np.mean(read)), float(np.mean(errors))


def costs(tokens: Tokens, art: ART) -> tuple[np.ndarray, np.ndarray]:
    """Return the share read and the error of each layer at each threshold, [L, len(LADDER)]."""
    rules = [dataclasses.replace(art, change=tau) for tau in LADDER]
    found = np.array(
        [[[stopped(layer, rule) for rule in rules] for layer in layers] for layers in tokens]
    ).mean(0)
    return found[..., 0], found[..., 1]


def chosen(read: np.ndarray, errors: np.ndarray, most: float) -> np.ndarray:
    """Return the threshold of each layer, [L], of least error that reads at most `most` in all.

    They are those with the least error plus price times blocks, for some price.
    """
    layers = np.arange(len(read))
    best, least = np.zeros(len(read), int), np.inf
    for price in PRICES:
        own = (errors + price * read).argmin(1)
        if read[layers, own].mean() <= most and errors[layers, own].mean() < least:
            best, least = own, errors[layers, own].mean()
    return best


def compared(tokens: Tokens, flags: argparse.Namespace) -> dict[str, Any]:
    """Return the rows: one threshold for all layers, and one for each."""
    known, tested = costs(tokens[::2], ART()), costs(tokens[1::2], ART())
    layers = np.arange(len(known[0]))
    rows = []
    for tau in ONE:
        at = LADDER.index(tau)
        own = chosen(*known, most=float(known[0][:, at].mean()))
        read, errors = tested
        rows.append(
            {
                "one threshold": tau,
                "blocks read": float(read[:, at].mean()),
                "error": float(np.sqrt(errors[:, at].mean())),
                "by layer, from": min(LADDER[each] for each in own),
                "to": max(LADDER[each] for each in own),
                "exact layers": int((own == 0).sum()),
                "blocks read by layer": float(read[layers, own].mean()),
                "error by layer": float(np.sqrt(errors[layers, own].mean())),
            }
        )
    return {"rows": rows, "layers": len(layers)}


def table(data: dict[str, Any]) -> str:
    """Return the result as text and a table."""
    about = (
        f"{data['model']}, {data['text']} ({data['line_ends']} line ends), float32: the "
        f"{data['tokens']} tokens before {data['length']}, {data['layers']} layers. Thresholds by "
        "layer are chosen on every second token, and measured as the others are on the rest. The "
        "error is that of a head's output, relative, as the root of the mean square."
    )
    rows = [list(row.values()) for row in data["rows"]]
    return "\n\n".join(
        ["## ART with a threshold for each layer", about, markdown(list(data["rows"][0]), rows)]
    )


def main() -> int:
    """Capture, measure, and write the table."""
    return last_tokens.main(NAME, __doc__, 8, compared, table)


if __name__ == "__main__":
    sys.exit(main())
