"""Time drafts of several requests at once, and how much of the time goes into making them.

    python -m benchmarks.speculate.batches --data-dir DIR --settings eagle3:model=FOLDER
    ... --sizes 1 8 --categories qa humaneval --limit 8          these alone
    ... --quick                                                  tiny sizes, into build/

The prompts of a category are decoded, as many at once as a size says: the next begins where one
ends. They are decoded without drafts and by each setting, one after the other, and again in the
opposite order. Times include prompts; on a shared machine, `--clock cpu --threads 1` counts
processor time, for the engine's budget too. Each cell is stored as soon as it is measured; it is
measured again if more prompts are asked for. The benchmark fails if greedy tokens differ from those
without drafts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.tables import Cell, CellStore, markdown
from benchmarks.speculate.cells import Clock, Question, parsed
from benchmarks.speculate.speed import (
    PLAIN,
    check_prompts,
    check_sizes,
    missing,
    named,
    of_prompts,
    prompts_of,
    shown_of,
    wanted,
)
from benchmarks.speculate.step_cost import CLOCKS
from suffice import LLM, SamplingParams
from suffice.decoder.shelf import Shelf
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.loop import Loop
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.speculate import DraftingSample, Tree, Widths

NAME = "batches"


class Timed:
    """A proposer whose seconds are summed, of an engine that goes by the same clock."""

    def __init__(self, llm: LLM, clock: Clock) -> None:
        assert isinstance(llm.runner, Runner)
        self._own = llm.runner.proposer
        self.clock = clock
        self.seconds = 0.0
        llm.runner.proposer = self
        context = llm.config.max_model_len
        assert context is not None, "an engine's config is resolved"
        llm.loop = Loop(
            llm.runner,
            llm.tokenizer,
            llm.budget,
            max_num_seqs=llm.config.max_num_seqs,
            max_model_len=context,
            step_seconds=None,
            clock=clock,
        )

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        """Return the proposer's drafts."""
        began = self.clock()
        found = self._own.propose(samples, shapes)
        self.seconds += self.clock() - began
        return found

    def forget(self, sample: DraftingSample) -> None:
        """Pass it on."""
        self._own.forget(sample)


def decoded(
    llm: LLM, timed: Timed, asked: Sequence[Question], temperature: float, most: int
) -> tuple[list[tuple[int, ...]], dict[str, float]]:
    """Decode prompts; return the texts and sums. Requests that sample have no seeds."""
    params = SamplingParams(temperature=temperature, max_tokens=most)
    before, began = timed.seconds, timed.clock()
    outputs = llm.generate([question.tokens for question in asked], params, use_tqdm=False)
    seconds = timed.clock() - began
    return [each.outputs[0].token_ids for each in outputs], {
        "tokens": sum(len(each.outputs[0].token_ids) for each in outputs),
        "seconds": seconds,
        "drafting": timed.seconds - before,
        "steps": sum(each.speculation.steps for each in outputs),
        "accepted": sum(each.speculation.num_accepted_tokens for each in outputs),
    }


def measured(
    llms: dict[str, tuple[LLM, Timed]], asked: Sequence[Question], at: float, most: int
) -> dict[str, Cell]:
    """Return each setting's cell of prompts at a temperature."""
    cells: dict[str, Cell] = {name: {"prompts": len(asked), "same": len(asked)} for name in llms}
    plain: list[tuple[int, ...]] = []
    for order in ([*llms], [*llms][::-1]):
        for name in order:
            texts, sums = decoded(*llms[name], asked, at, most)
            plain = plain or texts
            for key, value in sums.items():
                cells[name][key] = cells[name].get(key, 0) + value
            same = sum(a == b for a, b in zip(texts, plain, strict=True))
            cells[name]["same"] = min(cells[name]["same"], same)
    return cells


