"""The decoder in PyTorch against transformers.

Tests of torch_decoder.py, torch_mlps.py and torch_weights.py.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import hf_reference
import tiny
from caches import cache_for
from oracle import assert_matches
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError
from suffice.quant import PackedLinear
from suffice.quant.int8 import Int8
from suffice.quant.none import NoQuant
from suffice.quantize.torch_decoder import TorchDecoder

assert_close = partial(torch.testing.assert_close, rtol=0, atol=3e-4)

TOKENS = torch.randint(0, tiny.VOCABULARY, (40,), generator=torch.Generator().manual_seed(1))


def decoder_of(folder: Path) -> TorchDecoder:
    return TorchDecoder.from_checkpoint(open_checkpoint(folder), NoQuant("float32"))


def run(decoder: TorchDecoder, *chunks: torch.Tensor) -> torch.Tensor:
    cache = cache_for(decoder)
    rows = [decoder.forward(chunk, cache, logits="all") for chunk in chunks]
    return torch.cat([row for row in rows if row is not None])


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_logits_are_those_of_transformers(variant: str, checkpoints: Any) -> None:
    folder, decoder = checkpoints(variant), decoder_of(checkpoints(variant))
    # transformers turns a whole prompt by the frequencies of its length
    decoder = TorchDecoder(decoder.config.fitted(len(TOKENS)), decoder.weights)
    exact, same = hf_reference.exact_and_single(folder, tuple(TOKENS.tolist()))
    whole = run(decoder, TOKENS)
    assert exact.std() > 1, "the logits are too uniform to show a mistake"
    assert_matches(whole, exact, same)

    # in chunks and token by token: the same but for the order of sums, which a wrong mask or
    # position would exceed a thousandfold
    splits = [[TOKENS[:7], TOKENS[7:20], TOKENS[20:]], [TOKENS[:33], *TOKENS[33:].split(1)]]
    for chunks in splits:
        assert_matches(run(decoder, *chunks), exact, same, factor=4)


@pytest.mark.parametrize("variant", ["llama", "gemma3", "opt"])
def test_last_and_no_logits(variant: str, checkpoints: Any) -> None:
    decoder = decoder_of(checkpoints(variant))
    whole = run(decoder, TOKENS)
    cache = cache_for(decoder)
    assert decoder.forward(TOKENS[:-1], cache, logits="none") is None
    assert cache.length == len(TOKENS) - 1
    last = decoder.forward(TOKENS[-1:], cache)
    assert last is not None
    assert_close(last, whole[-1])


@pytest.mark.parametrize("variant", ["llama-bias", "gemma3", "opt-post"])
def test_int8_weights_multiply_what_they_stand_for(variant: str, checkpoints: Any) -> None:
    packed = TorchDecoder.from_checkpoint(open_checkpoint(checkpoints(variant)), Int8())
    dense = {
        name: NoQuant("float32").pack(weight.unpack(), weight.bias)
        if isinstance(weight, PackedLinear) and name != "embed"  # its type rounds Gemma's scale
        else weight
        for name, weight in packed.weights.items()
    }
    assert_close(run(packed, TOKENS), run(TorchDecoder(packed.config, dense), TOKENS))


def test_a_window_hides_older_tokens(checkpoints: Any) -> None:
    decoder = decoder_of(checkpoints("mistral"))
    other = TOKENS.clone()
    other[0] = (other[0] + 1) % tiny.VOCABULARY
    difference = (run(decoder, TOKENS) - run(decoder, other)).abs().amax(-1)
    # three layers of windows of 8 pass a token on by at most 3 * 7 positions
    assert (difference[:8] > 1e-3).all()
    assert (difference[22:] == 0).all()


def test_large_matrices_are_unpacked_in_blocks(
    checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_of(checkpoints("llama-bias"))
    whole = run(decoder, TOKENS)
    monkeypatch.setattr("suffice.quantize.torch_layers._SCRATCH_ELEMENTS", 2 * 16 * 64)
    assert_close(run(decoder, TOKENS), whole)
    packed = TorchDecoder.from_checkpoint(open_checkpoint(checkpoints("llama-bias")), Int8())
    blocks = run(packed, TOKENS)
    monkeypatch.undo()
    assert_close(blocks, run(packed, TOKENS))


def test_the_embedding_scale_is_rounded_to_the_stored_type(checkpoints: Any) -> None:
    checkpoint = open_checkpoint(checkpoints("gemma3"))
    scales = [
        TorchDecoder.from_checkpoint(checkpoint, NoQuant(dtype)).embed_scale
        for dtype in ("float32", "bfloat16")
    ]
    assert scales == [torch.tensor(48**0.5).item(), torch.tensor(48**0.5).bfloat16().item()]
    assert scales[0] != scales[1]


def test_refused_tokens(checkpoints: Any) -> None:
    decoder = decoder_of(checkpoints("opt"))
    with pytest.raises(InputError, match=r"^there is no token to decode; at least 1 is needed$"):
        run(decoder, torch.tensor([], dtype=torch.int64))
    with pytest.raises(InputError, match=r"^token 200 is outside the vocabulary; allowed: 0..199$"):
        run(decoder, torch.tensor([3, 200]))
    with pytest.raises(InputError, match=r"^token -1 is outside the vocabulary"):
        run(decoder, torch.tensor([-1]))
    with pytest.raises(
        InputError, match=r"^129 tokens are more than the model has positions; allowed: 128$"
    ):
        run(decoder, torch.zeros(128, dtype=torch.int64), torch.tensor([1]))
