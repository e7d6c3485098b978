"""What KLLM's accelerator counts in a real model: bins that are filled, outliers, scores.

    python -m benchmarks.hw.codes --data-dir DIR    SmolLM2, 3 minutes
    python -m benchmarks.hw.codes --data-dir DIR --quick    a layer of few tokens, into build/

The model is quantized layer by layer as by `--quant kllm`, each layer on the outputs of the
quantized ones before it. Some tokens' inputs then meet the matrices' codes: a bin is filled if the
pair of codes occurs in a column. Of 16 columns in a row, one in each lane, the one with most filled
bins is the slowest. Queries, keys and values have codebooks of their own, learned from the same
text; a score is an integer of 8 bits, with the greatest of a row as 255. The result is
src/suffice_hw/kllm/counted/<model>.toml, which `suffice hw validate` reads.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import record
from suffice.checkpoints.files import locate
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError
from suffice.eval.perplexity import PerplexityPlan, windows_of
from suffice.eval.texts import load_text
from suffice.progress import counting_bar
from suffice.quant.activations import Activations, Site
from suffice.quant.kmeans import KLLM
from suffice.quant.none import NoQuant
from suffice.quant.sites import SITE_OF
from suffice.quantize.layerwise import Layerwise
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.text.tokenizer import load_tokenizer

NAME, LANES, BITS = "codes", 16, 4
WINDOW, WINDOWS, TOKENS = 256, 2, 4  # TOKENS: whose pairs are counted
FOLDER = record.ROOT / "src" / "suffice_hw" / "kllm" / "counted"
Counts = Counter[int]


def filled_bins(codes: np.ndarray, weight_codes: np.ndarray) -> np.ndarray:
    """Return how many different pairs each row has, [N], of codes [K] and weights' codes [N, K]."""
    bins = 1 << (2 * BITS)
    pairs = (codes.astype(np.int64) << BITS) + weight_codes
    places = np.arange(len(pairs))[:, None] * bins + pairs
    counts = np.bincount(places.ravel(), minlength=len(pairs) * bins)
    found: np.ndarray = (counts.reshape(-1, bins) > 0).sum(1)
    return found


