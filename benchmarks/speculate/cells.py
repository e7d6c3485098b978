"""Cells of speed.py: prompts of a category decoded with drafts and without, in turn."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness import shared_prompts
from benchmarks.harness.tables import Cell
from suffice import LLM, SamplingParams
from suffice.cache import GROWTHS, Growth
from suffice.decoder.shelf import Shelf
from suffice.engine.config import Config
from suffice.engine.drafting import DraftModels
from suffice.engine.inputs import RequestMaker, split
from suffice.engine.load import load
from suffice.engine.loop import Loop
from suffice.engine.runner import Runner
from suffice.errors import InputError, unknown
from suffice.eval.prompts import load_prompts, prompt_tokens
from suffice.eval.questions import questions_in
from suffice.speculate import SPECULATORS, Speculator
from suffice.speculate.stats import DraftStats
from suffice.text.tokenizer import Tokenizer

CODE, HUMANEVAL = "humaneval", "humaneval-first100.jsonl"  # a category of its own, and its file
CONVERSATION = "conversation"  # stands for MT-bench's eight categories
OWN = ("translation", "summarization", "qa", "math_reasoning", "rag")
CATEGORIES = {  # of the sets of questions, in the tables' order
    "spec-bench": (CONVERSATION, *OWN),
    "speed-bench": (
        "coding",
        "humanities",
        "math",
        "multilingual",
        "qa",
        "rag",
        "reasoning",
        "roleplay",
        "stem",
        "summarization",
        "writing",
    ),
}
Clock = Callable[[], float]
REPEATED = 4  # length of the runs of tokens that count as repeated


@dataclass(frozen=True)
class Question:
    """A prompt of the benchmark: its first turn, in the model's chat template if it has one."""

    ident: int | str
    tokens: list[int]

    @property
    def seed(self) -> int:
        """The seed of its answer."""
        return self.ident if isinstance(self.ident, int) else zlib.crc32(self.ident.encode())


