"""How attention is spread over tokens, layer by layer, and what that asks of a clip.

    python -m benchmarks.attention.mass --data-dir DIR            SmolLM2 over WikiText-2, 2 minutes
    python -m benchmarks.attention.mass --data-dir DIR --quick    seconds

Figure 2 of Scrooge: the tokens that hold a share of a head's softmax, heaviest first. Figures 3 and
4 of EXAQ: sigma of x = score - max by layer, and the clip C with the least error of e^x, by a
search over these very x (the paper's simulation), by Eq. 5 and by the line of Table 1. Two more
columns are of the error of the sum of e^x over a row's keys, which `clip=solve` minimizes. A prompt
is run exactly; the last tokens' queries of all layers are kept with the keys before them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.attention import last_tokens
from benchmarks.attention.last_tokens import Layer, Tokens
from benchmarks.harness.tables import markdown
from suffice.attention.exaq import EXAQ, KEYS, quantize, solved

NAME = "mass"
SHARES = (0.4, 0.8, 0.9, 0.95, 0.99)
BITS = (2, 3)
STEP = 0.25  # of C in a search, in nats
FAR = -1e9  # a clip that no x is below
# Scrooge, Fig. 2: tokens of 1,024 of OPT-6.7B that keep accuracy within 1 %, by layer of 32.
PUBLISHED = {0: 731, 10: 417, 25: 103}


def inputs(layer: Layer, length: int) -> np.ndarray:
    """Return x = score - max of each head, [H, length]; -infinity for keys that come later."""
    q, k, _ = layer
    groups, seen, size = k.shape
    scores = np.einsum("grd,gsd->grs", q.reshape(groups, -1, size), k).reshape(-1, seen)
    x = np.full((len(scores), length), -np.inf, np.float32)
    x[:, :seen] = scores - scores.max(-1, keepdims=True)
    return x


def tokens_for(x: np.ndarray, shares: tuple[float, ...] = SHARES) -> np.ndarray:
    """Return how many of the heaviest keys hold each share of a row's softmax, [rows, shares]."""
    weights = np.exp(-np.sort(-x, axis=-1))
    held = np.cumsum(weights, axis=-1) / weights.sum(-1, keepdims=True)
    return np.stack([(held < share).sum(-1) + 1 for share in shares], axis=-1)


def searched(x: np.ndarray, bits: int, error: Callable[[np.ndarray], float]) -> float:
    """Return the C of a grid that makes the error of e^x least; `error` gets rows of them."""
    exact = np.exp(x)

    def off(clip: float) -> float:
        codes = quantize(x, clip, bits)
        weights = np.exp(clip * (1 - codes / (2**bits - 1)))
        return error(np.where(codes < 0, 0, weights) - exact)

    lowest = max(-40.0, float(x[x > -np.inf].min()))
    return min((-STEP * i for i in range(1, int(-lowest / STEP) + 1)), key=off)


def single(errors: np.ndarray) -> float:
    """Return the mean square error of single e^x."""
    return float((errors**2).mean())


def summed(errors: np.ndarray) -> float:
    """Return the mean square error of the sums of rows."""
    return float((errors.sum(-1) ** 2).mean())


def row(layer: int, x: np.ndarray) -> dict[str, Any]:
    """Return a layer's figures."""
    sigma = float(x[x > -np.inf].std())
    counts = tokens_for(x).mean(0)
    found: dict[str, Any] = {"layer": layer}
    found |= {f"{share:g}": float(n) for share, n in zip(SHARES, counts, strict=True)}
    found["sigma"] = sigma
    for bits in BITS:
        found |= {
            f"C{bits} searched": searched(x, bits, single),
            f"C{bits} Eq. 5": solved(bits, sigma, 1),
            f"C{bits} line": EXAQ(bits).clipping(sigma, FAR),
            f"C{bits} of sums, searched": searched(x, bits, summed),
            f"C{bits} of sums, solved": solved(bits, sigma, KEYS),
        }
    return found


def table(data: dict[str, Any]) -> str:
    """Return the result as text and two tables."""
    rows = data["layers"]
    shares = [f"{share:g}" for share in SHARES]
    about = (
        f"{data['model']}, {data['text']} ({data['line_ends']} line ends), float32: all heads of "
        f"the {data['tokens']} tokens before {data['length']}."
    )
    published = ", ".join(f"layer {layer}: {count}" for layer, count in PUBLISHED.items())
    clips = [name for name in rows[0] if name.startswith("C")]
    return "\n\n".join(
        [
            "## Attention over tokens and scores",
            about,
            "### Keys that hold a share of the softmax, mean over heads (Scrooge, Fig. 2)",
            markdown(["layer", *shares], [[each[n] for n in ("layer", *shares)] for each in rows]),
            f"The paper, within 1 % of accuracy on OPT-6.7B, of 1,024 tokens: {published}.",
            "### The best clip C by layer, of 2 and 3 bits (EXAQ, Fig. 3 and 4)",
            markdown(
                ["layer", "sigma", *clips],
                [[each[n] for n in ("layer", "sigma", *clips)] for each in rows],
            ),
        ]
    )


def by_layer(tokens: Tokens, flags: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of each layer."""
    rows = [
        row(layer, np.concatenate([inputs(token[layer], flags.length) for token in tokens]))
        for layer in range(len(tokens[0]))
    ]
    return {"layers": rows}


def main() -> int:
    """Capture, measure, and write the tables."""
    return last_tokens.main(NAME, __doc__, 8, by_layer, table)


if __name__ == "__main__":
    sys.exit(main())
