"""Roundings of keys that are kept from one start to the next."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from suffice import LLM
from suffice.decoder import stored_rounding
from suffice.decoder.key_rounding import KeyRounding, key_rounding
from suffice.decoder.stored_rounding import stored
from suffice.engine import techniques


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(stored_rounding, "folder", lambda: tmp_path / "kept")
    return tmp_path / "kept"


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each fit of a model."""
    found: list[Any] = []

    def noted(*given: Any) -> KeyRounding:
        found.append(given)
        return key_rounding(*given)

    monkeypatch.setattr(techniques, "key_rounding", noted)
    return found


def some(seed: int = 0) -> KeyRounding:
    random = np.random.default_rng(seed)
    shapes = (2, 1, 8), (2, 1, 8), (2, 1, 8, 8), (2, 1, 8)
    return KeyRounding(*(random.random(shape, np.float32) for shape in shapes))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 99
    path.write_bytes(data)


def never() -> KeyRounding:
    raise AssertionError("it is stored")


def test_what_was_fitted_is_read_bit_for_bit(folder: Path) -> None:
    first, again = stored("a", some), stored("a", never)
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(stored("b", lambda: some(1)).scales, first.scales)
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(b"no archive"),
        lambda path: flip(path, 0),
        lambda path: flip(path, 300),
        lambda path: flip(path, path.read_bytes().index(b"PK\x01\x02") + 10),
    ],
    ids=["empty", "cut", "other", "digest", "data", "method"],
)
def test_a_damaged_file_is_fitted_again(folder: Path, spoil: Callable[[Path], None]) -> None:
    expected = stored("a", some)
    (path,) = folder.iterdir()
    spoil(path)
    assert all(map(np.array_equal, stored("a", some), expected))
    assert all(map(np.array_equal, stored("a", never), expected))


def test_a_folder_that_cannot_be_written_is_done_without(folder: Path) -> None:
    folder.write_text("a file")
    assert np.array_equal(stored("a", some).means, some().means)


def test_the_newest_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rounding, "KEPT", 2)
    for at, name in enumerate("abc"):
        before = set(folder.glob("*"))
        stored(name, some)
        for path in set(folder.glob("*")) - before:
            os.utime(path, (at, at))
    stored("c", never)
    assert len(list(folder.iterdir())) == 2
    with pytest.raises(AssertionError):
        stored("a", never)


def test_a_second_start_fits_nothing_and_answers_alike(
    tmp_path: Path, folder: Path, fits: list[Any]
) -> None:
    model = tiny.make(tmp_path / "model", "llama", tokenizer=True)
    prompts = ["a b c d e f g", "1 2 3"]
    answers = [LLM(model, kv_cache_dtype="kmeans4").generate(prompts) for _ in range(2)]
    assert len(fits) == 1
    texts = [[each.outputs[0].token_ids for each in answer] for answer in answers]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "options", [{"quantization": "int8"}, {"max_model_len": 77}, {"dtype": "float32"}]
)
def test_another_way_to_run_it_is_fitted_anew(
    tmp_path: Path, folder: Path, fits: list[Any], options: dict[str, Any]
) -> None:
    model = tiny.make(tmp_path / "model", "llama", tokenizer=True)
    LLM(model, kv_cache_dtype="kmeans4")
    LLM(model, kv_cache_dtype="planes", **options)
    assert len(fits) == 2
    LLM(model, kv_cache_dtype="planes", **options)
    assert len(fits) == 2


def test_another_model_s_is_not_taken(tmp_path: Path, folder: Path, fits: list[Any]) -> None:
    for seed in range(2):
        LLM(
            tiny.make(tmp_path / str(seed), "llama", tokenizer=True, seed=seed),
            kv_cache_dtype="kmeans4",
        )
    assert len(fits) == 2
