"""The state of a second model that drafts. Tests draft_model.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import tiny
from suffice import LLM, SamplingParams
from suffice.sampling import SamplingState


def test_a_second_model_forgets_rejected_drafts(tmp_path: Path) -> None:
    """It drafts what it drafts of a text that it has not seen before."""
    folder = tiny.make(tmp_path, "llama", tokenizer=True)
    llm = LLM(folder, threads=1, speculative_config={"method": "draft_model", "model": str(folder)})
    proposer = llm.runner.proposer  # type: ignore[attr-defined]
    greedy = SamplingParams(temperature=0)
    old, new = (
        SimpleNamespace(
            goes_on=None, state=SamplingState(greedy, 0, prompt=[7, 8, 9]), drafter=None
        )
        for _ in range(2)
    )
    (tree,) = proposer.propose([old], [(1, 1, 1)])
    others = [token for token in range(3, 6) if token not in tree.tokens][:2]
    for sample in (old, new):
        for token in others:
            sample.state.append(token)
    after_old, after_new = (proposer.propose([each], [(1, 1, 1)])[0] for each in (old, new))
    assert after_old.tokens == after_new.tokens
