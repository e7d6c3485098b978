"""Quality and bytes of ways to select keys and values, at the end of windows of WikiText-2.

    python -m benchmarks.attention.selection --data-dir DIR          SmolLM2, an hour on a core
    ... --settings twilight:mass=0.9 "sparq:rows=0.2,channels=0.25"  only these
    ... --model gemma3-270m --window 32768 --prompt 32512 --limit 1  Gemma 3, of its global layers
    ... --device cuda                                                on a GPU, in float32
    ... --quick                                                      tiny sizes, into build/

The first tokens of a window are a prompt, which exact attention runs once for all. The tokens after
it attend by a selector (see `selectors`) in every layer, and are compared with exact attention to
the same rows. Tokens of a window are computed together: what each selects depends on no later one.
Bytes are over those of exact attention. Channels of `double_sparsity` are chosen on Spec-Bench's
longer prompts. Where the results of `quality --prompt` are of the same windows, the table has their
rows, too: techniques of the engine. It has the scores of `selector_ruler` and `ruler`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention.selecting import SelectingDecoder, opened
from benchmarks.attention.selection_table import COLUMN, table
from benchmarks.attention.selectors import SELECTORS, Selector
from benchmarks.harness import record, script, torch_device
from benchmarks.harness.tables import CellStore
from benchmarks.quant.quality import calibration_text
from suffice import native
from suffice.cache.kv import KVCache
from suffice.eval.perplexity import PerplexityPlan, PerplexityTally, windows_of
from suffice.eval.texts import described, load_text
from suffice.progress import counting_bar

NAME, MODEL = "selection", "smollm2-135m"
WINDOW, PROMPT, LIMIT = 2048, 1536, 8
LEARNING = 1024  # tokens on which channels are chosen
ROWS = 128  # of logits that are compared at a time
SETTINGS = (
    "oracle:mass=0.9",
    "oracle:mass=0.98",
    "twilight:mass=0.9",
    "twilight:mass=0.98",
    "double_sparsity:rows=0.1",
    "double_sparsity:rows=0.25",
    "sparq:rows=0.1",
    "sparq:rows=0.25",
    "magicpig:bits=10,tables=150",
    "magicpig:bits=8,tables=75",
    "vattention:eps=0.1",
    "vattention:eps=0.05",
    "looks",
    "looks:look=nested",
    "looks:look=boxes",
)


@dataclass
class Window:
    """A window's tokens, the cache of its prompt, and exact attention's logits of the rest."""

    tokens: list[int]
    cache: KVCache
    logits: torch.Tensor


@dataclass
class Bench:
    """A model, its windows, and where results are stored."""

    decoder: SelectingDecoder
    windows: list[list[int]]
    prompt: int
    store: CellStore
    _ready: list[Window] = field(default_factory=list)

    def measure(self, settings: list[str]) -> None:
        """Measure the settings without a result, and store each."""
        missing = [each for each in settings if each not in self.store.cells]
        if not missing:
            return
        with counting_bar() as bar:
            line = bar.add_task("exact", total=len(self.windows))
            for tokens in self.windows:
                self._ready.append(self._run_exactly(tokens))
                bar.update(line, advance=1)
            for setting in missing:
                line = bar.add_task(setting, total=len(self.windows))
                cell = self._cell(SELECTORS.build(setting), partial(bar.update, line, advance=1))
                self.store.keep(setting, COLUMN, cell)

    def _run_exactly(self, tokens: list[int]) -> Window:
        cache = self.decoder.cache(len(tokens))
        prompt, rest = tokens[: self.prompt], tokens[self.prompt :]
        self.decoder.forward(torch.tensor(prompt), cache, logits="none")
        logits = self.decoder.forward(torch.tensor(rest), cache, logits="all")
        assert logits is not None, "all were asked for"
        return Window(tokens, cache, logits)

    def _cell(self, selector: Selector, report: Callable[[], None]) -> dict[str, Any]:
        """Return a selector's cell; `report` is called after each window."""
        decoder, tally = self.decoder, PerplexityTally(len(self.windows))
        read = held = 0.0
        for number, window in enumerate(self._ready):
            window.cache.truncate(self.prompt)
            found = decoder.select(window.tokens[self.prompt :], window.cache, selector)
            read, held = read + float(found.read.sum()), held + float(found.held.sum())
            targets = window.tokens[self.prompt + 1 :]
            for at in range(0, len(targets), ROWS):
                rows = slice(at, min(at + ROWS, len(targets)))
                torch_device.compare(
                    tally, number, targets[rows], found.logits[rows], window.logits[rows]
                )
            report()
        against = tally.result().against
        assert against is not None, "it was compared"
        own = {"bytes": read / held} | torch_device.of_cell(decoder.device)
        return own | dataclasses.asdict(against)


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt and Spec-Bench")
    parser.add_argument("--calibrate", help="text file to choose channels on, not Spec-Bench")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--prompt", type=int, default=PROMPT)
    parser.add_argument("--limit", type=int, default=LIMIT, help="windows")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--threads", type=int, default=native.cores())
    torch_device.add_option(parser)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.quick:
        flags.window, flags.prompt, flags.limit = 64, 32, 1
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    return flags


def prepared(flags: argparse.Namespace) -> Bench:
    """Return the model and the windows, with the stored results.

    Raises:
        InputError: A model, text, setting or number that cannot be used.
    """
    for setting in flags.settings:
        SELECTORS.build(setting)
    device = torch_device.chosen(flags.device)
    plan = PerplexityPlan(flags.window, flags.limit, prompt=flags.prompt)
    text, (_, other) = load_text("wikitext2", flags.data_dir), calibration_text(flags)
    decoder, tokenizer, model = opened(flags.model, device)
    windows = windows_of(tokenizer, text, plan, decoder.config.longest_text)
    evaluated = described("wikitext2", text, windows) | {"prompt": flags.prompt}
    shown, name = {"model": model, "evaluated": evaluated}, _name(model["name"], flags.window)
    store = CellStore(flags.out, name, shown, record.facts(), table)
    store.read()
    decoder.choose_channels(tokenizer.encode(other)[: min(LEARNING, flags.window)])
    return Bench(decoder, windows, flags.prompt, store)


def _name(model: str, window: int) -> str:
    parts = [
        NAME,
        *([model] if model != MODEL else []),
        *([str(window)] if window != WINDOW else []),
    ]
    return "_".join(parts)


def measured(flags: argparse.Namespace) -> CellStore:
    """Measure settings without a result, and store them.

    Raises:
        InputError: A model, text, setting or number that cannot be used.
    """
    torch_device.use_threads(flags.threads)
    bench = prepared(flags)
    with torch.no_grad():
        bench.measure(flags.settings)
    bench.store.write()
    return bench.store


def main() -> int:
    """Measure, store and print."""
    return script.printed(NAME, lambda: table(measured(options())))


if __name__ == "__main__":
    sys.exit(main())
