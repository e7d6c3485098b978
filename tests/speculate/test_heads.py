"""What heads of EAGLE-3 compute, next to PyTorch; their files. Tests heads.py, draft_heads.py.

Also tests torch_head.py and with_head.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import heads
import tiny
from engines import sharing
from oracle import assert_matches
from suffice import LLM
from suffice.backends.cpu.linear import unpack_rows
from suffice.cache.with_head import CacheWithHead
from suffice.checkpoints.draft_heads import open_head
from suffice.checkpoints.open import open_checkpoint
from suffice.engine.heads import Head
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.train.torch_head import TorchHead

PROMPT = [(7 * i + 13) % 190 + 3 for i in range(75)]
load = sharing(threads=2, dtype="float32")


def with_head(model: Path, head: Path, **options: Any) -> LLM:
    speculator = {"method": "eagle3", "model": str(head), "adaptive": False}
    return load(model, speculative_config=speculator, **options)


def parts(llm: LLM) -> tuple[Runner, Head]:
    assert isinstance(llm.runner, Runner) and llm.runner.head is not None
    return llm.runner, llm.runner.head


class Kept(TorchDecoder):
    """Keeps what every layer reads, and what the last one gives."""

    streams: list[torch.Tensor]

    def _layer(self, index: int, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        self.streams = [*(self.streams if index else []), x]
        y = super()._layer(index, x, *rest)
        return y


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("model"), "llama", tokenizer=True)


@pytest.mark.parametrize("variant", ["llama", "gemma3", "qwen3_moe"])
@pytest.mark.parametrize("threads", [1, 2])
def test_hidden_states_are_those_of_the_layers(
    tmp_path: Path, variant: str, threads: int
) -> None:
    folder = tiny.make(tmp_path / "model", variant, tokenizer=True)
    llm = load(folder, threads=threads)
    runner = llm.runner
    assert isinstance(runner, Runner)
    layers = [0, 1, len(runner.decoder.config.layers)]
    head = heads.make(tmp_path / "head", folder, eagle_aux_hidden_state_layer_ids=layers)
    runner, _ = parts(with_head(folder, head, threads=threads))
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPT[:9])  # few rows, many, and few: each has its own way
    sequence.cache.reserve(66)
    runner.prefill(sequence, PROMPT[9:])
    found = [_waiting(sequence.cache)]
    exact, plain = (
        _streams(TorchDecoder(runner.decoder.config, runner.decoder.weights), layers, dtype)
        for dtype in (torch.float64, torch.float32)
    )
    assert_matches(np.concatenate(found), exact, plain)
    runner.close(sequence)


def _waiting(cache: Any) -> np.ndarray:
    assert isinstance(cache, CacheWithHead)
    return np.stack(cache._hidden)
