"""Keys of GGUF files of Gemma 4 that contradict each other: gguf_gemma4.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gguf_families
import tiny
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope.dimension_count": 8}, "'gemma4.rope.dimension_count' = 8"),
        ({"rope.dimension_count_swa": 8}, "'gemma4.rope.dimension_count_swa' = 8"),
        ({"attention.value_length_swa": 32}, "'gemma4.attention.value_length_swa' = 32"),
        ({"attention.head_count_kv": [2, 2]}, "'gemma4.attention.head_count_kv' = [2, 2]"),
        ({"attention.head_count_kv": [2, 1, 1, 1, 2, 1]}, "layers of one kind must have the same"),
        ({"attention.head_count_kv": [2, 1, 2, 1, 2, 0]}, "a whole number of at least 1"),
        ({"feed_forward_length": [96, 96, 192, 192, 192, 192]}, "those of the last 3 layers"),
        ({"attention.key_length_swa": None}, "'gemma4.attention.key_length_swa' = None"),
        ({"attention.shared_kv_layers": 6}, "those of the last 6 layers"),
    ],
)
def test_keys_that_do_not_fit(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny", "gemma4", num_global_key_value_heads=1)
    path = gguf_families.write(folder, tmp_path / "x.gguf", keys=keys)
    with pytest.raises(InputError) as error:
        open_checkpoint(path)
    assert message in str(error.value)
