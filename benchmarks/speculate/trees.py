"""Compare trees of drafts with chains on the Spec-Bench prompts, as in the BMC paper's Fig. 12.

    python -m benchmarks.speculate.trees --data-dir DIR          SmolLM2 in bfloat16
    ... --families suffix self --limit 4 --temperatures 0        these alone, four of a category
    ... --deep 8000 --context 8192 --families self               deep in WikiText-2 instead
    ... --families eagle3 --head FOLDER --categories humaneval   a head of `suffice train-drafter`
    ... --quick                                                  tiny sizes, into build/

A family is a chain and its trees; that of a head also has its text alone, the head alone, and a
cache that grows token by token. Each prompt is decoded without drafts and in every way of the
family, one after the other, so that other load slows all; the order rotates from prompt to prompt.
Times begin with the first token; a prompt is run once for all ways. A way keeps its acceptance
rates from prompt to prompt. Each cell is stored as soon as it is measured; it is measured again if
more prompts are asked for. Where tokens are drawn, requests have seeds only if drafts come from the
text, or there are none: a seeded one gets no drafts of a model that adapts.

One more way, which is not timed, always drafts six depths of five siblings: how often each was
right gives the expected tokens of a step by the shape of the drafts, and Sequoia's best trees.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.tables import Cell, CellStore
from benchmarks.speculate import step_cost, trees_report
from benchmarks.speculate.cells import Answers, Question, answering, engines, parsed
from benchmarks.speculate.speed import (
    PLAIN,
    check_prompts,
    check_sizes,
    missing,
    named,
    of_prompts,
    place_of,
    prompts_of,
    shown_of,
    wanted,
)
from suffice import LLM
from suffice.engine.load import load
from suffice.errors import InputError
from suffice.progress import progress_bar
from suffice.speculate import DraftingSample, Tree
from suffice.speculate.budget import Budget

NAME = "trees"
DRAFT = "draft_model:model={model},quantization=(rtn:group=64,act_bits=8),kv_cache_dtype=kmeans4"
SELF = "self:recent={recent}"
HEAD = "eagle3:model={head}"
RECENT, DEEP_RECENT = 0, 512  # all keys, as prompts are short; deep in a text they cost too much
FAMILIES = {
    "suffix": ("suffix", "suffix:tree=true"),
    "suffix, all checked": ("suffix:adaptive=false", "suffix:tree=true,adaptive=false"),
    "self": (SELF, f"{SELF},width=2", f"{SELF},width=3"),
    "self, all checked": (
        f"{SELF},adaptive=false",
        f"{SELF},adaptive=false,width=2",
        f"{SELF},adaptive=false,width=3",
    ),
    "draft_model": (DRAFT, f"{DRAFT},width=2", f"{DRAFT},width=3"),
    "eagle3": (
        HEAD,
        "suffix",
        f"{HEAD},text=false",
        f"{HEAD},width=2",
        f"{HEAD},width=3",
        f"{HEAD} + iterative",
    ),
}
WITHOUT_HEAD = [family for family in FAMILIES if family != "eagle3"]
RATES = f"{SELF},adaptive=false,num_speculative_tokens=6,width=5"
COUNTED = "rates"  # the family of the way that is not timed


class Counting(Budget):
    """A budget that counts how often each sibling was right, by depth and rank."""

    def __init__(self, llm: LLM) -> None:
        super().__init__(llm.config.speculative_config)
        self.counts: dict[tuple[int, int], tuple[int, int]] = {}  # (seen, right)

    def learn(self, sample: DraftingSample, tree: Tree, tokens: Sequence[int]) -> None:
        """Count the siblings of each depth whose chain was right."""
        super().learn(sample, tree, tokens)
        node = -1
        for depth, token in enumerate(tokens):
            children = tree.children(node)
            for rank, child in enumerate(children):
                seen, right = self.counts.get((depth, rank), (0, 0))
                self.counts[depth, rank] = seen + 1, right + (tree.tokens[child] == token)
            if not children or tree.tokens[children[0]] != token:
                return
            node = children[0]

    def taken(self) -> list[list[tuple[int, int]]]:
        """Return the counts by depth and rank, and begin again."""
        found, self.counts = self.counts, {}
        depths = max((depth for depth, _ in found), default=-1) + 1
        widths = [sum(own == depth for own, _ in found) for depth in range(depths)]
        return [[found[at, rank] for rank in range(width)] for at, width in enumerate(widths)]


def in_turn(ways: dict[str, Answers], asked: Sequence[Question]) -> Iterator[Cell]:
    """Decode each prompt in every way; yield the cell so far after each prompt.

    The first way is the next prompt's last. `same` counts the prompts whose tokens are those of the
    first way.
    """
    sums: dict[str, dict[str, float]] = {
        way: dict.fromkeys(("tokens", "seconds", "steps", "accepted", "drafted", "same"), 0)
        for way in ways
    }
    each: list[dict[str, Any]] = []
    names = list(ways)
    for number, question in enumerate(asked):
        texts: dict[str, list[int]] = {}
        single: dict[str, Any] = {"question": question.ident}
        for at in range(len(names)):
            way = names[(number + at) % len(names)]
            texts[way], timed, seconds, drafts = ways[way](question)
            single[way] = {
                "tokens": timed,
                "seconds": seconds,
                "steps": drafts.steps,
                "accepted": drafts.num_accepted_tokens,
                "drafted": drafts.num_draft_tokens,
            }
        for way in names:
            single[way]["same"] = int(texts[way] == texts[names[0]])
            for key, value in single[way].items():
                sums[way][key] += value
        each.append(single)
        yield {"prompts": number + 1, "ways": {way: dict(own) for way, own in sums.items()}} | {
            "each": list(each)
        }


def run(
    store: CellStore,
    asked: dict[str, list[Question]],
    families: dict[str, dict[float, dict[str, Answers]]],
    counting: Counting | None,
    forget: Callable[[], None],
) -> None:
    """Measure missing cells; a family has its ways by temperature."""
    columns = ("{task.description}", "{task.completed}/{task.total} prompts")
    with progress_bar(*columns) as bar:
        line = bar.add_task("", total=None)
        for category, prompts in asked.items():
            for family, by_temperature in families.items():
                for temperature, ways in by_temperature.items():
                    place = place_of(category, temperature)
                    if not missing(store, place, family, len(prompts)):
                        continue
                    bar.reset(line, description=f"{place}: {family}", total=len(prompts))
                    cell: Cell = {}
                    for found in in_turn(ways, prompts):
                        bar.advance(line)
                        cell = found
                    single = cell.pop("each")
                    if family == COUNTED and counting is not None:
                        cell["ranks"] = counting.taken()
                    store.keep(place, family, cell, single)
            forget()


def options() -> argparse.Namespace:
    """Return the parsed flags."""
    given = {"quantization": "none", "kv_cache_dtype": "bfloat16", "limit": 4, "max_tokens": 128}
    parser = of_prompts(__doc__, **given)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=WITHOUT_HEAD)
    parser.add_argument("--head", help="the folder of the family eagle3")
    parser.add_argument("--no-rates", action="store_true", help="leave out the way not timed")
    flags = parser.parse_args()
    if flags.quick:
        flags.limit, flags.max_tokens = 1, 12
    check_prompts(flags)
    if "eagle3" in flags.families and flags.head is None:
        raise InputError("--head: the folder of a head is needed by --families eagle3")
    check_sizes(flags)
    if flags.clock == "cpu" and flags.threads != 1:
        raise InputError("--clock cpu: counts the time of one thread: give --threads 1 with it")
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    return flags


def measure(flags: argparse.Namespace) -> CellStore:
    """Measure missing cells; return all."""
    config, base, tokenizer = load(wanted(flags))
    asked, recent = prompts_of(flags, tokenizer), DEEP_RECENT if flags.deep else RECENT
    ways = {
        family: [
            way.format(model=flags.model, recent=recent, head=flags.head)
            for way in FAMILIES[family]
        ]
        for family in flags.families
    }
    counted = RATES.format(recent=recent)
    if not flags.no_rates:
        ways[COUNTED] = [counted]
    settings = list(dict.fromkeys([PLAIN, *(way for family in ways.values() for way in family)]))
    shown = shown_of(flags, config, flags.quantization, settings)
    name = named(NAME, flags)
    store = CellStore(flags.out, name, shown, record.facts(), trees_report.table)
    store.read()
    llms, prompts = engines(config, base, tokenizer, settings)
    counting = None
    if COUNTED in ways:
        llms[counted].budget = counting = Counting(llms[counted])
    clock = step_cost.CLOCKS[flags.clock]
    families = {
        family: {
            temperature: {
                way: answering(
                    llms[way], temperature, flags.max_tokens, clock, seeded=parsed(way)[0].from_text
                )
                for way in ([PLAIN, *own] if family != COUNTED else own)
            }
            for temperature in flags.temperatures
        }
        for family, own in ways.items()
    }
    run(store, asked, families, counting, prompts.forget)
    store.write()
    trees_report.draw(store)
    return store


def main() -> int:
    """Measure and print the table; return 1 if greedy tokens of a chain differ."""
    try:
        flags = options()
        store = measure(flags)
    except InputError as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 2
    print(trees_report.table(store))
    wrong = trees_report.different(store)
    for each in wrong:
        print(f"{NAME}: error: tokens differ from plain decoding: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
