"""The laws of the policy seam, over every registered policy; each is shown to bite."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import policy_models
import tiny
from oracle import max_error
from pairs import pairwise
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner, Sequence
from suffice.policy import POLICIES
from suffice.policy.snapkv import SnapKV
from suffice.policy.streaming import Streaming

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT, STEPS = 300, 40
TOKENS = np.random.default_rng(5).integers(1, 200, 2 * PROMPT).tolist()
VARIANTS = {"llama": {}, "gemma3": {"sliding_window": 48}}


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Callable[[Any], Runner]]:
    """Runners of a tiny model by its variant and policy."""
    folders: dict[str, Path] = {}

    def of(variant: str) -> Callable[[Any], Runner]:
        if variant not in folders:
            folders[variant] = tiny.make(
                tmp_path_factory.mktemp(variant),
                variant,
                tokenizer=True,
                max_position_embeddings=1024,
                **VARIANTS[variant],
            )

        def make(policy: Any) -> Runner:
            config = Config.create(
                folders[variant], policy="full", threads=1, growth="step:rows=32", dtype="float32"
            )
            return load(dataclasses.replace(config, policy=policy))[1]

        return make

    return of


Make = Callable[[Any], Runner]


def prompted(runner: Runner, count: int = PROMPT) -> Sequence:
    sequence = runner.open("a", 1024)
    runner.prefill(sequence, TOKENS[:count])
    return sequence


def decoded(runner: Runner, sequences: list[Sequence], steps: int = STEPS) -> np.ndarray:
    """Logits [steps, B, V] of more tokens, the same for all."""
    rows = []
    for token in TOKENS[PROMPT : PROMPT + steps]:
        for sequence in sequences:
            runner.reserve(sequence)
        rows.append(runner.step(sequences, [token] * len(sequences)))
    return np.stack(rows)


def free_layers(runner: Runner) -> list[int]:
    return [layer for layer, window in enumerate(runner.windows) if window is None]


def full() -> Any:
    return POLICIES.build("full")


def exact_at_the_limit(policy: Any, make: Make) -> None:
    limit, exact = (make(each) for each in (policy.exact_limit(), full()))
    found = decoded(limit, [prompted(limit)])
    assert max_error(found, decoded(exact, [prompted(exact)])) < 1e-4


def a_batch_equals_its_requests(policy: Any, make: Make) -> None:
    runner = make(policy)
    counts = (PROMPT, 170, 2)
    alone = [decoded(runner, [prompted(runner, count)])[:, 0] for count in counts]
    together = decoded(runner, [prompted(runner, count) for count in counts])
    for i, each in enumerate(alone):
        assert np.array_equal(each, together[:, i])


def a_chain_equals_its_tokens(policy: Any, make: Make) -> None:
    runner = make(policy)
    singly = decoded(runner, [prompted(runner)])[:, 0]
    sequence = prompted(runner)
    chains = []
    for first in range(0, STEPS, 8):
        runner.reserve(sequence, 8)
        at = PROMPT + first
        chains.append(runner.advance([sequence], [TOKENS[at : at + 8]]))
    assert np.array_equal(np.concatenate(chains), singly)


def a_fork_goes_on_alike(policy: Any, make: Make) -> None:
    runner = make(policy)
    sequence = prompted(runner)
    decoded(runner, [sequence], 5)
    fork = runner.fork(sequence)
    first = decoded(runner, [sequence], 20)
    assert np.array_equal(decoded(runner, [fork], 20), first)


def what_is_evicted_is_freed(policy: Any, make: Make) -> None:
    runner, exact = make(policy), make(full())
    sequence, whole = prompted(runner).cache, prompted(exact).cache
    held = [sequence.held(layer) for layer in range(sequence.layers)]
    if not policy.evicts:
        assert held == [PROMPT] * sequence.layers
        return
    assert sequence.bytes < whole.bytes
    assert runner.arena.used == sequence.bytes
    free = free_layers(runner)
    assert sum(held[layer] for layer in free) <= (policy.tokens(PROMPT) + 1) * len(free)
    for layer, window in enumerate(runner.windows):
        assert window is None or held[layer] <= window
    sequence.close()
    assert runner.arena.used == 0 == sequence.bytes


def rows_are_counted(policy: Any, make: Make) -> None:
    runner, exact = make(policy), make(full())
    for each in (runner, exact):
        decoded(each, [prompted(each)])
    assert (runner.trace.rows[2] == exact.trace.rows[2]).all()
    assert (runner.trace.rows[:2] <= exact.trace.rows[:2]).all()
    assert runner.trace.kv_bytes_held == exact.trace.kv_bytes_held
    for layer in free_layers(runner):
        read, held = (int(runner.trace.rows[i, layer].sum()) for i in (0, 2))
        assert read < 0.7 * held if policy.evicts else read <= held


def what_does_not_evict_loses_nothing(policy: Any, make: Make) -> None:
    """A second question that replaces an answer gets the same tokens as with `full`."""
    if policy.evicts:
        return
    runner, exact = make(policy), make(full())
    found = []
    for each in (runner, exact):
        sequence = prompted(each)
        decoded(each, [sequence], 5)
        assert sequence.cache.held(free_layers(each)[0]) == sequence.cache.length
        sequence.cache.truncate(PROMPT - 20)
        found.append(each.prefill(sequence, TOKENS[:70]))
    assert np.array_equal(*found)


class KeepsHalf(SnapKV):
    @classmethod
    def exact_limit(cls) -> KeepsHalf:
        return cls(ratio=0.5)


class OnlyHides(SnapKV):
    def after_prompt(self, cache: Any, windows: Any, watch: Any) -> None:
        pass


class CountsRequests(Streaming):
    requests = 0

    def after_prompt(self, cache: Any, windows: Any, watch: Any) -> None:
        CountsRequests.requests += 1
        tokens = 30 + 10 * CountsRequests.requests
        Streaming(budget=tokens).after_prompt(cache, windows, watch)


class CountsSteps(Streaming):
    one_by_one = False  # type: ignore[assignment]

    def after_step(self, cache: Any) -> None:
        cache.steps = getattr(cache, "steps", 0) + 1
        for layer in range(cache.layers):
            cache.set_visible(layer, recent=100 - cache.steps)


class ForgetsForks(Streaming):
    known: ClassVar[Any] = weakref.WeakSet()

    def after_prompt(self, cache: Any, windows: Any, watch: Any) -> None:
        self.known.add(cache)

    def after_step(self, cache: Any) -> None:
        for layer in range(cache.layers):
            cache.set_visible(layer, recent=200 if cache in self.known else 20)


class SaysItKeeps(SnapKV):
    evicts = False  # type: ignore[assignment]


LAWS: list[tuple[Callable[[Any, Make], None], Callable[[], Any]]] = [
    (exact_at_the_limit, KeepsHalf),
    (a_batch_equals_its_requests, CountsRequests),
    (a_chain_equals_its_tokens, CountsSteps),
    (a_fork_goes_on_alike, ForgetsForks),
    (what_is_evicted_is_freed, OnlyHides),
    (rows_are_counted, OnlyHides),
    (what_does_not_evict_loses_nothing, SaysItKeeps),
]
SETTINGS = [*POLICIES.names(), *policy_models.SETTINGS]


@pytest.mark.parametrize(
    ("law", "setting", "variant"),
    pairwise([law for law, _ in LAWS], SETTINGS, VARIANTS),
)
def test_law(law: Any, setting: str, variant: str, runners: Any) -> None:
    law(POLICIES.build(setting), runners(variant))


@pytest.mark.parametrize(("law", "broken"), LAWS, ids=lambda part: part.__name__)
def test_law_bites(law: Any, broken: Callable[[], Any], runners: Any) -> None:
    with pytest.raises(AssertionError):
        law(broken(), runners("llama"))
