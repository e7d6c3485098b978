"""When a head follows texts: counted, with costs that the tests set; and where it begins late.

Tests with_head.py, by_head.py and budget.py.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import block_heads
import heads
import trained_block_heads
from counted_engines import Counted, accepted, runner_of, texts
from engines import run, sharing
from suffice import LLM, SamplingParams
from suffice.cache.with_head import CacheWithHead
from suffice.engine.block_heads import BlockHead
from suffice.engine.heads import Follower, Head
from suffice.engine.protocol import Rows
from suffice.engine.runner import Runner
from suffice.engine.runner import Sequence as Text
from suffice.speculate import DraftingSample, Widths
from suffice.speculate.budget import Budget
from suffice.speculate.eagle3 import Eagle3
from suffice.speculate.tree import ALL_ROWS, FEW_ROWS, NO_DRAFTS
from trained_heads import trained

GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
PROMPTS = [[(7 * i + 13 * number) % 190 + 3 for i in range(60)] for number in range(8)]
LATE = 21
load = sharing(threads=1, dtype="float32")


@pytest.fixture(scope="module")
def knowing(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(load(model), PROMPTS[:2], tmp_path_factory.mktemp("knowing"))


@pytest.fixture(scope="module", params=["eagle3", "dflash"])
def skilled(
    request: pytest.FixtureRequest,
    model: Path,
    knowing: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A head that knows the answers to some prompts."""
    if request.param == "eagle3":
        return knowing
    folder = tmp_path_factory.mktemp("skilled")
    method = {"method": "dflash", "adaptive": False, "model": str(block_heads.make(folder, model))}
    begun = load(model, speculative_config=method)
    return trained_block_heads.trained(begun, model, PROMPTS[:2], folder / "head")


@pytest.mark.parametrize("size", [1, 8])
def test_where_nothing_pays_next_to_nothing_is_followed(
    model: Path, untrained: Path, size: int
) -> None:
    plain, other = Counted(model, None, size=size), Counted(model, untrained, size=size)
    for _ in range(4):
        wanted = plain.answers(PROMPTS)
        assert texts(other.answers(PROMPTS)) == texts(wanted)
    assert other.followed < 0.3 * other.steps
    assert other.read < 0.25 * len(PROMPTS) * (60 + 60)
    assert other.now < 1.02 * plain.now


def test_a_trial_reads_the_end_of_a_prompt(model: Path, untrained: Path) -> None:
    engine = Counted(model, untrained)
    engine.answers(PROMPTS[:1], dataclasses.replace(GREEDY, max_tokens=1))
    assert engine.told == FEW_ROWS


def test_where_drafts_pay_all_is_followed(model: Path, knowing: Path) -> None:
    plain, other = Counted(model, None), Counted(model, knowing, draft=0.05)
    wanted = plain.answers(PROMPTS[:2])
    assert texts(other.answers(PROMPTS[:2])) == texts(wanted)
    assert other.followed == other.steps
    assert accepted(other.answers(PROMPTS[:2])) > 60
    assert other.told >= 2 * (60 + 59)
    assert other.now < 1.5 * plain.now, "twice as many prompts"


def test_drafts_that_begin_to_pay_come_back_in_the_middle_of_a_text(
    model: Path, knowing: Path
) -> None:
    wanted = texts(Counted(model, None).answers(PROMPTS[:1]))
    other = Counted(model, knowing, draft=1.5)
    read = 0
    for _ in range(8):
        other.answers(PROMPTS[:1])
        read += other.read
    assert 0 < read < 200, "it was tried, and left"
    other.draft = other.row = 0.0
    late = 0
    for _ in range(12):
        found = other.answers(PROMPTS[:1])
        assert texts(found) == wanted
        late += other.late
    assert late > 5, "the first drafts were those of a head that had begun late"
    assert accepted(found) > 30 and other.followed == other.steps


