"""Time decode steps of a model of 7B's shape in 4-bit codes, and the streaming read.

    python -m benchmarks.quant.big_model                      LLaMA-2-7B's shape (minutes)
    python -m benchmarks.quant.big_model --shape mistral-7b   wider MLP, heads that share keys
    python -m benchmarks.quant.big_model --quick              a tiny shape, to see that it runs

The weights are random codes, made layer by layer, so the dense model never exists. Embedding and
head are int8, as the engine stores them next to codes. The engine's runner takes a short prompt,
then decodes. For greater depths the cache is filled with random keys and values.

In each round, every depth gets a streaming read followed by its steps, because a machine's speed
drifts; a fraction compares times of one round. The bytes of a step are those that the native step
counts: all codes and scales, the head, and keys and values. Codes and text are meaningless, but the
work is that of any weights.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import record, script
from benchmarks.harness.roofline import MARGIN, torch_read_bandwidth
from benchmarks.harness.tables import markdown
from suffice import native
from suffice.backends.cpu.linear import native_linear
from suffice.cache.kv import KVCache
from suffice.cli.answer import peak_memory_bytes
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.names import is_linear, shapes
from suffice.decoder.pages import to_huge_pages
from suffice.decoder.rotation import Rope
from suffice.decoder.weights import DecoderWeights
from suffice.engine.config import Config
from suffice.engine.runner import Runner
from suffice.engine.runner import Sequence as Request
from suffice.errors import InputError, unknown
from suffice.progress import counting_bar
from suffice.quant import QUANTS, PackedLinear, Quant
from suffice.quant.code_panels import spans
from suffice.quant.packed_codes import PackedCodes
from suffice.quant.sites import SITES, VOCABULARY
from suffice_hw.kllm.design import MODELS, Shape

NAME = "big_model"
SHAPES = {name: MODELS[name] for name in ("llama-2-7b", "mistral-7b")}
TINY = Shape("tiny", layers=2, width=64, hidden=96, heads=4, kv_heads=2, vocabulary=200)
SETTINGS = ("kmeans:act_bits=8", "kmeans:act_bits=8,group=none")
QUICK = record.BUILD / "big-model-quick"
CONTEXT = 4096
PROMPT = [1, 2, 3, 4]
READ_BYTES = 512 << 20
FILL = 256  # rows of the cache that are made at once
LEAST, MOST_GIB = 0.75, 8  # targets: fraction of the streaming read, and memory
PANEL = native.PANEL
RANDOM = np.random.default_rng(0)

Weights = dict[str, PackedLinear | np.ndarray]
HEAD = ["weights", "bits", "tokens before", "GB a step", "GB of K and V", "ms, best", "ms, median",
        "tokens/s", "GB/s", "streaming read, GB/s", "of it", "least to most"]  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The measurement: steps at each depth, in rounds with a read of the same number of bytes."""

    depths: Sequence[int]
    rounds: int
    steps: int
    read_bytes: int

    def __post_init__(self) -> None:
        if min(self.rounds, self.steps) < 1:
            raise InputError(
                f"--rounds={self.rounds}, --steps={self.steps}: both must be at least 1"
            )
        for depth in self.depths:
            if not 0 <= depth <= CONTEXT - self.steps - len(PROMPT):
                raise InputError(
                    f"--depths {depth}: must be from 0 to {CONTEXT - self.steps - len(PROMPT)}, "
                    f"so that {self.steps} steps fit into {CONTEXT} tokens"
                )


@dataclass
class Times:
    """Results of a setting's rounds at one depth: seconds of a step, and bytes read."""

    bytes_read: float
    kv_bytes_read: float
    seconds: list[float]  # of a step, the mean of a round
    roofs: list[float]  # bytes per second, just before these steps
    roofs_by_torch: list[float]

    @property
    def fractions(self) -> list[float]:
        """Fraction of the streaming read that the steps of each round reached."""
        pairs = zip(self.seconds, self.roofs, strict=True)
        return [self.bytes_read / seconds / roof for seconds, roof in pairs]


