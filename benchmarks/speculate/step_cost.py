"""Times the parts of a decode step with several rows of one request, for speed.py --rows.

Every round runs steps of all sizes, each with and without the head and with and without a context,
so that other load affects all alike; the minimum over rounds counts. The head's time is the
difference with and without it, attention's the difference with and without the context, and the
rest is the layers'. The layers' matmuls are also timed alone, called from Python one by one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.harness.tables import markdown
from suffice.backends.cpu.linear import native_linear
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.engine.runner import Runner
from suffice.progress import counting_bar
from suffice.quant import PackedLinear

ROWS = (1, 2, 4, 8, 16)
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}
Times = dict[str, dict[int, float]]  # seconds of each part, by rows
_PARTS = ("attention", "head", "layers", "products")


def measured(
    runner: Runner, depth: int, sizes: Sequence[int], rounds: int, clock: Callable[[], float]
) -> Times:
    """Return the minimum seconds of steps and their parts, by size, after `depth` tokens."""
    config = runner.config
    native = NativeModel(
        runner.decoder,
        depth + max(sizes),
        config.rules(len(runner.decoder.config.layers), runner.decoder.config.kv_heads),
    )
    sequences = {at: runner.open("rows", depth + max(sizes)) for at in dict.fromkeys((depth, 1))}
    for at, sequence in sequences.items():
        runner.prefill(sequence, _tokens(runner, at))
        sequence.cache.reserve(max(sizes))
    found: dict[tuple[str, int], list[float]] = {}
    with counting_bar() as bar:
        for _ in bar.track(range(rounds), description=f"depth {depth}"):
            for rows in sizes:
                for name, at, outputs in (
                    ("step", depth, None),
                    ("headless", depth, 0),
                    ("shallow", 1, 0),
                ):
                    cache, tokens = sequences[at].cache, _tokens(runner, rows)
                    began = clock()
                    native.step([StepRows(cache, tokens, outputs=outputs)])
                    found.setdefault((name, rows), []).append(clock() - began)
                    cache.truncate(cache.length)
                found.setdefault(("products", rows), []).append(_products(runner, rows, clock))
    for sequence in sequences.values():
        runner.close(sequence)
    return _parts({key: min(seconds) for key, seconds in found.items()}, sizes)


def _parts(least: dict[tuple[str, int], float], sizes: Sequence[int]) -> Times:
    return {
        "step": {rows: least["step", rows] for rows in sizes},
        "attention": {rows: least["headless", rows] - least["shallow", rows] for rows in sizes},
        "head": {rows: least["step", rows] - least["headless", rows] for rows in sizes},
        "layers": {rows: least["shallow", rows] for rows in sizes},
        "products": {rows: least["products", rows] for rows in sizes},
    }


def _tokens(runner: Runner, count: int) -> list[int]:
    return [at * 7919 % runner.vocabulary for at in range(count)]


def _products(runner: Runner, rows: int, clock: Callable[[], float]) -> float:
    """Return the seconds of the matmuls of all layers with `rows` rows of inputs."""
    inputs: dict[int, np.ndarray] = {}
    outputs: dict[int, np.ndarray] = {}
    seconds = 0.0
    for name, weight in runner.decoder.weights.items():
        if not isinstance(weight, PackedLinear) or not name.startswith("layers."):
            continue
        if weight.columns not in inputs:
            noise = np.random.default_rng(0).standard_normal((rows, weight.columns))
            inputs[weight.columns] = noise.astype(np.float32)
        y = outputs.setdefault(weight.rows, np.empty((rows, -(-weight.rows // 16) * 16), "f4"))
        began = clock()
        native_linear(weight)(inputs[weight.columns], y)
        seconds += clock() - began
    return seconds


def table(times: dict[str, Times]) -> str:
    """Return milliseconds of steps and their parts, and a step's as a multiple of one row's."""
    head = ["weights, depth", "rows", "step", "over one row", *_PARTS]
    body = [
        [
            setting,
            rows,
            1e3 * each["step"][rows],
            each["step"][rows] / each["step"][min(each["step"])],
            *(1e3 * each[part][rows] for part in _PARTS),
        ]
        for setting, each in times.items()
        for rows in each["step"]
    ]
    note = (
        "Milliseconds, the least of all rounds. Layers are the step without attention and head; "
        "their products were also timed alone."
    )
    return "\n\n".join([note, markdown(head, body)])


def plain(times: dict[str, Times]) -> dict[str, Any]:
    """Return the seconds with keys for JSON."""
    return {
        setting: {
            part: {str(rows): seconds for rows, seconds in by_rows.items()}
            for part, by_rows in each.items()
        }
        for setting, each in times.items()
    }


def settings(weights: Sequence[str], depths: Sequence[int]) -> list[tuple[str, int]]:
    """Return the measured combinations of weights and depth."""
    return list(itertools.product(weights, depths))
