"""Engines whose clock goes by the rows of their steps, which they count."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engines import sharing
from suffice import LLM, SamplingParams
from suffice.engine.loop import Loop
from suffice.engine.runner import Runner
from suffice.speculate import Tree, Widths
from suffice.speculate.tree import FEW_ROWS

GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
load = sharing(threads=1, dtype="float32")


class Counted:
    """An engine whose clock goes by rows, and the rows of its steps.

    A step of the model takes 1, and 0.05 for each row more; one of the head `draft`, and
    `row` for each row more. `text`: texts draft next to it. `late` counts the trees of heads that
    began late.
    """

    def __init__(
        self,
        model: Path,
        head: Path | None,
        draft: float = 0.4,
        size: int = 1,
        *,
        text: bool = False,
    ) -> None:
        own = {"method": "eagle3", "model": str(head), "text": text} if head else None
        self.llm = load(model, max_num_seqs=size, speculative_config=own)
        self.now, self.draft, self.row = 0.0, draft, 0.02
        self.steps = self.followed = self.told = self.read = self.late = 0
        self.loop = self.llm.loop = Loop(
            self.llm.runner,
            self.llm.tokenizer,
            self.llm.budget,
            max_num_seqs=size,
            max_model_len=128,
            clock=lambda: self.now,
        )
        runner = runner_of(self.llm)
        self._count(runner._native, own=False)
        if runner.head is not None:
            self._count(runner.head._native, own=True)
            runner.propose = partial(self._propose, runner.propose)  # type: ignore[method-assign]

    def _propose(self, inner: Any, samples: Sequence[Any], shapes: list[Widths]) -> list[Tree]:
        trees: list[Tree] = inner(samples, shapes)
        both = zip(samples, trees, strict=True)
        for cache in (sample.sequence.cache for sample, tree in both if len(tree)):
            self.late += cache.since > 0
            assert not cache.since or cache.length - cache.since >= FEW_ROWS
        return trees

    def _count(self, native: Any, *, own: bool) -> None:
        inner = native.step

        def step(batch: Sequence[Any], *args: Any, **options: Any) -> Any:
            rows = sum(len(each.tokens) for each in batch)
            if own:
                self.now += self.draft + self.row * (rows - 1)
                self.read += rows
            else:
                self.now += 1 + 0.05 * (rows - 1)
                self.steps += 1
                self.followed += any(each.streams for each in batch)
                self.told += sum(each.streams for each in batch)
                assert (options["streams"] is not None) == any(each.streams for each in batch)
            return inner(batch, *args, **options)

        native.step = step

    def answers(self, prompts: list[list[int]], params: SamplingParams = GREEDY) -> list[Any]:
        self.steps = self.followed = self.told = self.read = self.late = 0
        found = self.llm.generate(prompts, params)
        return [(each.outputs, each.speculation) for each in found]


def runner_of(llm: LLM) -> Runner:
    assert isinstance(llm.runner, Runner)
    return llm.runner


def texts(found: list[Any]) -> list[Any]:
    return [outputs for outputs, _ in found]


def accepted(found: list[Any]) -> int:
    return sum(drafts.num_accepted_tokens for _, drafts in found)