def questions(
    name: str, folder: Path, tokenizer: Tokenizer, limit: int, longest: int
) -> dict[str, list[Question]]:
    """Return up to `limit` prompts of each category, spread evenly, of at most `longest` tokens.

    Raises:
        InputError: The file of the set `name` is missing, or is another.
    """
    found: dict[str, list[Question]] = {category: [] for category in CATEGORIES[name]}
    for each in questions_in(name, str(folder)):
        place = each.category if each.category in found else CONVERSATION
        if place not in found:
            raise InputError(f"{folder}: {name} has no category '{place}'")
        tokens = prompt_tokens(each.turns[0], tokenizer)
        if len(tokens) <= longest:
            found[place].append(Question(each.ident, tokens))
    return {
        category: [each[i * len(each) // count] for i in range(count)]
        for category, each in found.items()
        if (count := min(limit, len(each)))
    }


def programs(folder: Path, tokenizer: Tokenizer, limit: int, longest: int) -> list[Question]:
    """Return up to `limit` prompts of HumanEval, of at most `longest` tokens.

    Raises:
        InputError: The file is missing, or is another.
    """
    prompts = load_prompts(str(folder / HUMANEVAL))
    asked = [
        Question(number, prompt_tokens(text, tokenizer)) for number, text in enumerate(prompts)
    ]
    return [each for each in asked if len(each.tokens) <= longest][:limit]


def continued(text: str, tokenizer: Tokenizer, depth: int, limit: int) -> list[Question]:
    """Return up to `limit` prompts of `depth` tokens of a text, evenly spread over it.

    Raises:
        InputError: The text is shorter.
    """
    tokens = tokenizer.encode(text)
    count = min(limit, len(tokens) // depth)
    if count == 0:
        raise InputError(f"--deep {depth}: the text has {len(tokens)} tokens only")
    starts = [i * (len(tokens) - depth) // max(count - 1, 1) for i in range(count)]
    return [Question(start, tokens[start : start + depth]) for start in starts]


def parsed(setting: str) -> tuple[Speculator, Growth | None]:
    """Return the speculator and the growth policy of a setting such as `ngram:8 + iterative`.

    Raises:
        InputError: An unknown name or option.
    """
    method, _, growth = setting.partition(" + ")
    speculator: Speculator = SPECULATORS.build(method)
    if growth and growth.partition(":")[0] not in GROWTHS.entries:
        raise unknown("growth", growth, GROWTHS.entries)
    return speculator, GROWTHS.build(growth) if growth else None


def engines(
    config: Config, base: Runner, tokenizer: Tokenizer, settings: Sequence[str]
) -> tuple[dict[str, LLM], shared_prompts.Prompts]:
    """Return an engine for each setting, on one runner's weights, and the prompts they share."""
    techniques = {}
    for setting in settings:
        speculator, growth = parsed(setting)
        techniques[setting] = {
            "policy": config.policy,
            "speculative_config": speculator,
            "growth": growth or config.growth,
        }
    runners, prompts = shared_prompts.runners(config, base, techniques)
    shelf = Shelf()  # weights of drafts are stored once for all settings
    for runner in runners.values():
        models = DraftModels(runner, load, shelf)
        runner.proposer = runner.config.speculative_config.proposer(models)
    return {
        setting: LLM.from_parts(runner.config, runner, tokenizer)
        for setting, runner in runners.items()
    }, prompts


class Answers(Protocol):
    """A function that decodes a prompt."""

    def __call__(self, question: Question) -> tuple[list[int], int, float, DraftStats]:
        """Return all tokens, how many of them were timed, their seconds, and drafts."""
        ...


def answering(
    llm: LLM, temperature: float, most: int, clock: Clock, seeded: bool = True
) -> Answers:
    """Return a function that decodes with an engine, timed from the first token to the last.

    Requests have their questions' numbers as seeds. A seeded request that samples gets no drafts of
    a model whose number depends on times.
    """
    context = llm.config.max_model_len
    assert context is not None, "an engine's config is resolved"
    maker = RequestMaker(llm.config, llm.tokenizer, llm.runner)
    loop = Loop(
        llm.runner, llm.tokenizer, llm.budget, max_num_seqs=1, max_model_len=context, clock=clock
    )

    def answer(question: Question) -> tuple[list[int], int, float, DraftStats]:
        seed = question.seed if seeded else None
        params = SamplingParams(temperature=temperature, max_tokens=most, seed=seed)
        request = maker.make(split(question.tokens)[0], params)
        loop.add(request)
        try:
            while not (request.samples[0].tokens or request.finished):
                loop.step()  # the prompt, and its first token
            began = clock()
            while not request.finished:
                loop.step()
            seconds = clock() - began
        finally:
            loop.abort(request)
        output = request.output()
        if output.error:
            raise InputError(f"question {question.ident}: {output.error}")
        tokens = list(output.outputs[0].token_ids)
        return tokens, len(tokens) - 1, seconds, output.speculation

    return answer


def compared(plain: Answers, other: Answers, asked: Sequence[Question]) -> Iterator[Cell]:
    """Decode each prompt both ways, one after the other; yield the cell so far after each.

    The order alternates from prompt to prompt. `each` of a cell has the single prompts.
    """
    prompts: list[dict[str, Any]] = []
    drafts = DraftStats()
    for number, question in enumerate(asked):
        if number % 2 == 0:
            first = plain(question)
            second = other(question)
        else:
            second = other(question)
            first = plain(question)
        (own, timed, seconds, _), (tokens, count, taken, stats) = first, second
        drafts.include(stats)
        prompts.append(
            {
                "question": question.ident,
                "prompt_tokens": len(question.tokens),
                "plain": {"tokens": timed, "seconds": seconds},
                "other": {"tokens": count, "seconds": taken},
                "same": tokens == own,
                "repeated": repeated(tokens),
            }
        )
        yield {
            "each": list(prompts),
            **summed(prompts),
            "steps": drafts.steps,
            "drafted": drafts.num_draft_tokens,
            "accepted": drafts.num_accepted_tokens,
            "accepted_per_pos": list(drafts.num_accepted_tokens_per_pos),
        }


def summed(prompts: list[dict[str, Any]]) -> Cell:
    """Return the figures of a cell that a table needs: the number of prompts, and their sums."""
    ways = {
        way: {key: sum(prompt[way][key] for prompt in prompts) for key in ("tokens", "seconds")}
        for way in ("plain", "other")
    }
    return {
        "prompts": len(prompts),
        **ways,
        "same": sum(prompt["same"] for prompt in prompts),
        "repeated": sum(prompt["repeated"] for prompt in prompts) / len(prompts),
    }


def repeated(tokens: Sequence[int]) -> float:
    """Return the share of a text's runs of four tokens that occurred earlier in it."""
    runs = [tuple(tokens[at : at + REPEATED]) for at in range(len(tokens) - REPEATED + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def speed(cells: Sequence[Cell], way: str) -> float:
    """Return the tokens per second of all prompts of some cells, "plain" or "other"."""
    seconds = sum(cell[way]["seconds"] for cell in cells)
    return sum(cell[way]["tokens"] for cell in cells) / seconds if seconds else 0.0


def speed_up(cells: Sequence[Cell]) -> float:
    """Return the tokens per second over those of plain decoding, timed in turn."""
    plain = speed(cells, "plain")
    return speed(cells, "other") / plain if plain else 0.0


def tokens_per_step(cells: Sequence[Cell]) -> float | None:
    """Return the mean tokens of a decode step, 1 plus accepted drafts; None if unknown."""
    steps = sum(cell["steps"] for cell in cells)
    return 1 + sum(cell["accepted"] for cell in cells) / steps if steps else None