def shape_of(name: str) -> Shape:
    """Return a model's shape.

    Raises:
        InputError: Its codes would not fit into the memory limit, or the name is unknown.
    """
    if name not in SHAPES:
        raise unknown("shape", name, SHAPES)
    return SHAPES[name]


def decoder_config(shape: Shape) -> DecoderConfig:
    """Return the mechanisms of LLaMA 2, and of Mistral without a window, in this shape."""
    return DecoderConfig(
        vocab=shape.vocabulary,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        mlp_width=shape.hidden,
        layers=(LayerConfig(),) * shape.layers,
        norm="rms",
        norm_eps=1e-5,
        placement="pre",
        activation="silu",
        gated=True,
        attention_scale=shape.head_size**-0.5,
        trained_positions=CONTEXT,
        ropes=(Rope(),),
    )


@cache
def packed_rows(setting: str, matrix: str, columns: int) -> PackedCodes:
    """Return a panel of random weights [16, K], stored as a setting of `quant` stores a matrix.

    Raises:
        InputError: The setting is unknown, needs a calibration, or does not store codes.
    """
    quant: Quant = QUANTS.build(setting).for_matrix(matrix)
    packed = quant.pack(random_rows(PANEL, columns))
    if not isinstance(packed, PackedCodes):
        raise InputError(
            f"--settings {setting}: stores no codes; 4bit, int8, kmeans, rtn, kllm:act_bits=16 do"
        )
    try:
        native_linear(packed)  # the core checks that the parts fit
    except ValueError as error:
        raise InputError(f"--settings {setting}: {error}") from None
    return packed


def random_rows(rows: int, columns: int) -> np.ndarray:
    """Return a dense random weight [N, K]."""
    return RANDOM.standard_normal((rows, columns), np.float32) * np.float32(columns**-0.5)


