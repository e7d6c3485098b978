"""Codebooks and thresholds of activations from a calibration against those of the text: Fig. 2.

    python -m benchmarks.quant.drift --data-dir DIR            SmolLM2, minutes
    python -m benchmarks.quant.drift --data-dir DIR --quick    a window each, into build/

KLLM learns codebooks of activations offline and finds outliers online, because thresholds of a
calibration do not fit the text. For the inputs of each matrix, a codebook and thresholds are
learned from the calibration (Spec-Bench's prompts), and again from the text (WikiText-2). Drift is
the root mean square of the difference: of centroids, which are at most 1, with and without outliers
among what they are learned from; of a token's threshold against the calibration's, over the
calibration's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.quant.quality import calibration_text
from suffice.checkpoints.files import locate
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError
from suffice.eval.perplexity import PerplexityPlan, windows_of
from suffice.eval.texts import line_ends, load_text
from suffice.progress import counting_bar
from suffice.quant.activations import Site
from suffice.quant.none import NoQuant
from suffice.quantize.layerwise import Layerwise
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.text.tokenizer import load_tokenizer

NAME = "drift"
BITS, SHARE = 4, 0.005  # of centroids; of a token's values at each end that are outliers
WINDOW, WINDOWS = 1024, 4
HEAD = ["site", "centroids, outliers included", "centroids of inliers", "thresholds"]
PUBLISHED = ["published, a layer of LLaMA-2-7B", "", "", "0.29"]


def drift(offline: np.ndarray, online: np.ndarray) -> tuple[float, float, float]:
    """Return the drift of centroids with and without outliers, and of thresholds.

    `offline` and `online` [T, K] are a site's inputs on the calibration and on the text.
    """
    centroids = []
    for share in (0.0, SHARE):
        learned = (Site.learn(each, BITS, share).levels for each in (offline, online))
        one, other = learned
        centroids.append(float(np.sqrt(np.mean((one - other) ** 2))))
    fixed = np.quantile(offline.astype(float), [SHARE, 1 - SHARE])
    found = np.quantile(online.astype(float), [SHARE, 1 - SHARE], axis=1)  # [2, T]
    away = (found - fixed[:, None]) / np.where(fixed == 0, 1, np.abs(fixed))[:, None]
    return *centroids, float(np.sqrt(np.mean(away**2)))  # type: ignore[return-value]


def sampled(decoder: TorchDecoder, windows: list[list[int]]) -> Iterator[dict[str, np.ndarray]]:
    """Yield, layer by layer, some inputs [T, K] of each site."""
    layers = Layerwise(decoder, windows)
    for index in range(len(decoder.config.layers)):
        yield {name: each.samples.numpy() for name, each in layers.inputs(index).items()}
        layers.advance(index)


def measured(
    decoder: TorchDecoder, offline: list[list[int]], online: list[list[int]]
) -> dict[str, list[tuple[float, float, float]]]:
    """Return the drifts of each kind of site, layer by layer."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    pairs = zip(sampled(decoder, offline), sampled(decoder, online), strict=True)
    with counting_bar() as bar:
        for ours, theirs in bar.track(pairs, total=len(decoder.config.layers), description=NAME):
            for name, values in ours.items():
                found.setdefault(name, []).append(drift(values, theirs[name]))
    return found


def table(data: dict[str, Any]) -> str:
    """Return the result as text and a table: means over layers, and the layer that drifts most."""
    about = (
        f"{data['model']}, {data['windows']} windows of {data['window']} tokens each of "
        f"{data['calibrated']} and of WikiText-2 ({data['line_ends']} line ends): the root mean "
        f"square of differences, mean over layers and in brackets the largest. Centroids of {BITS} "
        f"bits; outliers are {SHARE:.1%} of a token's values at each end."
    )
    rows = []
    for name, own in data["drift"].items():
        columns = zip(*own, strict=True)
        rows.append([name, *(f"{statistics.fmean(c):.3f} ({max(c):.3f})" for c in columns)])
    title = "## Offline and online codebooks of activations"
    return "\n\n".join([title, about, markdown(HEAD, [*rows, PUBLISHED])])


def main() -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt and Spec-Bench")
    parser.add_argument("--calibrate", help="text file to calibrate on, instead of Spec-Bench")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--limit", type=int, default=WINDOWS, help="windows of each text")
    parser.add_argument("--quick", action="store_true", help="a window each, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.quick:
        flags.window, flags.limit = 64, 1
    try:
        path, plan = locate(flags.model), PerplexityPlan(flags.window, flags.limit)
        text, (name, other) = load_text("wikitext2", flags.data_dir), calibration_text(flags)
        checkpoint, tokenizer = open_checkpoint(path), load_tokenizer(path)
        context = checkpoint.config.longest_text
        online, offline = (windows_of(tokenizer, each, plan, context) for each in (text, other))
    except InputError as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 2
    decoder = TorchDecoder.from_checkpoint(checkpoint, NoQuant("float32"))
    shown = {"model": Path(flags.model).name, "calibrated": Path(name).name}
    shown |= {"window": flags.window, "windows": flags.limit, "line_ends": line_ends(text)}
    data = record.facts() | shown | {"drift": measured(decoder, offline, online)}
    folder = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    record.write(folder, NAME, data, table(data))
    print(table(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