def table(store: CellStore) -> str:
    """Return the results as a table."""
    config = store.config
    about = (
        f"{config['model']}, {config['weights']} weights, {config['kv_cache_dtype']} keys and "
        f"values, {config['threads']} threads ({config['clock']} time), up to "
        f"{config['max_tokens']} tokens. A row says how many texts are decoded at a time: the next "
        "prompt begins where a text ends. A cell is the tokens per second over those without "
        "drafts; in brackets the tokens of a decode step of a request, and the share of the time "
        "in which drafts were made."
    )
    names = list(dict.fromkeys(name for cells in store.cells.values() for name in cells))
    rows = []
    for place, cells in store.cells.items():
        plain = _speed(cells[PLAIN])
        row: list[Any] = [place, cells[PLAIN]["prompts"], f"{plain:.1f}"]
        for name in names[1:]:
            row.append(_figures(cells[name], plain) if name in cells else "")
        rows.append(row)
    head = ["batch", "prompts", "plain tokens/s", *names[1:]]
    return f"## Batches with drafts: {config['model']}\n\n{about}\n\n{markdown(head, rows)}"


def _speed(cell: Cell) -> float:
    return float(cell["tokens"] / cell["seconds"])


def _figures(cell: Cell, plain: float) -> str:
    tokens = 1 + cell["accepted"] / max(cell["steps"], 1)
    share = cell["drafting"] / cell["seconds"]
    return f"{_speed(cell) / plain:.2f} ({tokens:.2f}, {share:.0%})"


def options() -> argparse.Namespace:
    """Return the parsed flags."""
    given = {"quantization": "none", "kv_cache_dtype": "bfloat16", "limit": 24, "max_tokens": 128}
    parser = of_prompts(__doc__, **given)
    parser.add_argument("--settings", nargs="+", required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8])
    flags = parser.parse_args()
    if flags.quick:
        flags.limit, flags.max_tokens, flags.sizes = 2, 8, [2]
    check_prompts(flags)
    check_sizes(flags)
    for setting in flags.settings:
        parsed(setting)
    if flags.clock == "cpu" and flags.threads != 1:
        raise InputError("--clock cpu: counts the time of one thread: give --threads 1 with it")
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    return flags


def engines(
    flags: argparse.Namespace, base: Config, size: int, shelf: Shelf
) -> dict[str, tuple[LLM, Timed]]:
    """Return an engine for each setting that decodes `size` texts at once, on a shelf's weights."""
    found: dict[str, tuple[LLM, Timed]] = {}
    for setting in dict.fromkeys([PLAIN, *flags.settings]):
        speculator, growth = parsed(setting)
        own = base.create(
            flags.model,
            quantization=base.quantization,
            kv_cache_dtype=base.kv_cache_dtype,
            threads=base.threads,
            max_model_len=base.max_model_len,
            max_num_seqs=size,
            speculative_config=speculator,
            growth=growth or base.growth,
        )
        llm = LLM.from_parts(*load(own, shelf))
        found[setting] = llm, Timed(llm, CLOCKS[flags.clock])
    return found


def measure(flags: argparse.Namespace) -> CellStore:
    """Measure missing cells; return all."""
    base, shelf = wanted(flags), Shelf()
    for size in flags.sizes:
        llms = engines(flags, base, size, shelf)
        llm = llms[PLAIN][0]
        shown = shown_of(flags, llm.config, flags.quantization, flags.settings)
        store = CellStore(flags.out, named(NAME, flags), shown, record.facts(), table)
        store.read()
        for category, asked in prompts_of(flags, llm.tokenizer).items():
            for temperature in flags.temperatures:
                place = f"{category}, {size} at temperature {temperature:g}"
                if any(missing(store, place, name, len(asked)) for name in llms):
                    cells = measured(llms, asked, temperature, flags.max_tokens)
                    for name, cell in cells.items():
                        store.keep(place, name, cell, [])
    store.write()
    return store


def main() -> int:
    """Measure and print the table; return 1 if greedy tokens differ."""
    try:
        store = measure(options())
    except InputError as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 2
    print(table(store))
    wrong = [
        f"{place}: {name}"
        for place, cells in store.cells.items()
        for name, cell in cells.items()
        if place.endswith("temperature 0")
        and "width" not in name
        and cell["same"] < cell["prompts"]
    ]
    for each in wrong:
        print(f"{NAME}: error: tokens differ from plain decoding: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
