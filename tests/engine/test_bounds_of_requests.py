"""What a request says of its bounds and of its prompt adds up to the engine's: Final, Trace."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tiny
from suffice import LLM, SamplingParams
from suffice.engine.service import Engine
from suffice.engine.work import Delta, Final, Work
from suffice.trace import BoundSums, Trace

LENGTH = 5
ANSWER = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
LONG, SHORT = "the quick brown fox " * 170, "0123456789 " * 9


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return tiny.make(folder, "llama", tokenizer=True, max_position_embeddings=4096)


def answered(
    model: Path, attention: str, params: Sequence[SamplingParams] = (ANSWER, ANSWER)
) -> tuple[list[Final], Trace]:
    """Answer a long and a short prompt; what each cost, and what the engine counted."""
    llm = LLM(model, attention=attention, audit=1)
    engine, ended = Engine(llm), queue.Queue[Delta]()
    try:
        for name, own in zip((LONG, SHORT), params, strict=True):
            tokens = tuple(llm.tokenizer.encode(name))
            engine.submit(Work(name, tokens, own), lambda each: each.final and ended.put(each))
        found = {each.id: each.final for each in (ended.get(timeout=60) for _ in params)}
    finally:
        engine.close()
    finals = [each for name in (LONG, SHORT) if (each := found[name]) is not None]
    return finals, llm.runner.trace


def test_each_answer_says_what_its_prompt_read(model: Path) -> None:
    (long, short), trace = answered(model, "tiers:bounded=true,prompt=0.1")
    assert long.guarantee == "bound, prompt approximate"
    assert 0 < long.prompt_rows_read < long.prompt_rows_held
    assert short.guarantee == "bound", "its tiles have read everything"
    assert 0 < short.prompt_rows_read == short.prompt_rows_held
    assert long.prompt_rows_read + short.prompt_rows_read == trace.tile_rows_read
    assert long.prompt_rows_held + short.prompt_rows_held == trace.tile_rows_held


@pytest.mark.parametrize("attention", ["tiers:bounded=true,eps=0.3", "tiers:sample=4,delta=0.2"])
def test_means_of_bounds_add_up(model: Path, attention: str) -> None:
    finals, trace = answered(model, attention)
    each = (LENGTH - 1) * trace.rows[0].size  # steps of a request, in all layers and heads
    assert [final.softmaxes for final in finals] == [each, each]
    assert trace.bounds.softmaxes == 2 * each and trace.bounds.means is not None
    for at, name in enumerate(("missing", "shift")):
        means = [getattr(final, f"{name}_mean") for final in finals]
        assert trace.bounds.means[at] == pytest.approx(sum(means) / 2)
        most = [getattr(final, name) for final in finals]
        assert all(0 < mean < largest for mean, largest in zip(means, most, strict=True))
        assert max(most) == getattr(trace, name)
    assert trace.audit is not None and trace.audit.beyond == 0
    # The mean over groups of the worst bound is no less than that of what is truly missing.
    assert trace.bounds.means[0] >= trace.audit.sums[0].sum() / trace.audit.queries


def test_an_answer_of_one_token_left_nothing_out(model: Path) -> None:
    one = SamplingParams(temperature=0.0, max_tokens=1)
    finals, trace = answered(model, "tiers:bounded=true", (one, one))
    assert [(final.guarantee, final.missing, final.shift) for final in finals] == [
        ("bound", 0.0, 0.0)
    ] * 2
    assert trace.bounds == BoundSums() and trace.plain()["missing_mean"] is None


def test_nothing_is_said_of_what_nothing_bounds(model: Path) -> None:
    for final in answered(model, "tiers")[0]:
        assert final.guarantee == "none" and final.softmaxes == 0
        assert final.missing is final.missing_mean is final.shift is final.shift_mean is None
    for final in answered(model, "certified:eps=0.3")[0]:
        assert final.missing_mean is not None and 0 < final.missing_mean <= 0.3
        assert final.shift is None, "nothing bounds how far its outputs are moved"


def test_sums_of_a_part_of_a_run() -> None:
    trace = Trace(1, 1)
    trace.bounds = BoundSums(4, 1.0, 2.0)
    before = trace.copy()
    trace.bounds = trace.bounds.plus(BoundSums(4, 3.0, 4.0))
    assert trace.since(before).bounds.means == (0.75, 1.0)
    assert np.isclose(trace.plain()["shift_mean"], 0.75)  # type: ignore[arg-type]