def test_what_has_a_seed_is_not_followed(model: Path, knowing: Path) -> None:
    """It gets no drafts whose number depends on times."""
    engine = Counted(model, knowing)
    engine.answers(PROMPTS[:1], SamplingParams(seed=3, max_tokens=20))
    assert engine.followed == engine.read == 0 < engine.steps
    engine.answers(PROMPTS[:1], SamplingParams(max_tokens=60, ignore_eos=True))
    assert engine.followed > 0 < engine.read


@pytest.mark.parametrize("alone", [True, False])
def test_reading_without_drafts_is_a_loss(alone: bool) -> None:
    """A head that costs half a step in each is left soon, be it in steps with prompts."""
    budget = Budget(Eagle3("folder", text=False))
    sample: Any = type("Sample", (), {"rates": None, "state": None})()
    sample.state = type("State", (), {"params": GREEDY})()
    budget.checked([NO_DRAFTS], 1.0)
    spent = 0.0
    for _ in range(3000):
        budget.shapes([sample], [4])
        more = 0.5 * (budget.follows(sample) > 0)
        budget.followed(more)
        budget.drafted([sample], [NO_DRAFTS], 0.0)  # it never has enough to begin
        budget.checked([NO_DRAFTS], 1.0) if alone else budget.unchecked(1.0)
        spent += 1 + more
    assert 3000 < spent < 1.02 * 3000