class Counted:
    """The counts of a model's layers."""

    def __init__(self) -> None:
        self.sizes: dict[str, tuple[int, int]] = {}
        self.filled: dict[str, Counts] = {}
        self.slowest: dict[str, Counts] = {}
        self.offline: dict[int, Counts] = {}  # outliers beyond thresholds, by number of inputs
        self.scored: Counts = Counter()  # bins of a query and 16 keys, the slowest
        self.counted: list[float] = []  # share of scores that are not 0

    def matrix(self, name: str, x: Activations, weight_codes: np.ndarray) -> None:
        """Count a token's pairs with a matrix."""
        found = filled_bins(x.codes, weight_codes)
        self.sizes[name] = weight_codes.shape
        self.filled.setdefault(name, Counter()).update(found.tolist())
        waves = np.pad(found, (0, -len(found) % LANES)).reshape(-1, LANES).max(1)
        self.slowest.setdefault(name, Counter()).update(waves.tolist())

    def heads(self, q: np.ndarray, k: np.ndarray, scale: float, token: int) -> None:
        """Count a token's scores, for queries [H, T, D] and keys [G, T, D]."""
        own, seen = q[:, token], k[:, : token + 1].repeat(len(q) // len(k), 0)
        codes = [_encoded(each) for each in (q, k)]
        shared = codes[1].repeat(len(q) // len(k), 0)
        for head, rows in zip(codes[0][:, token], shared, strict=True):
            found = filled_bins(head, rows[: token + 1])
            waves = found[: len(found) // LANES * LANES].reshape(-1, LANES).max(1)
            self.scored.update(waves.tolist())
        logits = scale * np.einsum("hd,htd->ht", own, seen)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        self.counted += (np.rint(255 * weights) > 0).mean(1).tolist()

    def lines(self, about: dict[str, Any]) -> str:
        """Return the file."""
        text = "# Written by `python -m benchmarks.hw.codes`. Pairs [bins, columns or waves].\n"
        text += "".join(f"{key} = {_shown(value)}\n" for key, value in about.items())
        text += f"score_waves = {_pairs(self.scored)}\n"
        text += f"scores_counted = {float(np.mean(self.counted)):.4f}\n"
        for name, (outputs, inputs) in self.sizes.items():
            text += f'\n[[matrices]]\nname = "{name}"\noutputs = {outputs}\ninputs = {inputs}\n'
            text += f"columns = {_pairs(self.filled[name])}\nwaves = {_pairs(self.slowest[name])}\n"
        for inputs, counts in sorted(self.offline.items()):
            text += f"\n[[thresholds]]\ninputs = {inputs}\noutliers = {_pairs(counts)}\n"
        return text


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _pairs(counts: Counts) -> str:
    """Return counts as lines of pairs."""
    pairs = [f"[{value}, {count}]" for value, count in sorted(counts.items())]
    rows = [", ".join(pairs[at : at + 8]) for at in range(0, len(pairs), 8)]
    return "[\n  " + ",\n  ".join(rows) + "\n]"


def _encoded(heads: np.ndarray) -> np.ndarray:
    """Return codes [H, T, D] of heads, all heads of a token in one row, by their own codebook."""
    rows = heads.transpose(1, 0, 2).reshape(heads.shape[1], -1)
    site = Site.learn(rows, BITS)
    codes = np.stack([site.encode(row).codes for row in rows])
    return codes.reshape(len(rows), len(heads), -1).transpose(1, 0, 2)


class Quantized(Layerwise):
    """Windows that run through layers once these are quantized."""

    parts: tuple[torch.Tensor, ...] | None = None

    def _mixed(self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.parts = q, k
        return super()._mixed(index, q, k, v)


def count(decoder: TorchDecoder, windows: list[list[int]], tokens: int) -> Counted:
    """Quantize the layers one after the other, and count `tokens` tokens' pairs in each."""
    method, found = KLLM(), Counted()
    layers = Quantized(decoder, windows)
    with counting_bar() as bar:
        for index in bar.track(range(len(decoder.config.layers)), description=NAME):
            inputs = layers.inputs(index)
            packed = {}
            for name, matrix in layers.matrices(index).items():
                own = inputs[SITE_OF[name]]
                samples = own.samples.numpy()
                site = method.site(samples)
                assert site is not None
                coded = method.quantize(matrix.unpack(), own.of(name).numpy())
                packed[name] = method.packed(coded, matrix.bias, site)
                for row in samples[:: max(len(samples) // tokens, 1)][:tokens]:
                    found.matrix(name, site.encode(row), coded.codes)
            for own in inputs.values():
                samples = own.samples.numpy()
                known, rest = samples[::2], samples[1::2]
                thresholds = Site.learn(known, BITS, offline=True)
                counts = [len(thresholds.outliers(row)) for row in rest]
                found.offline.setdefault(samples.shape[1], Counter()).update(counts)
            layers.replace(index, packed)
            layers.advance(index)
            assert layers.parts is not None
            q, k = (part.numpy() for part in layers.parts)
            for token in np.linspace(q.shape[1] // 2, q.shape[1] - 1, tokens).astype(int):
                found.heads(q, k, decoder.config.attention_scale, int(token))
    return found


def main() -> int:
    """Count, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quick", action="store_true", help="few tokens, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    window, tokens = (64, 1) if flags.quick else (WINDOW, TOKENS)
    try:
        path, text = locate(flags.model), load_text("wikitext2", flags.data_dir)
        checkpoint, tokenizer = open_checkpoint(path), load_tokenizer(path)
        plan = PerplexityPlan(window, 1 if flags.quick else WINDOWS)
        windows = windows_of(tokenizer, text, plan, checkpoint.config.longest_text)
    except InputError as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 2
    decoder = TorchDecoder.from_checkpoint(checkpoint, NoQuant("float32"))
    found = count(decoder, windows, tokens)
    config = decoder.config
    about = {"model": Path(flags.model).name, "layers": len(config.layers), "lanes": LANES}
    about |= {"bits": BITS, "width": config.width, "hidden": config.mlp_width}
    about |= {"heads": config.heads, "kv_heads": config.kv_heads, "vocabulary": config.vocab}
    about |= {"score_length": window}
    folder = flags.out or (record.BUILD if flags.quick else FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{about['model']}.toml").write_text(found.lines(about), encoding="utf-8")
    print(folder / f"{about['model']}.toml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
