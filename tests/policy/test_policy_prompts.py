"""Prompts are run with every token, whatever a policy will let later tokens see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from suffice import LLM

POLICIES = ["full", "streaming:budget=24", "h2o:budget=21", "quest:budget=48,dense_layers=0"]


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_budget_that_is_known_beforehand_hides_nothing_of_a_prompt(
    policy: str, checkpoint: Path
) -> None:
    found = []
    for each in (POLICIES[0], policy):
        runner = LLM(checkpoint, dtype="float32", threads=1, policy=each).runner
        found.append(runner.prefill(runner.open("prompt", 200), list(range(10, 110))))
    assert np.array_equal(*found)
