"""RULER's needles by ways to select keys and values: what `tiers` is compared with.

    python -m benchmarks.attention.selector_ruler --data-dir DIR        SmolLM2, hours on a core
    ... --tasks niah_single_2 --lengths 4096 --settings exact sparq     only these
    ... --device cuda                                                   on a GPU, in float32
    ... --quick                                                         two samples, into build/

Exact attention runs each prompt once for all settings. The tokens of its answer attend by a
selector (see `selectors`) in every layer without a window. Answers are greedy, of the samples of
`ruler`; one ends as soon as it has all that is expected, as more tokens change no score. Several
tokens run in one pass: drafts by prompt lookup, to which the expected answer is shown. The pass
keeps those that greedy decoding chooses, so drafts change no answer. Cells are stored as they are
done.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.attention import ruler
from benchmarks.attention.selecting import SelectingDecoder, opened
from benchmarks.attention.selection import LEARNING, MODEL
from benchmarks.attention.selection import SETTINGS as SELECTIONS
from benchmarks.attention.selectors import SELECTORS, Selector
from benchmarks.harness import record, script, torch_device
from benchmarks.harness.tables import Cell, CellStore, markdown
from benchmarks.quant.quality import calibration_text
from suffice import native
from suffice.cache.kv import KVCache
from suffice.eval.answers import score_of
from suffice.eval.ruler import NEW_TOKENS, Draft, RulerPlan, check, contained
from suffice.progress import counting_bar
from suffice.speculate.ngram import LastPlaces, NGram
from suffice.text.tokenizer import Tokenizer

NAME, EXACT = "selector_ruler", "exact"
TASKS = ("niah_single_1", "niah_single_2")  # those that SmolLM2 solves
LENGTHS, SAMPLES = (2048,), 50
DRAFTS = 16  # tokens that a pass checks
CHUNK = 2048  # tokens of a prompt that run at a time
LEFT_OUT = ("oracle", "looks:look=boxes")  # boxes have the outputs of `looks`
SETTINGS = (EXACT, *(each for each in SELECTIONS if not each.startswith(LEFT_OUT)))


@dataclass(frozen=True)
class Asked:
    """A sample after its prompt: what it expects, the cache, and the first token of the answer."""

    expected: tuple[str, ...]
    prompt: list[int]
    cache: KVCache
    first: int


class Answered(NamedTuple):
    """An answer's score in per cent, the bytes that it read, and those of exact attention."""

    score: float
    read: float
    held: float


@dataclass(frozen=True)
class Answers:
    """A decoder and its tokenizer, which answer samples."""

    decoder: SelectingDecoder
    tokenizer: Tokenizer

    def ask(self, draft: Draft) -> Asked:
        """Run a sample's prompt."""
        prompt, logits = draft.fitted(self.tokenizer), None
        cache = self.decoder.cache(len(prompt) + NEW_TOKENS)
        for start in range(0, len(prompt), CHUNK):
            logits = self.decoder.forward(torch.tensor(prompt[start : start + CHUNK]), cache)
        assert logits is not None, "a prompt has tokens"
        values = tuple(needle.value for needle in draft.expected)
        return Asked(values, prompt, cache, int(logits.argmax()))

    def answer(self, asked: Asked, selector: Selector) -> Answered:
        """Return what greedy decoding answers; afterwards the cache has the prompt alone."""
        answer, read, held = [asked.first], 0.0, 0.0
        text = self._text(asked)
        while not self._ends(asked, answer):
            drafts = text.propose(min(DRAFTS, NEW_TOKENS - len(answer)) - 1).tokens
            found = self.decoder.select([answer[-1], *drafts], asked.cache, selector)
            columns = (found.logits.argmax(-1), found.read, found.held)
            rows = zip((*drafts, None), *(each.tolist() for each in columns), strict=True)
            for draft, token, own, whole in rows:
                answer.append(token)
                text.extend([token])
                read, held = read + own, held + whole
                if token != draft or self._ends(asked, answer):
                    break
            asked.cache.truncate(len(asked.prompt) + len(answer) - 1)
        asked.cache.truncate(len(asked.prompt))
        return Answered(self._score(asked, answer), read, held)

    def _text(self, asked: Asked) -> LastPlaces:
        """Return the text that drafts come from: one with the right answer, then the prompt's end
        and the answer's first token."""
        most = NGram.prompt_lookup_max
        text = LastPlaces(NGram.prompt_lookup_min, most)
        right = self.tokenizer.encode(" " + ", ".join(asked.expected), special=False)
        text.extend([*asked.prompt, *right, *asked.prompt[-most:], asked.first])
        return text

    def _ends(self, asked: Asked, answer: list[int]) -> bool:
        """Return whether an answer has all it may have, or all that is expected."""
        if len(answer) == NEW_TOKENS or answer[-1] in self.tokenizer.eos_ids:
            return True
        return self._score(asked, answer) == 100

    def _score(self, asked: Asked, answer: list[int]) -> float:
        return contained(self.tokenizer.decode(answer, skip_special=True), asked.expected)


