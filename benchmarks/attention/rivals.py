"""AET next to SpAtten's cascade and Token-Picker, on a real model's queries, keys and values.

    python -m benchmarks.attention.rivals --data-dir DIR            SmolLM2 over WikiText-2, minutes
    python -m benchmarks.attention.rivals --data-dir DIR --quick    seconds

A prompt is run exactly; the last tokens' queries of all layers are kept with the keys and values
before them. Each technique's reference then attends with them, token after token: a layer's input
is always the exact one, so errors do not add up over layers. The share of bytes is the mean over
layers and key/value heads; the error is that of a head's output, relative, as the root of the mean
square.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.attention import last_tokens
from benchmarks.attention.last_tokens import Layer, Tokens
from benchmarks.attention.pruning import Cascade, Read, TokenPicker, softmax
from benchmarks.harness.tables import markdown
from suffice.attention.aet import AET

NAME = "rivals"
Run = Callable[[list[list[Layer]]], Iterator[list[Read]]]  # tokens of layers


def by_aet(technique: AET) -> Run:
    """Return AET's reference, whose state lasts from token to token in each layer and head."""

    def run(tokens: list[list[Layer]]) -> Iterator[list[Read]]:
        states = [[technique.new_state() for _ in k] for _, k, _ in tokens[0]]
        for layers in tokens:
            found = []
            for (q, k, v), own in zip(layers, states, strict=True):
                attended = technique.reference(q[:, None], k, v, scale=1.0, states=own)
                keys, values = attended.keys[0], attended.values[0]
                seen = np.repeat(keys, len(q) // len(k), axis=0)
                parts = keys.astype(float), values.astype(float)
                found.append(Read(attended.output[:, 0], *parts, seen))
            yield found

    return run


def by_cascade(technique: Cascade) -> Run:
    """Return the cascade's reference."""

    def run(tokens: list[list[Layer]]) -> Iterator[list[Read]]:
        state = technique.begin()
        yield from map(state.step, tokens)

    return run


def by_picker(technique: TokenPicker) -> Run:
    """Return Token-Picker's reference."""

    def run(tokens: list[list[Layer]]) -> Iterator[list[Read]]:
        for layers in tokens:
            yield [technique.attend(*layer) for layer in layers]

    return run


def settings(block: int) -> dict[str, Run]:
    """Return the runs by name; `block` is the smallest block of AET."""
    found: dict[str, Run] = {}
    for size in dict.fromkeys((16, block)):
        for keys, values in ((0.95, 0.001), (0.9, 0.001), (0.8, 0.001), (0.7, 0.005)):
            name = f"aet:keys={keys},values={values},block={size}"
            found[name] = by_aet(AET(keys=keys, values=values, block=size))
    for last in (0.7, 0.5, 0.3):
        for share in (1.0, 0.5):
            name = f"SpAtten's cascade, last layer {last}, values {share}"
            found[name] = by_cascade(Cascade(last, share))
    for threshold in (1e-4, 1e-3, 1e-2):
        found[f"Token-Picker, threshold {threshold:g}"] = by_picker(TokenPicker(threshold))
    return found


def measure(run: Run, tokens: list[list[Layer]]) -> dict[str, float]:
    """Return the shares that a technique reads, its error and the mass that it misses."""
    errors, missing, keys, values = [], [], [], []
    for layers, found in zip(tokens, run(tokens), strict=True):
        for (q, k, v), read in zip(layers, found, strict=True):
            groups, _, size = k.shape
            weights = softmax(np.einsum("grd,gsd->grs", q.reshape(groups, -1, size), k))
            exact = np.einsum("grs,gsd->grd", weights, v).reshape(q.shape)
            away = ((read.output - exact) ** 2).sum(-1) / (exact**2).sum(-1)
            errors += away.tolist()
            missing += (1 - (weights.reshape(read.seen.shape) * read.seen).sum(-1)).tolist()
            keys.append(read.keys.mean())
            values.append(read.values.mean())
    shares = float(np.mean(keys)), float(np.mean(values))
    return {
        "K": shares[0],
        "V": shares[1],
        "bytes": sum(shares) / 2,
        "output error": float(np.sqrt(np.mean(errors))),
        "missing mean": float(np.mean(missing)),
        "missing 99.9 %": float(np.quantile(missing, 0.999)),
    }


def table(data: dict[str, Any]) -> str:
    """Return the result as text and a table."""
    rows = [[name, *figures.values()] for name, figures in data["settings"].items()]
    head = ["technique", *next(iter(data["settings"].values()))]
    about = (
        f"{data['model']}, {data['text']} ({data['line_ends']} line ends), float32: the "
        f"{data['tokens']} tokens before {data['length']}, all layers. Shares of the keys' and the "
        "values' bytes; a key whose bits are read in part counts in part. State of past tokens "
        "(AET, the cascade) starts with the first of these tokens."
    )
    return "\n\n".join(["## AET and its rivals", about, markdown(head, rows)])


def compared(tokens: Tokens, flags: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of each technique."""
    runs = settings(16 if flags.quick else 1)
    return {"settings": {name: measure(run, tokens) for name, run in runs.items()}}


def main() -> int:
    """Capture, measure, and write the table."""
    return last_tokens.main(NAME, __doc__, 4, compared, table)


if __name__ == "__main__":
    sys.exit(main())
