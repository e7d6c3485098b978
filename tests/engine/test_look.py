"""A look at a real engine adds up to what its requests say they read: Engine.look, Loop.look."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from suffice import LLM, SamplingParams
from suffice.engine.service import Engine
from suffice.engine.work import Delta, Final, Look, Work

LONG = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


class Waiting:
    """Takes the deltas of a request, and looks at the engine in each step."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.looks = engine, list[Look]()
        self.final: Final | None = None
        self.over = threading.Event()

    def __call__(self, delta: Delta) -> None:
        self.looks.append(self.engine.look())
        if delta.final is not None:
            self.final = delta.final
            self.over.set()


@pytest.mark.parametrize("audit", [None, 4])
def test_a_look_adds_up(checkpoint: Path, audit: int | None) -> None:
    llm = LLM(
        str(checkpoint),
        attention="certified:bounded=false,eps=0.5",
        speculative_config="ngram:adaptive=false",
        audit=audit,
        max_model_len=512,
    )
    engine = Engine(llm)
    try:
        prompts = [tuple(range(3 + n, 180)) + tuple(range(3 + n, 120)) for n in range(3)]
        waiting = [Waiting(engine) for _ in prompts]
        for at, (prompt, each) in enumerate(zip(prompts, waiting, strict=True)):
            engine.submit(Work(str(at), prompt, LONG), each)
        for each in waiting:
            assert each.over.wait(60)
        engine.drain()
        finals = [each.final for each in waiting if each.final is not None]
        look = engine.look()
    finally:
        engine.close()
    shape = np.shape(look.rows_held)
    assert shape == np.shape(look.key_rows) == np.shape(look.value_rows) and min(shape) > 1
    for grid, field in (
        (look.key_rows, "key_rows_read"),
        (look.value_rows, "value_rows_read"),
        (look.rows_held, "rows_held"),
    ):
        total = sum(getattr(final, field) for final in finals)
        assert np.sum(grid) == total == getattr(look.stats, field)
    assert 0 < look.stats.key_rows_read < look.stats.rows_held
    assert look.stats.drafts == sum(final.drafts for final in finals) > 0
    assert look.stats.accepted == sum(final.accepted for final in finals)
    largest = max(final.missing or 0 for final in finals)
    looks = [each for waits in waiting for each in waits.looks]
    assert {each.guarantee for each in looks} <= {"estimate", None}
    assert 0 < max(each.missing for each in looks) <= largest
    assert look.guarantee is None, "nothing runs any more"
    assert (look.audit is None) == (audit is None)
    assert audit is None or {"error", "missing", "tokens"} <= set(look.audit or {})
