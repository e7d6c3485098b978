"""Tests of states.py, native_states.py and torch_states.py: layers that keep states.

Whatever was run, drafted, dropped, kept, cut back or copied before: the next token's logits are
those of one pass over the tokens that are committed, bit for bit.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from caches import cache_for
from suffice.cache.kv import LEAST_COPIES
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.config import DecoderConfig
from suffice.decoder.native_model import NativeModel
from suffice.decoder.states import Convolution, Recurrence
from suffice.decoder.step_rows import StepRows
from suffice.errors import InputError
from suffice.native import core
from suffice.quant.none import NoQuant
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.quantize.torch_states import TorchState
from suffice.trace import Reads, Trace

LIMIT = 160
each_variant = pytest.mark.parametrize("variant", tiny.STATEFUL)


def loaded(folder: Path) -> TorchDecoder:
    return TorchDecoder.from_checkpoint(open_checkpoint(folder), NoQuant("float32"))


# What may happen to a request, and how often.
ACTS = {"prompt": 1, "token": 2, "draft": 3, "drop": 2, "keep": 2, "cut": 2, "fork": 1}


class Request:
    """A cache, and the tokens that it should have."""

    def __init__(self, decoder: TorchDecoder, model: NativeModel | None = None) -> None:
        self.decoder, self.model = decoder, model or NativeModel(decoder, LIMIT)
        self.cache = cache_for(decoder, growth="upfront", limit=LIMIT)
        self.cache.reserve(LIMIT)
        self.tokens: list[int] = []

    def run(self, tokens: list[int], *, prompt: bool) -> np.ndarray:
        """Run tokens that are kept; return their logits [T, V]."""
        rows = StepRows(self.cache, tokens, outputs=None, exact=prompt, counted=not prompt)
        logits = self.model.step([rows])
        self.cache.commit(list(range(len(tokens))))
        self.tokens += tokens
        return logits

    def draft(self, chance: random.Random) -> np.ndarray:
        """Run a tree of drafts and keep a branch, or its beginning; return the logits of that."""
        count, far = chance.randint(2, 9), chance.randint(1, 4)
        parents = [-1, *(chance.randrange(max(at - far, 0), at) for at in range(1, count))]
        drawn, path = draw(chance, count), [chance.randrange(count)]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        logits = self.model.step([StepRows(self.cache, drawn, parents, outputs=None)])
        self.cache.commit(path)
        self.tokens += [drawn[at] for at in path]
        return logits[path]

    def drop(self, chance: random.Random) -> None:
        """Run drafts, and keep none."""
        self.model.step([StepRows(self.cache, draw(chance, 3), outputs=1)])
        self.cache.rollback()

    def go_back(self, chance: random.Random, act: str) -> None:
        """Go on from fewer tokens, in this cache or in a copy."""
        asked = chance.randint(len(self.tokens) // 2, len(self.tokens))
        rows = self.cache.reachable(asked)
        assert rows <= asked
        if act == "cut":
            self.cache.truncate(rows)
        else:
            self.cache = self.cache.fork(rows)
        del self.tokens[rows:]

    def act(self, chance: random.Random) -> None:
        """Do something at random; what is run has the logits of one pass."""
        (act,) = chance.choices([*ACTS], [*ACTS.values()])
        if act == "keep":
            self.cache.keep_state()
        elif act == "drop":
            self.drop(chance)
        elif act in ("cut", "fork"):
            self.go_back(chance, act)
        elif act == "draft":
            self.check(self.draft(chance))
        else:
            prompt = act == "prompt"
            self.check(
                self.run(draw(chance, chance.randint(1, 12) if prompt else 1), prompt=prompt)
            )

    def check(self, logits: np.ndarray) -> None:
        """The last tokens' logits are those of one pass over all tokens."""
        expected = Request(self.decoder, self.model).run(list(self.tokens), prompt=True)
        assert np.array_equal(logits, expected[-len(logits) :])


def draw(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(3, tiny.VOCABULARY) for _ in range(count)]


def law(decoder: TorchDecoder, seed: int) -> None:
    chance, request = random.Random(seed), Request(decoder)
    request.run(draw(chance, chance.randint(1, 40)), prompt=True)
    for _ in range(40):
        if len(request.tokens) > LIMIT - 20:
            break
        request.act(chance)
    request.check(request.run(draw(chance, 1), prompt=False))


@each_variant
def test_what_happened_before_does_not_show(each_isa: str, variant: str, checkpoints: Any) -> None:
    decoder = loaded(checkpoints(variant))
    for seed in range(10):
        law(decoder, seed)


BROKEN: dict[str, Any] = {
    "another draft": lambda self, path: _genuine(self, list(range(len(path) - 1, -1, -1))),
    "one draft less": lambda self, path: _genuine(self, path[:-1] or path[:1]),
    "the step before": lambda self, path: None,
}
_genuine = core.KVCache.commit_states


@each_variant
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_commit_would_show(
    broken: str, variant: str, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core.KVCache, "commit_states", BROKEN[broken])
    decoder = loaded(checkpoints(variant))
    with pytest.raises((AssertionError, ValueError)):  # the core knows how many tokens it took
        for seed in range(8):
            law(decoder, seed)


