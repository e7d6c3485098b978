"""A model's answers to prompts, and means of their scores with standard errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suffice.errors import InputError
from suffice.sampling_params import SamplingParams

if TYPE_CHECKING:
    from suffice.engine.llm import LLM


@dataclass(frozen=True)
class Score:
    """A mean score; task or length None means all of them, error None means it is unknown."""

    task: str | None
    length: int | None
    score: float
    error: float | None
    samples: int


def answered(llm: LLM, prompts: Sequence[list[int]], new_tokens: int) -> list[str]:
    """Return greedy answers to prompts that run together, at most `new_tokens` tokens each.

    Raises:
        InputError: There is no memory for a prompt.
    """
    greedy = SamplingParams(temperature=0, max_tokens=new_tokens)
    outputs = llm.generate(list(prompts), greedy, use_tqdm=False)
    for output in outputs:
        if output.error:
            raise InputError(f"{output.error} (prompts in memory: {len(prompts)}, --batch-size)")
    return [output.outputs[0].text for output in outputs]


def standard_error(found: Sequence[float]) -> float | None:
    """Return the standard error of a mean; None for a single figure."""
    return statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None


def score_of(task: str, length: int | None, found: Sequence[float]) -> Score:
    """Return the mean of the scores of a task's samples."""
    return Score(task, length, statistics.fmean(found), standard_error(found), len(found))


def mean_of(scores: Sequence[Score], length: int | None) -> Score:
    """Return the mean in which all tasks and lengths have equal weight."""
    errors = [score.error for score in scores if score.error is not None]
    known = len(errors) == len(scores)
    return Score(
        None,
        length,
        statistics.fmean(score.score for score in scores),
        math.hypot(*errors) / len(scores) if known else None,
        sum(score.samples for score in scores),
    )
