"""The loss of quality with few bits: weights and activations in codes, on WikiText-2.

    python -m benchmarks.quant.quality --data-dir DIR --cache FOLDER      SmolLM2, hours
    ... --model gemma3-270m
    ... --window 2048 --limit 5                                           longer windows
    ... --settings kmeans "kllm:act_bits=16 + a=4,outliers=0.01"          only these
    ... --device cuda                                                     on a GPU, in float32
    python -m benchmarks.quant.quality --quick --data-dir DIR             a few cells, into build/

A setting is weights + inputs of their matmuls: `kllm:act_bits=16 + a=4,outliers=0.01` has weights
of the preset kllm, and 4-bit inputs except for 1 % outliers, half of them at each end. With
`group=64`, 64 of a token's inputs share a scale instead of all. `sites=` selects the activations
that are rounded, by default the inputs of all matrices (see `sites`). ` uncalibrated` after the
weights quantizes them without a text; `llama.cpp:Q4_0` and `hqq:group=64` are files of
`quantize_peers` in --cache. `smoothquant`, `quarot`, `atom` and `squeezellm` are references (see
`rivals`), whose inputs of a=4 or 3 bits are rounded in their own way. `fisher=true` weighs the
K-means of inputs. Weights are quantized once, with exact inputs, and stored in the folder
--cache. Codebooks of inputs are learned on the activations that these weights give on the
calibration text. That text is Spec-Bench's longer prompts, or a file (--calibrate), never the
evaluated text. Cells are stored as soon as they are done.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from benchmarks.harness import record, script, torch_device
from benchmarks.harness.tables import CellStore
from benchmarks.quant.cells import FLOAT, Source, cell_of, parsed, scored
from benchmarks.quant.quality_table import table
from benchmarks.quant.rivals import RivalDecoder
from benchmarks.quant.sites import Coder, Inputs, Rounding, check_sites, even, learned, run
from suffice.checkpoints.files import fingerprint, locate
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError
from suffice.eval.perplexity import PerplexityPlan, windows_of
from suffice.eval.texts import described, json_value, load_text, read
from suffice.progress import counting_bar
from suffice.quant.kmeans import EXACT
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.text.tokenizer import load_tokenizer

NAME = "quality"
PROMPTS, LONG = "spec-bench-questions.jsonl", ("rag", "summarization")  # file, categories
CALIBRATION = PerplexityPlan(1024, 16)  # windows of the calibration of weights
LEARNING = 4  # of them, for learning codebooks of inputs
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1)  # Table IV
PRESET, BEST = "kllm:act_bits=16", "kmeans"
GROUPED = 64  # inputs that share a scale, where a token has several
SITES = (
    *("qkv", "o", "gate_up", "down", "mlp", "queries", "keys", "values"),
    *("values+scores", "linear+mlp", "attention", "all"),
)
SETTINGS = (
    "none",
    BEST,
    PRESET,
    "rtn:group=64 uncalibrated",
    "rtn:group=64,compensate=true",
    f"{PRESET} + a=4,outliers=0.01",
    f"{BEST} + a=8",
    f"{BEST} + a=8,outliers=0.01",
    "none + a=8",
    "none + a=8,outliers=0.01",
    "kmeans:hadamard=false",
    "kmeans:hadamard=false + a=4,outliers=0.01",
    "kmeans:hadamard=false + a=4,outliers=0.05",
    "kmeans:hadamard=false + a=3,outliers=0.01",
    "kmeans:hadamard=false + a=3,outliers=0.05",
    f"{PRESET} + a=3,outliers=0.01",
    "rtn uncalibrated + a=4,even=true",
    "rtn uncalibrated + a=3,even=true",
    f"{PRESET} uncalibrated + a=3,outliers=0.01,offline=true",
    "kmeans:group=none",
    "llama.cpp:Q4_0",
    "llama.cpp:IQ4_NL",
    "llama.cpp:Q4_K_S",
    *(f"kmeans:bits={w}" for w in (2, 3, 5, 6)),
    "llama.cpp:Q5_K_S",
    "llama.cpp:Q6_K",
    "hqq:group=32",
    "hqq:group=64",
    *(f"{PRESET} + a={a}" for a in (4, 3)),
    *(f"{PRESET} + a={a},outliers={share}" for a in (4, 3) for share in SHARES),
    *(f"{PRESET} + a={a},outliers={share},offline=true" for a in (4, 3) for share in SHARES),
    *(f"kmeans:hadamard=false + a={a},outliers={share}" for a in (4, 3) for share in SHARES),
    f"{BEST} + a=4,outliers=0.01",
    f"{BEST} + a=3,outliers=0.01",
    *(
        f"{weights} + a={a},outliers=0.01,group={GROUPED}"
        for weights in ("none", PRESET, "kmeans:hadamard=false", BEST)
        for a in (4, 3)
    ),
    *(f"{PRESET} + a={a},outliers=0.01,fisher=true" for a in (4, 3)),
    f"{PRESET} + a=3,outliers=0.01,offline=true,fisher=true",
    *(f"{rival} + a={a}" for rival in ("smoothquant", "quarot", "atom") for a in (4, 3)),
    "squeezellm",
    "none + a=4,outliers=0.01",
    "none + a=3,outliers=0.01",
    *(f"none + a=4,outliers=0.01,sites={sites}" for sites in SITES),
    "none + a=8,sites=scores",
    "kllm",  # with the codebooks that `suffice quantize` learns
    "kllm:act_bits=3",
    *(f"{weights} + a=4,outliers=0.01,sites=all" for weights in (PRESET, "kmeans:hadamard=false")),
    f"kmeans:hadamard=false + a=4,outliers=0.01,group={GROUPED},sites=all",
    "kmeans:hadamard=false + a=8,sites=all",
)


def calibration_text(flags: argparse.Namespace) -> tuple[str, str]:
    """Return the name of the calibration text, and the text.

    Raises:
        InputError: There is none.
    """
    if flags.calibrate:
        return flags.calibrate, load_text(flags.calibrate)
    path = Path(flags.data_dir or ".") / PROMPTS
    if not path.is_file():
        raise InputError(f"{path} does not exist: give a text to calibrate on with --calibrate")
    lines = enumerate(read(path).splitlines(), 1)
    rows = [json_value(f"{path}, line {number}", line) for number, line in lines if line.strip()]
    long = ["\n\n".join(row["turns"]) for row in rows if row["category"] in LONG]
    return PROMPTS, "\n\n".join(long)


def spread(windows: list[list[int]], limit: int) -> list[list[int]]:
    """Return at most `limit` of the windows, evenly spread over the text."""
    count = min(limit, len(windows))
    return [windows[i * len(windows) // count] for i in range(count)]


class Bench:
    """Measures the cells that a store lacks."""

    def __init__(self, source: Source, windows: list[list[int]], store: CellStore) -> None:
        self._source, self._windows, self._store = source, windows, store
        self._reference: Rounding | None = None

    def measure(self, settings: list[str]) -> None:
        """Measure settings, those with the same weights one after the other."""
        asked: dict[str, dict[str, Inputs]] = {}
        for setting in settings:
            weights, inputs = parsed(setting)
            if setting not in self._store.cells.get(weights, {}):
                asked.setdefault(weights, {})[setting] = inputs
        for weights, missing in asked.items():
            try:
                decoder = self._shown(f"{weights}: weights", self._source.weights(weights))
            except InputError as error:
                self._store.refused[weights] = str(error)
                continue
            sites = self._sites(weights, decoder, missing)
            for setting, inputs in missing.items():
                if setting == FLOAT:
                    ours = self._exact()
                else:
                    ours = self._shown(setting, run(decoder, self._windows, sites[inputs]))
                self._store.keep(weights, setting, self._cell(setting, decoder, ours))

    def _sites(
        self, weights: str, decoder: TorchDecoder, missing: dict[str, Inputs]
    ) -> Mapping[Inputs, Mapping[str, Coder]]:
        """Return the sites of every layer for each of the inputs."""
        if isinstance(decoder, RivalDecoder):
            return {
                each: {} if each.a == EXACT else decoder.sites(each.a) for each in missing.values()
            }
        layers = len(decoder.config.layers)
        found = {each: even(each, layers) for each in missing.values() if not each.learned}
        wanted = [each for each in missing.values() if each.learned]
        if wanted:
            windows = self._source.calibration[:LEARNING]
            found |= self._shown(f"{weights}: levels", learned(decoder, windows, wanted))
        return found

    def _exact(self) -> Rounding:
        """Run the unquantized model once; every cell is compared with it."""
        if self._reference is None:
            floats = self._source.floats()
            self._reference = self._shown(FLOAT, run(floats, self._windows, {}))
        return self._reference

    def _cell(self, setting: str, decoder: TorchDecoder, ours: Rounding) -> dict[str, Any]:
        steps = scored(ours, self._exact(), self._windows)
        tally = self._shown(f"{setting}: windows", steps, len(self._windows))
        weights = setting.partition(" + ")[0]
        found = cell_of(tally.result(), self._source.bits(weights, decoder))
        return found | torch_device.of_cell(self._source.device)

    def _shown(self, what: str, steps: Iterator[Any], total: int | None = None) -> Any:
        """Run steps, one per layer if `total` is not given; return the result of the last one."""
        found = None
        with counting_bar() as bar:
            line = bar.add_task(what, total=total or len(self._source.checkpoint.config.layers))
            for step in steps:
                found = step
                bar.update(line, advance=1)
        return found


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help=f"folder with wikitext2-test-raw.txt and {PROMPTS}")
    parser.add_argument("--calibrate", help="text file to calibrate on, instead of Spec-Bench")
    parser.add_argument("--cache", type=Path, default=Path("build/quantized"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--limit", type=int, default=10, help="windows, evenly spread")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--threads", type=int)
    torch_device.add_option(parser)
    parser.add_argument("--quick", action="store_true", help="a few cells, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.quick:
        flags.window, flags.limit = 64, 2
        flags.settings = [*SETTINGS[:3], f"{PRESET} + a=4,outliers=0.05"]
    flags.out = flags.out or (Path("build") if flags.quick else record.results(__file__))
    return flags


def prepared(flags: argparse.Namespace) -> tuple[Source, list[list[int]], CellStore]:
    """Return the model, the windows of the text and the stored cells.

    Raises:
        InputError: A model, text, setting or number that cannot be used.
    """
    for setting in flags.settings:
        parsed(setting)
    if flags.limit < 1:
        raise InputError(f"--limit={flags.limit}: must be at least 1 window")
    device = torch_device.chosen(flags.device)
    path, plan = locate(flags.model), PerplexityPlan(flags.window)
    text, (name, other) = load_text("wikitext2", flags.data_dir), calibration_text(flags)
    checkpoint, tokenizer = open_checkpoint(path), load_tokenizer(path)
    for setting in flags.settings:
        check_sites(parsed(setting)[1], checkpoint.config)
    context = checkpoint.config.longest_text
    windows = spread(windows_of(tokenizer, text, plan, context), flags.limit)
    calibration = PerplexityPlan(min(CALIBRATION.window, context), CALIBRATION.limit)
    learning = windows_of(tokenizer, other, calibration, context)
    model = {"name": PurePath(flags.model).name, "hash": fingerprint(path)}
    facts = {"model": model, "text": described(name, other, learning)}
    evaluated = described("wikitext2", text, windows)
    shown = {"model": model, "evaluated": evaluated, "calibrated": facts["text"]}
    result = f"{NAME}_{model['name']}_{flags.window}"
    store = CellStore(flags.out, result, shown, record.facts(), table)
    store.read()
    source = Source(checkpoint, tokenizer, learning, facts, flags.cache, device)
    return source, windows, store


def measured(flags: argparse.Namespace) -> CellStore:
    """Measure settings without a result, storing each cell as it is done.

    Raises:
        InputError: A model, text, setting or number that cannot be used.
    """
    torch_device.use_threads(flags.threads)
    source, windows, store = prepared(flags)
    Bench(source, windows, store).measure(flags.settings)
    store.write()
    return store


def main() -> int:
    """Measure, store and print."""
    return script.printed(NAME, lambda: table(measured(options())))


if __name__ == "__main__":
    sys.exit(main())
