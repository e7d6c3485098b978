"""Heads of DFlash and DSpark, trained in PyTorch until they know a tiny model's answers."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import block_heads
import heads
from block_heads import BLOCK
from suffice import LLM, SamplingParams
from suffice.backends.cpu.linear import unpack_rows
from suffice.cache.with_head import CacheWithHead
from suffice.engine.runner import Runner

STEPS, RATE = 80, 5e-3
DRAWN = 200  # answers to the first prompt that are drawn, at temperature 1
_GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


def trained(
    llm: LLM,
    model: Path,
    prompts: list[list[int]],
    folder: Path,
    kind: ModuleType = block_heads,
) -> Path:
    """Return the folder of a head that knows the answers of `llm`, which drafts with any head.

    To the first prompt it knows those, too, that are drawn. `kind` makes such heads.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    runner = llm.runner
    assert isinstance(runner, Runner)
    config = kind.fields(model)
    weights = kind.random_weights(config, 1)
    texts = [_text(llm, prompt) for prompt in prompts]
    table = _rows(runner, "embed" if runner.decoder.config.tied else "head")
    for each in weights.values():
        each.requires_grad_()
    reference = kind.Reference(config, weights, table)
    optimizer = torch.optim.Adam(weights.values(), RATE)
    embed = _rows(runner, "embed")
    drawn, begins = _drawn(llm, prompts[0]), torch.full((DRAWN,), len(prompts[0]))
    for _ in range(STEPS):
        losses = [
            _loss(reference, embed, *text, begin=len(prompt))
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        losses.append(_loss_of(reference, embed, texts[0][1][: begins[0]], drawn, begins))
        loss = torch.stack(losses).sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return heads.write(folder, config, {name: each.detach() for name, each in weights.items()})


def _text(llm: LLM, prompt: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a prompt and its answer, and the hidden states [T, H] of all of these tokens."""
    runner: Any = llm.runner
    (found,) = llm.generate([prompt], _GREEDY)
    tokens = [*prompt, *found.outputs[0].token_ids]
    sequence = runner.open("text", len(tokens))
    runner.prefill(sequence, tokens)
    cache: CacheWithHead = sequence.cache
    hidden = torch.from_numpy(np.stack(cache._hidden))
    runner.close(sequence)
    return torch.tensor(tokens), hidden


def _drawn(llm: LLM, prompt: list[int]) -> torch.Tensor:
    """Return the first tokens [DRAWN, BLOCK] of answers that are drawn."""
    params = [
        SamplingParams(temperature=1.0, top_k=5, max_tokens=BLOCK, seed=seed, ignore_eos=True)
        for seed in range(5000, 5000 + DRAWN)
    ]
    found = llm.generate([prompt] * DRAWN, params)
    return torch.tensor([each.outputs[0].token_ids for each in found])


def _loss(
    reference: block_heads.Reference,
    embed: torch.Tensor,
    tokens: torch.Tensor,
    hidden: torch.Tensor,
    *,
    begin: int,
) -> torch.Tensor:
    """Return the loss of a block after each of the tokens from `begin` on."""
    starts = torch.arange(begin, len(tokens) - BLOCK + 1)
    blocks = tokens[starts[:, None] + torch.arange(BLOCK)]
    return _loss_of(reference, embed, hidden, blocks, starts)


def _loss_of(
    reference: block_heads.Reference,
    embed: torch.Tensor,
    hidden: torch.Tensor,
    blocks: torch.Tensor,
    starts: torch.Tensor,
) -> torch.Tensor:
    """Return the loss of blocks of tokens [A, B] after the text before `starts` [A]."""
    logits = reference.after(hidden, embed, blocks, starts)
    wanted = blocks[:, 1:].flatten()
    return functional.cross_entropy(logits.flatten(0, 1), wanted)


def _rows(runner: Runner, name: str) -> torch.Tensor:
    matrix = runner.decoder.matrix(name)
    return torch.from_numpy(unpack_rows(matrix, list(range(matrix.rows))))