@pytest.fixture(scope="module", params=["eagle3", "dflash"])
def either(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A head with random weights that drafts token by token, or blocks."""
    make = heads.make if request.param == "eagle3" else block_heads.make
    return make(tmp_path_factory.mktemp("either"), model)


def method_of(head: Path) -> dict[str, str]:
    """Return the speculator of a head."""
    return {"method": heads.method(head), "model": str(head)}


def opened(model: Path, head: Path) -> tuple[Runner, Follower]:
    runner = runner_of(load(model, speculative_config=method_of(head)))
    assert isinstance(runner.head, Follower)
    return runner, runner.head


def read(runner: Runner, sequence: Text, tokens: list[int], follow: int) -> None:
    runner.begin(sequence, len(tokens))
    runner.run([Rows(sequence, tokens, 0, prompt=True, follow=follow)])
    runner.end(sequence)


def drafts(runner: Runner, head: Follower, sequence: Text, last: int = 9) -> list[np.ndarray]:
    cache = sequence.cache
    assert isinstance(cache, CacheWithHead)
    runner.reserve(sequence, 8)
    if isinstance(head, BlockHead):
        found = head.block([cache], [last], [2])
    else:
        assert isinstance(head, Head)
        found = [*head.begin([cache], [last]), *head.go_on([cache], [5])]
    head.end([cache])
    return found


@pytest.mark.parametrize("parts", [True, False])
def test_a_late_beginning_reads_the_rows_that_it_has(
    model: Path, untrained: Path, parts: bool
) -> None:
    """Its drafts are those of a head that was given these tokens and hidden states alone."""
    runner, head = opened(model, untrained)
    whole, late = runner.open("whole", 120), runner.open("late", 120)
    text = PROMPTS[0][:40]
    read(runner, whole, text, ALL_ROWS)
    hidden = np.stack(whole.cache._hidden)  # type: ignore[attr-defined]
    if parts:
        read(runner, late, text[:LATE], 0)
        read(runner, late, text[LATE:], ALL_ROWS)
    else:
        read(runner, late, text, len(text) - LATE)
    alone = head.cache(120, runner.growth, runner.arena)
    alone.reserve(60)
    logits, _ = head._step([alone], [[*text[LATE + 1 :], 9]], hidden[LATE:], 1)
    found = drafts(runner, head, late)
    np.testing.assert_array_equal(found[0], logits[0])
    assert np.abs(found[0] - drafts(runner, head, whole)[0]).max() > 1e-3


@pytest.mark.parametrize("kept", [10, LATE, LATE + 1, 30, 39])
@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("made", [True, False])
def test_texts_with_a_late_beginning_are_cut_and_copied(
    model: Path, either: Path, kept: int, copied: bool, made: bool
) -> None:
    """They go on as texts that were never longer, whether the head has made rows of them or not."""
    runner, head = opened(model, either)
    pairs = not isinstance(head, BlockHead)
    text, found = PROMPTS[0][:40], []
    for longer in (True, False):
        sequence = runner.open("text", 120)
        read(runner, sequence, text[:LATE] if longer else text[: min(kept, LATE)], 0)
        if longer:
            read(runner, sequence, text[LATE:], ALL_ROWS)
            if made:
                drafts(runner, head, sequence)
            rows = sequence.cache.reachable(kept)
            assert kept - rows == int(pairs and made and kept > LATE)
            if copied:
                sequence = runner.fork(sequence, rows)
            runner.rewind(sequence, rows)
            read(runner, sequence, [*text[rows:kept], 3, 4, 5], ALL_ROWS)
        else:
            read(runner, sequence, [*text[LATE:kept], 3, 4, 5], ALL_ROWS)
        found.append(drafts(runner, head, sequence))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Whimsical(Budget):
    """Follows, or not, and drafts, or not, by chance."""

    def __init__(self, seed: int) -> None:
        super().__init__(Eagle3("folder"))
        self._rng = random.Random(seed)
        self._on = True

    def shapes(self, samples: Sequence[DraftingSample], room: Sequence[int]) -> list[Widths]:
        self._on ^= self._rng.random() < 0.05
        return [(1,) * min(self._rng.choice([0, 1, 3]), most) for most in room]

    def follows(self, sample: DraftingSample) -> int:
        return self._rng.choice([ALL_ROWS, FEW_ROWS]) if self._on else 0


def whimsical(model: Path, head: Path, seed: int, **options: Any) -> LLM:
    llm = load(model, speculative_config=method_of(head), **options)
    llm.budget = llm.loop.budget = Whimsical(seed)
    return llm


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options", [{}, {"max_num_seqs": 4, "kv_cache_bytes": 230_000, "growth": "bmc:rows=8"}], ids=str
)
def test_texts_do_not_depend_on_what_is_followed(
    model: Path, skilled: Path, seed: int, options: dict[str, Any]
) -> None:
    """Greedy tokens are those without drafts; with little memory requests wait in between."""
    plain = load(model).generate(PROMPTS[:4], GREEDY)
    llm = whimsical(model, skilled, seed, **options)
    found = llm.generate(PROMPTS[:4], GREEDY)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    assert sum(each.speculation.num_accepted_tokens for each in found) > 0
    assert (llm.loop.stats().preemptions > 0) == bool(options)
    assert runner_of(llm).arena.used == 0


@pytest.mark.parametrize("seed", range(3))
def test_beginnings_and_turns_that_were_followed_in_parts(
    model: Path, skilled: Path, seed: int, tmp_path: Path
) -> None:
    """From other texts' rows, from disk, and in a session that takes turns back."""
    plain = load(model)
    llm = whimsical(model, skilled, seed, prefix_dir=str(tmp_path))
    llm.loop.retained.least = 8
    ahead = [*PROMPTS[0][:40], 9, 8, 7]
    params = dataclasses.replace(GREEDY, max_tokens=16)
    for prompt in (PROMPTS[0], ahead, [*ahead, 4], PROMPTS[0], PROMPTS[1], [*PROMPTS[1][:50], 6]):
        request = llm.maker.make(prompt, params, reuse=True)
        run(llm, [request])
        (wanted,) = plain.generate([prompt], params)
        assert request.output().outputs == wanted.outputs
    with llm.session() as session, plain.session() as other:
        prompt = PROMPTS[2][:20]
        for turn in range(4):
            one = list(session.stream(prompt, params))[-1][1]
            two = list(other.stream(prompt, params))[-1][1]
            assert one.outputs == two.outputs
            prompt = [*session.tokens, 8] if turn % 2 else [*session.tokens[:-10], 7]
