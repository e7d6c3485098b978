"""Models whose layers attend within chunks of a text: texts of one chunk run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tiny
from suffice import LLM
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError


def test_a_longer_context_than_a_chunk_is_refused(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "a", "llama4-mixed", tokenizer=True)
    assert open_checkpoint(folder).config.max_positions == 96
    message = "max_model_len=97: must not be more than 96, the context length of the model"
    with pytest.raises(InputError, match=re.escape(message)):
        LLM(folder, max_model_len=97)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_chunk_size": None},
        {"layer_types": ["full_attention"] * 4},
        {"attention_chunk_size": 200},
    ],
)
def test_without_chunks_it_is_the_model_s(changes: dict[str, object], tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "a", "llama4-mixed", **changes)
    assert open_checkpoint(folder).config.max_positions == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"no_rope_layers": [1, 0, 2, 1]},
            "config field 'no_rope_layers' = [1, 0, 2, 1] must have one of 0, 1 for each of 4 "
            "layers",
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention"] * 2},
            "must have one of 'chunked_attention', 'full_attention' for each of 4 layers",
        ),
        (
            {"moe_layers": 3},
            "config field 'moe_layers' = 3 must be a list of whole numbers",
        ),
    ],
)
def test_refusals(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "a", "llama4-mixed")
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))
    with pytest.raises(InputError, match=re.escape(message)):
        open_checkpoint(folder)
