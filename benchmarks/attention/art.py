"""ART's decisions on the queries, keys and values of a real model (Tables 3 and 4, appendix F).

    python -m benchmarks.attention.art --data-dir DIR            SmolLM2 over WikiText-2, minutes
    python -m benchmarks.attention.art --data-dir DIR --quick    seconds

A prompt is run once. The queries of the last tokens before each length are kept with the keys and
values before them, and the reference's traversal runs on each, newest block first. A sample is one
head of one token; for Table 3 and appendix F the heads that share keys stop together, as in the
engine. The probe is the engine's, in runs of 16 elements; columns "scattered" have a probe of
single elements, as in the paper. Published figures are for models of 7 billion parameters and more,
and for a text with a needle; ours has none.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.linalg import norm

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from suffice.attention.art import ART
from suffice.attention.art_bounds import Trajectory, bounds, changes, stops, trajectory
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.eval.texts import load_text
from suffice.quantize import torch_decoder

NAME = "art"
LENGTHS = (1024, 2048, 4096, 8192)
DEFAULT = ART()
# The paper's thresholds, with which groups of this model's heads seldom stop, and two more.
SETTINGS = (DEFAULT, ART(change=1e-3), ART(change=1e-2))
PUBLISHED_LENGTHS = {1024: "100 / 0 / 0", 2048: "100 / 0 / 0", 4096: "100 / 0 / 0"}
PUBLISHED_LENGTHS[8192] = "99.88 / 0.13 / 0"
# The paper's figures by layer, of 36, at 4096 tokens; compared with our layers at the same depth.
PUBLISHED_DEPTHS = {
    7: "99.50 / 0.50 / 0, 1.00 ± 0.00",
    17: "94.06 / 5.56 / 0.38, 1.34 ± 0.47",
    35: "100 / 0 / 0",
}
PUBLISHED_ABLATION = {
    "full": "45.74, 0.633 ms",
    "without scale": "19.34, 0.135 ms",
    "without direction": "43.87, 0.628 ms",
    "without patience": "41.54, 0.506 ms",
}
FIELDS = {"tau": "change", "phi": "angle", "p": "patience"}  # the paper's letters
SWEEPS: dict[str, tuple[Any, ...]] = {
    "tau": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
    "phi": (1e-4, 1e-3, 1e-2),
    "p": (1, 2, 5, 10),
    "block": (16, 32, 48, 64),
    "probe": (16, 32, 48, 64),
}


@dataclass(frozen=True)
class Scattered(ART):
    """ART with a probe of single elements at even distances, as the paper describes it.

    The engine's probe has runs of 16 elements, which are read faster.
    """

    def probed(self, output: np.ndarray) -> np.ndarray:
        """Return the probe [R, probe] of outputs [R, D]."""
        size = output.shape[-1]
        probe = min(self.probe, size)
        return output[:, np.arange(probe) * size // probe]


@dataclass(frozen=True)
class Sample:
    """One token's queries [H, D] in a layer, and the keys and values [G, S, D] that it sees."""

    layer: int
    length: int  # S, rounded up to one of the lengths asked for
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float

    def groups(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield q [R, D], k and v [S, D] of each key/value head."""
        yield from zip(np.split(self.q, len(self.k)), self.k, self.v, strict=True)


def depths(layers: int) -> dict[int, int]:
    """Return the layers at the same depths as the paper's, which are of 36."""
    return {theirs: round(theirs / 35 * (layers - 1)) for theirs in PUBLISHED_DEPTHS}


def few(count: int) -> int:
    """Return how many tokens are kept per layer when all layers are kept."""
    return max(count // 8, 1)


def capture(
    runner: Runner, tokens: list[int], lengths: tuple[int, ...], count: int
) -> list[Sample]:
    """Run a prompt; return samples of the last `count` tokens before each length.

    This holds for the layers of Table 4; other layers keep an eighth as many tokens.
    """
    layers = len(runner.decoder.config.layers)
    deep = depths(layers).values()
    wanted = [
        {at: n for n in lengths for at in range(n - (count if layer in deep else few(count)), n)}
        for layer in range(layers)
    ]
    samples: list[Sample] = []
    attend, calls = torch_decoder.attend, itertools.count()

    def kept(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *others: Any) -> Any:
        layer, first = next(calls) % layers, k.shape[1] - q.shape[1]
        for row in range(q.shape[1]):
            if first + row in wanted[layer]:
                seen = slice(first + row + 1)
                length = wanted[layer][first + row]
                parts = q[:, row].clone(), k[:, seen], v[:, seen]
                samples.append(Sample(layer, length, *(each.numpy() for each in parts), scale))
        return attend(q, k, v, scale, *others)

    sequence = runner.open("art", max(lengths))
    step = runner.config.prefill_chunk
    decoder = torch_decoder.TorchDecoder(runner.decoder.config, runner.decoder.weights)
    with mock.patch.object(torch_decoder, "attend", kept):
        for start in range(0, max(lengths), step):
            part = torch.tensor(tokens[start : min(start + step, max(lengths))])
            decoder.forward(part, sequence.cache, logits="none")
    runner.close(sequence)
    return samples


def checks(sample: Sample, art: ART) -> Iterator[tuple[Trajectory, np.ndarray, np.ndarray]]:
    """Yield each group's trajectory with its changes of scale and direction at every check."""
    for q, k, v in sample.groups():
        path = trajectory(q, k, v, scale=sample.scale, block=art.block)
        yield path, *changes(art, path.outputs)


def agreement(samples: list[Sample], art: ART) -> dict[str, Any]:
    """Compare the probe's stops with those of the whole output, head by head (Table 4)."""
    oracle = dataclasses.replace(art, probe=samples[0].q.shape[-1])
    offsets: list[int] = []
    total = early = late = stopped = 0
    for sample in samples:
        for path, scales, directions in checks(sample, art):
            mine = stops((scales < art.change) & (directions < art.angle), art.patience)
            scales, directions = changes(oracle, path.outputs)
            whole = stops((scales < art.change) & (directions < art.angle), art.patience)
            never = path.masses.shape[1] + 1
            both = (mine != whole) & (mine < never) & (whole < never)
            offsets += np.abs(mine - whole)[both].tolist()
            total += len(mine)
            early += int((mine < whole).sum())
            late += int((mine > whole).sum())
            stopped += int((mine < never - 1).sum())
    return {
        "n": total,
        "agree": 1 - (early + late) / total,
        "false positives": early / total,
        "false negatives": late / total,
        "offset": float(np.mean(offsets)) if offsets else None,
        "offset std": float(np.std(offsets)) if offsets else None,
        "stopped": stopped / total,
    }


def both_probes(samples: list[Sample], art: ART) -> dict[str, Any]:
    """Return the agreement of the engine's probe, and of a scattered one of the same size."""
    scattered = agreement(samples, Scattered(**dataclasses.asdict(art)))
    names = ("agree", "false positives", "false negatives", "stopped")
    return agreement(samples, art) | {f"{name}, scattered": scattered[name] for name in names}


def quality(samples: list[Sample], art: ART, without: str = "") -> dict[str, Any]:
    """Return the cost of stopping; a group stops at the first check with all heads steady.

    `without` is the criterion to leave out: "scale", "direction" or "" (Table 3).
    """
    read, errors, missing = [], [], []
    for sample in samples:
        for path, scales, directions in checks(sample, art):
            stable = (scales < art.change) | (without == "scale")
            stable &= (directions < art.angle) | (without == "direction")
            blocks = path.masses.shape[1]
            # All heads are steady at a check if the last p checks found all of them stable
            at = min(stops(stable.all(0, keepdims=True), art.patience).item(), blocks) - 1
            full = path.outputs[:, -1]
            read.append((at + 1) / blocks)
            errors += (norm(path.outputs[:, at] - full, axis=-1) / norm(full, axis=-1)).tolist()
            missing += (1 - path.known[:, at] / path.known[:, -1]).tolist()
    lost = np.array(missing)
    return {
        "blocks read": sum(read) / len(read),
        "error mean": sum(errors) / len(errors),
        "error max": max(errors),
        "missing mean": float(lost.mean()),
        "missing 99.9 %": float(np.quantile(lost, 0.999)),
        "missing over half": float((lost > 0.5).mean()),
    }


def promises(samples: list[Sample], art: ART) -> dict[str, Any]:
    """Compare Theorems 1 and 2 with the errors of the heads that stop."""
    found = [
        each
        for sample in samples
        for q, k, v in sample.groups()
        for each in bounds(art, q, k, v, scale=sample.scale)
        if each.stopped < each.blocks
    ]
    if not found:
        return {"stopped": 0}
    held = [each for each in found if each.decays]
    return {
        "stopped": len(found),
        "assumption 1": sum(each.regulated for each in found) / len(found),
        "masses decay": len(held) / len(found),
        "theorem 1 finite": sum(each.theorem1 < float("inf") for each in found) / len(found),
        "theorem 1 violated": sum(each.error > each.theorem1_steps for each in found) / len(found),
        "theorem 2 violated": sum(each.error > each.theorem2 for each in found) / len(found),
        "violated where masses decay": sum(
            each.error > min(each.theorem1_steps, each.theorem2) * (1 + 1e-9) for each in held
        ),
    }


def name_of(art: ART) -> str:
    """Return a setting's thresholds."""
    thresholds = f"tau={art.change:g}, phi={art.angle:g}, p={art.patience}"
    return f"{thresholds}, block={art.block}, probe={art.probe}"


def measure(samples: list[Sample], layers: int, count: int) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every table."""
    last, lengths = layers - 1, sorted({sample.length for sample in samples})
    longest, middle = lengths[-1], lengths[-2:][0]
    everywhere = [s for s in samples if s.length == longest and s.k.shape[1] > longest - few(count)]
    found: dict[str, list[dict[str, Any]]] = {"lengths": [], "depths": [], "bounds": []}
    for art in SETTINGS:
        for length in lengths:
            chosen = [s for s in samples if s.layer == last and s.length == length]
            row = {"setting": name_of(art), "tokens": length} | both_probes(chosen, art)
            found["lengths"].append(row | {"published": PUBLISHED_LENGTHS.get(length, "")})
        for theirs, published in PUBLISHED_DEPTHS.items():
            layer = depths(layers)[theirs]
            chosen = [s for s in samples if s.layer == layer and s.length == middle]
            row = {"setting": name_of(art), "layer": f"{layer} of {layers}, {middle} tokens"}
            row |= both_probes(chosen, art)
            found["depths"].append(row | {"published": f"layer {theirs} of 36: {published}"})
        found["bounds"].append({"setting": name_of(art)} | promises(everywhere, art))
    found["ablation"] = [
        {"setting": name_of(art), "what": what}
        | quality(
            everywhere, dataclasses.replace(art, patience=1) if "pat" in what else art, without
        )
        | {"published": PUBLISHED_ABLATION[what]}
        for art in SETTINGS
        for what, without in zip(PUBLISHED_ABLATION, ("", "scale", "direction", ""), strict=True)
    ]
    # One threshold at a time, about the paper's point and about one with which groups stop.
    found["sweeps"] = [
        {"about": f"tau={centre.change:g}", "option": option, "value": value}
        | quality(everywhere, dataclasses.replace(centre, **{FIELDS.get(option, option): value}))
        for centre in (SETTINGS[0], SETTINGS[-1])
        for option, values in SWEEPS.items()
        for value in values
    ]
    return found


TITLES = {
    "lengths": "The probe against the oracle, by length, last layer (Table 4 a)",
    "depths": "The probe against the oracle, by depth (Table 4 b)",
    "ablation": "What each criterion is for (Table 3: LongBench score, kernel time)",
    "sweeps": "Sensitivity (appendix F)",
    "bounds": "What Theorems 1 and 2 promise of the heads that stop",
}


def table(found: dict[str, list[dict[str, Any]]], about: str) -> str:
    """Return the tables as text; published figures are agree / FP / FN in per cent, and offset."""
    parts = [f"## ART's decisions\n\n{about}"]
    for key, title in TITLES.items():
        head = list(max(found[key], key=len))
        rows = [["" if row.get(name) is None else row[name] for name in head] for row in found[key]]
        parts.append(f"### {title}\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def main() -> int:
    """Capture, measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--text", default="wikitext2", help="wikitext2, or a file")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--tokens", type=int, default=89, help="tokens before each length")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=record.results(__file__))
    flags = parser.parse_args()
    lengths = (64, 128) if flags.quick else tuple(sorted(flags.lengths))
    config = Config.create(flags.model, dtype="float32", max_model_len=max(lengths))
    _, runner, tokenizer = load(config)
    tokens = tokenizer.encode(load_text(flags.text, flags.data_dir))
    count = 4 if flags.quick else flags.tokens
    samples = capture(runner, tokens, lengths, count)
    found = measure(samples, len(runner.decoder.config.layers), count)
    about = (
        f"{flags.model}, {flags.text}, float32: the {count} tokens before each of "
        f"{', '.join(map(str, lengths))}; in the last three tables, the {few(count)} before the "
        "last, of all layers."
    )
    text = table(found, about)
    record.write(flags.out, NAME, record.facts() | {"about": about, **found}, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
