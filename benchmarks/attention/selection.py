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
rows, too: techniques of the engine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import torch

from benchmarks.attention import quality_table
from benchmarks.attention.selectors import SELECTORS, Exact, Head, Selector
from benchmarks.harness import record, script, torch_device
from benchmarks.harness.tables import CellStore, markdown
from benchmarks.quant.quality import calibration_text
from suffice import native
from suffice.cache.growth import Upfront
from suffice.cache.kv import KVCache
from suffice.errors import InputError
from suffice.eval.perplexity import PerplexityPlan, PerplexityTally, windows_of
from suffice.eval.texts import described, load_text
from suffice.models.files import fingerprint, locate
from suffice.models.open import open_checkpoint
from suffice.models.quantize.torch_decoder import TorchDecoder
from suffice.models.quantize.torch_layers import visible
from suffice.models.tokenizer import load_tokenizer
from suffice.progress import counting_bar
from suffice.quant.none import NoQuant

NAME, COLUMN, MODEL = "selection", "decode", "smollm2-135m"
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
ENGINES = "quality_policies.json"  # results of the engine's techniques on such windows


class SelectingDecoder(TorchDecoder):
    """A decoder whose attention a selector can take over, in layers without a window.

    It adds up the bytes that these layers read.
    """

    selector: Selector | None = None
    channels: torch.Tensor | None = None  # [L, G, D], see `Head`
    spread: torch.Tensor | None = None  # [L, G, D]: sums of |q k|, if they are wanted
    read_bytes = held_bytes = 0.0

    def _mixed(self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        groups, tokens = len(k), q.shape[1]
        if self.spread is not None:
            sizes = q.abs().sum(1).view(groups, -1, q.shape[-1]).sum(1)
            self.spread[index] += sizes * k.abs().mean(1)
        if self.selector is None or self.config.layers[index].window:
            return super()._mixed(index, q, k, v)
        sees = visible(tokens, k.shape[1], None, q.device)
        of_groups = (q * self.config.attention_scale).view(groups, -1, *q.shape[1:])
        outputs = []
        assert self.channels is not None, "chosen before"
        for group, own in enumerate(of_groups):
            channels, seed = self.channels[index, group], index * groups + group
            head = Head(own, k[group], v[group], sees, channels, seed)
            found = self.selector.attend(head)
            outputs.append(found.output)
            self.read_bytes += float(found.bytes.sum())
            self.held_bytes += float(Exact().attend(head).bytes.sum())
        return torch.cat(outputs)


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

    def choose_channels(self, tokens: list[int]) -> None:
        """Order each key/value head's channels by their mean |q k| on a text."""
        config = self.decoder.config
        shape = len(config.layers), config.kv_heads, config.head_size
        self.decoder.spread = torch.zeros(shape, device=self.decoder.device)
        self.decoder.forward(torch.tensor(tokens), self._cache(len(tokens)), logits="none")
        self.decoder.channels = self.decoder.spread.argsort(-1, descending=True)
        self.decoder.spread = None

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

    def _cache(self, rows: int) -> KVCache:
        config = self.decoder.config
        shape = len(config.layers), config.kv_heads, config.head_size
        return KVCache(*shape, growth=Upfront(), limit=rows)

    def _run_exactly(self, tokens: list[int]) -> Window:
        cache = self._cache(len(tokens))
        self.decoder.forward(torch.tensor(tokens[: self.prompt]), cache, logits="none")
        return Window(tokens, cache, self._rest(tokens, cache))

    def _rest(self, tokens: list[int], cache: KVCache) -> torch.Tensor:
        """Return the logits of the tokens after the prompt; the cache is left as it was."""
        logits = self.decoder.forward(torch.tensor(tokens[self.prompt :]), cache, logits="all")
        assert logits is not None, "all were asked for"
        cache.truncate(self.prompt)
        return logits

    def _cell(self, selector: Selector, report: Callable[[], None]) -> dict[str, Any]:
        """Return a selector's cell; `report` is called after each window."""
        decoder, tally = self.decoder, PerplexityTally(len(self.windows))
        decoder.read_bytes = decoder.held_bytes = 0.0
        for number, window in enumerate(self._ready):
            decoder.selector = selector
            try:
                logits = self._rest(window.tokens, window.cache)
            finally:
                decoder.selector = None
            targets = window.tokens[self.prompt + 1 :]
            for at in range(0, len(targets), ROWS):
                rows = slice(at, min(at + ROWS, len(targets)))
                torch_device.compare(
                    tally, number, targets[rows], logits[rows], window.logits[rows]
                )
            report()
        against = tally.result().against
        assert against is not None, "it was compared"
        share = decoder.read_bytes / decoder.held_bytes
        own = {"bytes": share} | torch_device.of_cell(decoder.device)
        return own | dataclasses.asdict(against)


def of_engine(folder: Path, evaluated: dict[str, Any]) -> list[list[Any]]:
    """Return the rows of the engine's techniques on the same windows; none without results."""
    path = folder / ENGINES
    if not path.exists():
        return []
    data = json.loads(path.read_text())
    common = data["common"]
    if (common["window"], common["prompt"]) != (evaluated["window"], evaluated["prompt"]):
        return []
    rows = []
    for setting, found in data["records"].items():
        same = found["asked"]["text_sha256"] == evaluated["sha256"]
        if same and common["limit"] == evaluated["windows"]:
            against = found["result"]["against"]
            rows.append(shown(f"`{setting}` (engine)", quality_table.share(found), against))
    return rows


def shown(name: str, share: float, against: dict[str, Any]) -> list[Any]:
    """Return a row of the table."""
    return [
        name,
        share,
        quality_table.change_with_error(against),
        against["divergence"],
        against["divergence_999"],
        against["agreement"],
    ]


def table(store: CellStore) -> str:
    """Return the table of a result, by bytes read."""
    evaluated = store.config["evaluated"]
    rows = [
        shown(f"`{setting}`", cells[COLUMN]["bytes"], cells[COLUMN])
        for setting, cells in store.cells.items()
    ]
    rows += of_engine(store.folder, evaluated)
    head = ["setting", "bytes read", "perplexity", "KL mean", "KL 99.9 %", "same token"]
    about = (
        f"{store.config['model']['name']}, WikiText-2, {evaluated['windows']} windows of "
        f"{evaluated['window']} tokens; the first {evaluated['prompt']} are a prompt run by "
        "exact attention; keys and values in bfloat16. Bytes are over those that exact attention "
        "reads in layers without a window; what finds the rows is included. `oracle` finds them "
        "for nothing; `looks` is `tiers` as the reference of `key_looks`, of a cache in "
        f"planes.{torch_device.sentence(store.cells)}"
    )
    return f"## Selecting rows\n\n{about}\n\n{markdown(head, sorted(rows, key=lambda row: row[1]))}"


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
    path = locate(flags.model)
    plan = PerplexityPlan(flags.window, flags.limit, prompt=flags.prompt)
    text, (_, other) = load_text("wikitext2", flags.data_dir), calibration_text(flags)
    checkpoint, tokenizer = open_checkpoint(path), load_tokenizer(path)
    config = checkpoint.config
    if config.score_cap or config.spare_logits:
        raise InputError(f"{flags.model}: selectors know no score caps or spare logits")
    windows = windows_of(tokenizer, text, plan, config.longest_prompt)
    model = {"name": PurePath(flags.model).name, "hash": fingerprint(path)}
    evaluated = described("wikitext2", text, windows) | {"prompt": flags.prompt}
    shown, name = {"model": model, "evaluated": evaluated}, _name(model["name"], flags.window)
    store = CellStore(flags.out, name, shown, record.facts(), table)
    store.read()
    decoder = SelectingDecoder.from_checkpoint(checkpoint, NoQuant("float32"))
    decoder.device = device
    bench = Bench(decoder, windows, flags.prompt, store)
    bench.choose_channels(tokenizer.encode(other)[: min(LEARNING, flags.window)])
    return bench


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
