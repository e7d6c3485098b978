"""Prompts of several lengths in one batch, and greedy generation."""

from __future__ import annotations

from typing import Any

import torch

PADDING = (0, 6, 25)
NEW_TOKENS = 10
GREEDY: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def prompts(batch: int, length: int = 27) -> dict[str, Any]:
    """Prompts of 27, 21 and 2 tokens, padded on the left."""
    tokens = torch.randint(3, 200, (batch, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    for row, padding in zip(range(batch), PADDING, strict=False):
        mask[row, :padding] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask}


def generate(model: Any, batch: int = 3, length: int = 27, **options: Any) -> Any:
    options = {"max_new_tokens": NEW_TOKENS} | options
    return model.generate(**prompts(batch, length), **GREEDY, **options)