@each_variant
def test_the_core_is_the_reference(each_isa: str, variant: str, checkpoints: Any) -> None:
    decoder = loaded(checkpoints(variant))
    tokens = draw(random.Random(1), 70)
    cache = cache_for(decoder, growth="upfront", limit=LIMIT)
    parts = [
        decoder.forward(torch.tensor(tokens[first:last]), cache, logits="all")
        for first, last in ((0, 13), (13, 14), (14, 70))
    ]
    expected = np.concatenate([part.numpy() for part in parts if part is not None])
    found = Request(decoder).run(tokens, prompt=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


def test_copies_are_thinned_out_from_the_oldest(checkpoints: Any) -> None:
    request = Request(loaded(checkpoints("qwen3.5")))
    for _ in range(30):
        request.run([7, 8, 9], prompt=True)
        request.cache.keep_state()
    kept = request.cache.native.kept_states
    assert LEAST_COPIES <= len(kept) <= LEAST_COPIES + 1 and kept[-1] == 90
    gaps = np.diff(kept)
    assert (gaps[1:] <= gaps[:-1]).all(), "the last ones are the closest"


def test_a_short_prompt_keeps_the_least(checkpoints: Any) -> None:
    """Its rows take less memory than one state."""
    request = Request(loaded(checkpoints("qwen3.5")))
    for _ in range(LEAST_COPIES + 3):
        request.run([7], prompt=True)
        request.cache.keep_state()
    assert request.cache.held_bytes < 2 * request.cache.native.state_bytes
    assert len(request.cache.native.kept_states) == LEAST_COPIES


def test_a_length_that_was_not_kept(checkpoints: Any) -> None:
    request = Request(loaded(checkpoints("lfm2")))
    request.run([7] * 10, prompt=True)
    request.cache.keep_state()
    request.run([8] * 10, prompt=True)
    assert [request.cache.reachable(rows) for rows in (25, 20, 19, 10, 9)] == [20, 20, 10, 10, 0]
    with pytest.raises(InputError, match="cannot truncate to 19 tokens: of the states before that"):
        request.cache.truncate(19)
    assert request.cache.length == 20
    for _ in range(2):
        request.cache.keep_state()
        request.run([9] * 5, prompt=True)
    assert request.cache.native.kept_states == [10, 20, 25]
    request.cache.truncate(10)
    assert request.cache.native.kept_states == [10], "the longer ones are of other tokens"


@pytest.mark.parametrize("variant", ["bamba", "lfm2"])
def test_bytes(variant: str, checkpoints: Any) -> None:
    """A step's bytes are those of the reference's state, in float32."""
    decoder = loaded(checkpoints(variant))
    request = Request(decoder)
    sizes = []
    for block in decoder.config.states:
        state = TorchState.empty(block, torch.zeros(1))
        sizes += [4 * part.numel() for part in (state.inputs, state.matrices) if part is not None]
    assert request.cache.native.state_bytes == sum(sizes)
    request.run([7] * 10, prompt=True)
    assert request.cache.held_bytes == 10 * request.cache.row_bytes


def test_a_step_moves_each_request_s_states_once(checkpoints: Any) -> None:
    """Drafts cost no more, prompts are not counted, and two requests are two."""
    decoder = loaded(checkpoints("qwen3.5"))
    one, other = Request(decoder), Request(decoder)
    size, trace = one.cache.native.state_bytes, Trace(len(decoder.config.cached), 2)
    batch = [
        StepRows(one.cache, [5, 6, 7], outputs=1),
        StepRows(other.cache, [5] * 40, outputs=1, exact=True, counted=False),
    ]
    reads: list[Reads] = []
    one.model.step(batch, trace, reads=reads)
    assert [own.state_bytes_moved for own in reads] == [2 * size, 0]
    one.cache.commit([0])
    other.cache.commit(list(range(40)))
    both = [StepRows(each.cache, [8], outputs=1) for each in (one, other)]
    one.model.step(both, trace)
    assert trace.state_bytes_moved == trace.plain()["state_bytes_moved"] == 3 * 2 * size
    assert trace.copy().since(trace).state_bytes_moved == 0
    assert "state_bytes_moved" not in Trace(1, 1).plain()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Convolution(40, 3), "hidden_size = 40 is not supported; supported: multiples"),
        (lambda: Convolution(48, 65), "a convolution of 65 taps is not supported; allowed: 1..64"),
        (lambda: recurrence(heads=6), "6 heads of a recurrence must be a multiple of its 4 groups"),
        (lambda: recurrence(heads=0), "a recurrence of 0 heads; allowed: 1 or more"),
        (lambda: recurrence(key_size=528), "size of a state's keys = 528 is not supported"),
        (lambda: recurrence(taps=0), "a convolution of 0 taps is not supported"),
    ],
)
def test_sizes_that_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def recurrence(**sizes: Any) -> Recurrence:
    order = ("queries", "keys", "values")
    given = {"heads": 8, "key_heads": 4, "key_size": 32, "value_size": 32, "taps": 4, **sizes}
    flags = {"corrects": True, "shared_norm": True, "gates_first": False}
    return Recurrence(64, **given, **flags, order=order, norm_size=0, norm_eps=1e-6)


def test_a_decoder_of_states_alone_is_refused(checkpoints: Any) -> None:
    config: DecoderConfig = open_checkpoint(checkpoints("lfm2")).config
    layers = tuple(layer for layer in config.layers if layer.keeps_state)
    with pytest.raises(InputError, match="a decoder without a layer of attention is not supported"):
        DecoderConfig(**{**config.__dict__, "layers": layers})