def random_matrix(setting: str, matrix: str, rows: int, columns: int) -> PackedCodes:
    """Return random codes [N, K] with the centroids and scales that a setting finds.

    They are mapped memory: the system's allocator would keep much of what is freed.
    """
    like = packed_rows(setting, matrix, columns)
    panels, size = -(-rows // PANEL), like.data.shape[1]
    data = np.frombuffer(mmap.mmap(-1, panels * size), np.uint8).reshape(panels, size)
    for panel in data:  # no second copy
        panel[:] = np.frombuffer(RANDOM.bytes(size), np.uint8)
    for begin, _ in spans(like.layout, columns):
        scales = slice(begin, begin + like.layout.header_bytes)
        data[:, scales] = like.data[:, scales]
    return replace(like, data=data, rows=rows)


def random_weights(config: DecoderConfig, setting: str, tell: Callable[[], object]) -> Weights:
    """Return the weights of a decoder; only embedding and head ever exist in dense form.

    These come first, one after the other, before anything else is allocated.
    """
    wanted, quant = shapes(config), QUANTS.build(setting)
    weights: Weights = {}
    for name in sorted(wanted, key=lambda name: name not in VOCABULARY):
        shape = wanted[name]
        if name in VOCABULARY:
            weights[name] = quant.for_matrix(name).pack(random_rows(*shape))
        elif is_linear(name):
            weights[name] = random_matrix(setting, name.rpartition(".")[2], *shape)
        else:
            weights[name] = np.ones(shape, np.float32)
        tell()
    to_huge_pages(weights)
    return weights


def made(shape: Shape, setting: str, tell: Callable[[], object]) -> Runner:
    """Return the engine's runner of a random model, with keys and values in int8."""
    model = decoder_config(shape)
    config = Config.create(
        shape.name, quantization=setting, kv_cache_dtype="int8", max_model_len=CONTEXT
    ).resolved("bfloat16", model.max_positions, model.most_positions)
    weights = random_weights(model, setting, tell)
    return Runner(config, DecoderWeights(model, weights))


def opened(runner: Runner, depth: int, steps: int) -> Request:
    """Return a request whose cache holds `depth` tokens, or the prompt if that is longer."""
    request = runner.open(f"depth {depth}", max(depth, len(PROMPT)) + steps)
    runner.prefill(request, [token % runner.vocabulary for token in PROMPT])
    fill(request.cache, depth - request.cache.length, runner.decoder.config.head_size)
    request.cache.reserve(steps)
    return request


def fill(cache: KVCache, rows: int, head_size: int) -> None:
    """Append rows of random keys and values."""
    cache.reserve(max(rows, 0))
    for start in range(0, rows, FILL):
        count = min(FILL, rows - start)
        shape = 2, cache.heads(0), count, head_size
        keys, values = RANDOM.standard_normal(shape, np.float32)
        for layer in range(cache.layers):
            cache.append(layer, keys, values)
        cache.advance(count)


def decode(runner: Runner, request: Request, steps: int) -> float:
    """Return the mean seconds of greedy steps, which are then removed from the cache."""
    length, token = request.cache.length, PROMPT[-1] % runner.vocabulary
    began = time.perf_counter()
    for _ in range(steps):
        runner.reserve(request)
        token = int(runner.step([request], [token])[0].argmax())
    seconds = (time.perf_counter() - began) / steps
    request.cache.truncate(length)
    return seconds


def measure(runner: Runner, plan: Plan, tell: Callable[[], object]) -> dict[int, Times]:
    """Return the results at each depth; the first round does not count."""
    requests = {depth: opened(runner, depth, plan.steps) for depth in plan.depths}
    found = {depth: Times(0.0, 0.0, [], [], []) for depth in requests}
    for number in range(plan.rounds + 1):
        for depth, request in requests.items():
            roof = native.read_bandwidth(plan.read_bytes, native.threads(), 3)
            check = torch_read_bandwidth(plan.read_bytes)
            before = runner.trace.copy()
            seconds = decode(runner, request, plan.steps)
            read, times = runner.trace.since(before), found[depth]
            times.kv_bytes_read = read.kv_bytes_read / plan.steps
            times.bytes_read = read.weight_bytes_read / plan.steps + times.kv_bytes_read
            if number:
                times.seconds.append(seconds)
                times.roofs.append(roof)
                times.roofs_by_torch.append(check)
        tell()
    for request in requests.values():
        runner.close(request)
    return found


def bits_of(runner: Runner) -> float:
    """Return the bits of a weight of the layers, scales included."""
    items = runner.decoder.weights.items()
    packed = [w for name, w in items if isinstance(w, PackedLinear) and name not in VOCABULARY]
    return 8 * sum(w.bytes for w in packed) / sum(w.rows * w.columns for w in packed)


def row(setting: str, bits: float, depth: int, times: Times) -> list[Any]:
    """Return a line of the table."""
    seconds, fractions = statistics.median(times.seconds), times.fractions
    return [
        f"`{setting}`",
        bits,
        max(depth, len(PROMPT)),
        times.bytes_read / 1e9,
        times.kv_bytes_read / 1e9,
        1000 * min(times.seconds),
        1000 * seconds,
        1 / seconds,
        times.bytes_read / seconds / 1e9,
        statistics.median(times.roofs) / 1e9,
        statistics.median(fractions),
        f"{min(fractions):.3g} to {max(fractions):.3g}",
    ]


def bars(found: dict[str, dict[int, Times]], peak: int) -> list[list[Any]]:
    """Return the targets with the measured values."""
    lines: list[list[Any]] = []
    for setting, by_depth in found.items():
        depth, times = next(iter(by_depth.items()))
        value = statistics.median(times.fractions)
        ratios = zip(times.roofs_by_torch, times.roofs, strict=True)
        reached = "yes" if value >= LEAST else "no"
        if statistics.median(torch / own for torch, own in ratios) > MARGIN:
            reached = "unknown: torch reads faster than this roof"
        what = f"`{setting}`, {max(depth, len(PROMPT))} tokens before: of the streaming read"
        lines.append([what, f"at least {LEAST}", value, reached])
    gib = peak / 2**30
    what = "most memory resident, weights being made included, GiB"
    return [*lines, [what, f"at most {MOST_GIB}", gib, "yes" if gib <= MOST_GIB else "no"]]


def table(shape: Shape, plan: Plan, lines: list[list[Any]], reached: list[list[Any]]) -> str:
    """Return the results as text and tables."""
    about = (
        f"{shape.layers} layers of width {shape.width}, MLP {shape.hidden}, {shape.heads}/"
        f"{shape.kv_heads} heads of {shape.head_size}, {shape.vocabulary} tokens; random 4-bit "
        f"codes, int8 head, keys and values. {native.threads()} threads, {native.isa()}; "
        f"{plan.rounds} rounds of {plan.steps} greedy steps, each after a streaming read of "
        f"{plan.read_bytes >> 20} MiB. The head counts as read, the embedding but for a row not."
    )
    quick = ["**A quick run of a tiny shape: no figure means anything.**"] * (shape is TINY)
    tables = [
        markdown(["what", "to reach", "measured", "reached"], reached),
        markdown(HEAD, lines),
    ]
    return "\n\n".join([f"## Decoding in the shape of {shape.name}", *quick, about, *tables])


def run(shape: Shape, settings: Sequence[str], plan: Plan, folder: Path) -> str:
    """Measure every setting, one model after the other, write the result and return its table.

    Raises:
        InputError: A setting that cannot be used.
    """
    for setting in settings:
        for matrices in SITES.values():
            packed_rows(setting, matrices[0], shape.width)
    lines: list[list[Any]] = []
    found: dict[str, dict[int, Times]] = {}
    peaks = {}
    with counting_bar() as bar:
        for setting in settings:
            total = len(shapes(decoder_config(shape))) + plan.rounds + 1
            task = bar.add_task(setting, total=total)
            tell = partial(bar.advance, task)
            runner = made(shape, setting, tell)
            bits = bits_of(runner)
            found[setting] = measure(runner, plan, tell)
            lines += [row(setting, bits, depth, each) for depth, each in found[setting].items()]
            peaks[setting] = peak_memory_bytes()
            del runner  # frees it before the next model is made
            gc.collect()
    text = table(shape, plan, lines, bars(found, max(peaks.values())))
    data = record.facts() | {
        "shape": asdict(shape),
        "plan": asdict(plan),
        "threads": native.threads(),
        "peak_bytes": peaks,  # of the process, up to the end of a setting
        "lines": [dict(zip(HEAD, line, strict=True)) for line in lines],
        "times": {
            setting: {depth: asdict(times) for depth, times in by_depth.items()}
            for setting, by_depth in found.items()
        },
    }
    record.write(folder, f"{NAME}_{shape.name}", data, text)
    return text


def main() -> int:
    """Measure the given settings, print the tables and store them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", default="llama-2-7b", help=f"one of {', '.join(SHAPES)}")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--depths", nargs="+", type=int, default=[0, 1024])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="of a round, at each depth")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, into build/")
    parser.add_argument("--out", type=Path, help="folder for the results")
    flags = parser.parse_args()
    if flags.quick:
        flags.depths, flags.rounds, flags.steps = [0, 40], 2, 2
    native.set_threads(native.cores())
    torch.set_num_threads(native.cores())  # of the read that checks ours
    folder = flags.out or (QUICK if flags.quick else record.results(__file__))
    read_bytes = READ_BYTES // 64 if flags.quick else READ_BYTES

    def result() -> str:
        shape = TINY if flags.quick else shape_of(flags.shape)
        plan = Plan(flags.depths, flags.rounds, flags.steps, read_bytes)
        return run(shape, flags.settings, plan, folder)

    return script.printed(NAME, result)


if __name__ == "__main__":
    sys.exit(main())