def cell_of(plan: RulerPlan, answers: Sequence[Answered]) -> Cell:
    """Return the stored part of a task's answers."""
    score = score_of(plan.tasks[0], plan.lengths[0], [each.score for each in answers])
    return {
        "score": score.score,
        "error": score.error,
        "samples": score.samples,
        "kv_bytes_read": sum(each.read for each in answers),
        "kv_bytes_held": sum(each.held for each in answers),
    }


def run(
    store: CellStore, answers: Answers, plans: Sequence[RulerPlan], settings: list[str]
) -> None:
    """Measure missing cells, by task and length."""
    with counting_bar() as bar:
        for plan in plans:
            place = ruler.place_of(plan)
            done = store.cells.get(place, {})
            missing = [
                each
                for each in settings
                if done.get(each, {"samples": 0})["samples"] < plan.samples
            ]
            if not missing:
                continue
            shown = partial(bar.track, total=plan.samples)
            prompts = shown(plan.drafts(), description=f"{place}: prompts")
            asked = [answers.ask(each) for each in prompts]
            for setting in missing:
                selector, samples = SELECTORS.build(setting), shown(asked, description=setting)
                found = [answers.answer(each, selector) for each in samples]
                cell = cell_of(plan, found) | torch_device.of_cell(answers.decoder.device)
                store.keep(place, setting, cell)
            for each in asked:
                each.cache.close()


def table(store: CellStore) -> str:
    """Return the table of a result: scores and bytes."""
    places = list(store.cells)
    head = ["setting", "score", "bytes read"]
    head += [f"{each} (n = {store.cells[each][EXACT]['samples']})" for each in places]
    settings = dict.fromkeys(setting for cells in store.cells.values() for setting in cells)
    rows = [row(store, setting) for setting in settings]
    about = (
        f"{store.config['model']}, keys and values in bfloat16, greedy answers. Prompts are "
        "run by exact attention, the tokens of an answer attend by a selector. A score is the per "
        "cent of needles that are found, with its standard error; bytes are over those of exact "
        f"attention, with those of what finds the rows.{torch_device.sentence(store.cells)}"
    )
    return f"## RULER's needles by selectors\n\n{about}\n\n{markdown(head, rows)}"


def row(store: CellStore, setting: str) -> list[Any]:
    """Return a setting's row; the mean is of settings that have all tasks."""
    cells = [ruler.same_samples(each, setting) for each in store.cells.values()]
    found = [each for each in cells if each]
    means = ["", ""]
    if len(found) == len(cells):
        exact = [each[EXACT] for each in store.cells.values()]
        means = [ruler.mean_score(found), f"{ruler.share(found, exact):.3f}"]
    scores = [ruler.mean_score([each]) if each else "" for each in cells]
    return [f"`{setting}`", *means, *scores]


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with Spec-Bench")
    parser.add_argument("--calibrate", help="text file to choose channels on, not Spec-Bench")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="TASK")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each task and length")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--threads", type=int, default=native.cores())
    torch_device.add_option(parser)
    parser.add_argument("--quick", action="store_true", help="two samples, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.quick:
        flags.tasks, flags.lengths, flags.samples = flags.tasks[:1], [512], 2
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    return flags


def measured(flags: argparse.Namespace) -> CellStore:
    """Measure cells without a result, and store them.

    Raises:
        InputError: A model, text, setting, task or number that cannot be used.
    """
    settings = list(dict.fromkeys((EXACT, *flags.settings)))
    for setting in settings:
        SELECTORS.build(setting)
    plans = [
        RulerPlan([task], [length], flags.samples)
        for length in flags.lengths
        for task in flags.tasks
    ]
    torch_device.use_threads(flags.threads)
    device = torch_device.chosen(flags.device)
    _, text = calibration_text(flags)
    decoder, tokenizer, model = opened(flags.model, device)
    for plan in plans:
        check(plan, tokenizer, decoder.config.longest_text)
    shown = {"model": model["name"], "hash": model["hash"]}
    name = NAME if model["name"] == MODEL else f"{NAME}_{model['name']}"
    store = CellStore(flags.out, name, shown, record.facts(), table)
    store.read()
    decoder.choose_channels(tokenizer.encode(text)[:LEARNING])
    run(store, Answers(decoder, tokenizer), plans, settings)
    store.write()
    return store


def main() -> int:
    """Measure, store and print."""
    return script.printed(NAME, lambda: table(measured(options())))


if __name__ == "__main__":
    sys.exit(main())
