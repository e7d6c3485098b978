"""Heads that the recipe has trained on a tiny model's answers, until they know these."""

from __future__ import annotations

from pathlib import Path

import torch

from suffice import LLM
from suffice.engine.runner import Runner
from suffice.train.answers import Answers
from suffice.train.job import ANSWERS, HeadTraining
from suffice.train.recipe import Recipe

# Rates high enough to learn a few answers of a tiny model by heart.
RECIPE = Recipe(draft_vocab=160, steps=4, batch=1, rate=5e-3, epochs=24, passes=8)


def training_of(
    llm: LLM, prompts: list[list[int]], folder: Path, recipe: Recipe = RECIPE, length: int = 128
) -> HeadTraining:
    """Return a training in a folder, whose state lies next to the head's own folder there."""
    torch.set_num_threads(1)
    work = folder / "head.training"
    work.mkdir(parents=True, exist_ok=True)
    assert isinstance(llm.runner, Runner)
    answers = Answers(llm, prompts, work / ANSWERS, length, 0.0, recipe.seed)
    for _ in answers.run():
        pass
    return HeadTraining(llm.runner, answers, recipe, folder / "head", {"prompts": prompts})


def trained(llm: LLM, prompts: list[list[int]], folder: Path) -> Path:
    """Return the folder of a head that has been trained on answers to prompts."""
    # What is held out is not learnt: an answer to nothing in particular.
    training = training_of(llm, [*prompts, [5, 6, 7]], folder)
    training.begin()
    for _ in training.run(10**6):
        pass
    training.write("float32")
    return folder / "head"
