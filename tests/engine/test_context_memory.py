"""A context that no text could fill is refused before anything is loaded; `info` says what fits."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from commands import Cli
from engines import sharing
from suffice.checkpoints.open import open_model
from suffice.decoder.names import weight_count
from suffice.decoder.weights import DecoderWeights
from suffice.engine import context_memory
from suffice.engine.context_memory import (
    TYPES,
    fitting,
    in_words,
    machine_bytes,
    row_bytes,
    types_for,
)
from suffice.errors import InputError

load = sharing(threads=1, dtype="float32")


@pytest.fixture(scope="module", params=["llama", "deepseek-v2", "qwen3.5", "gemma4"])
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    made = tmp_path_factory.mktemp(request.param)
    return tiny.make(made, request.param, tokenizer=True, max_position_embeddings=40_000)


def test_a_row_has_the_bytes_that_the_engine_takes(folder: Path) -> None:
    model = open_model(str(folder)).config
    for dtype in ("float32", *types_for(model), *(() if model.joint else ("int8/kmeans4",))):
        runner = load(folder, kv_cache_dtype=dtype).runner
        cache = runner.open("", 64).cache
        heads = sum(rows.heads for rows in model.rows if rows.shares is None)
        errors = 2 * heads if dtype == "planes" else 0
        assert row_bytes(model, dtype) + errors == cache.row_bytes


def test_a_context_that_cannot_fit_is_refused_with_the_number(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = row_bytes(open_model(str(folder)).config, "float32")
    read = []
    monkeypatch.setattr(DecoderWeights, "from_checkpoint", lambda *given: read.append(given))
    with pytest.raises(InputError, match="must be at most 1000: a text of 20000 tokens has"):
        load(folder, max_model_len=20_000, kv_cache_bytes=1000 * row)
    monkeypatch.setattr(context_memory, "machine_bytes", lambda: 5000 * row + 7)
    with pytest.raises(InputError) as error:
        load(folder, max_model_len=20_000)
    assert str(error.value).startswith("max_model_len=20000: must be at most 5000: a text of")
    assert "of keys and values as float32 (as bfloat16 " in str(error.value)
    assert str(error.value).endswith("are all there is for them")
    assert not read, "before anything is loaded"


def test_what_fits_is_not_refused(folder: Path) -> None:
    row = row_bytes(open_model(str(folder)).config, "float32")
    assert load(folder, max_model_len=1000, kv_cache_bytes=1000 * row).config.max_model_len == 1000
    # The model's own context may be longer than any text that comes.
    assert load(folder, kv_cache_bytes=1000 * row).config.max_model_len == 40_000


def test_the_type_that_fits_is_the_nearest_to_exact(folder: Path) -> None:
    model = open_model(str(folder)).config
    types = types_for(model)
    assert types == (("bfloat16", "int8") if model.joint or not model.alike else TYPES)
    rooms = [(32_000 * row_bytes(model, each) + 999, each) for each in types]
    for room, dtype in rooms:
        found = fitting(32_000, model, 999, room)
        assert found is not None and row_bytes(model, found) <= row_bytes(model, dtype)
        assert fitting(32_000, model, 1000, room) != dtype, "a byte less is too little"
    assert fitting(32_000, model, 2 * rooms[0][0], rooms[0][0]) is None


def test_the_memory_is_what_a_control_group_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_memory, "_CGROUP", tmp_path / "max")
    whole = machine_bytes()
    (tmp_path / "max").write_text("max\n")
    assert machine_bytes() == whole
    (tmp_path / "max").write_text("12345\n")
    assert machine_bytes() == 12345


def test_info_says_what_long_texts_take(cli: Cli, folder: Path) -> None:
    said = cli("info", "-m", str(folder)).out
    model = open_model(str(folder)).config
    size = in_words(32_768 * row_bytes(model, "bfloat16"))
    assert f"32768 tokens     {size} bfloat16, " in said
    assert "--kv-cache-dtype bfloat16 fits into" in said and "131072 tokens" not in said
    assert "long prompts     --attention tiers:eps=0,skip=0,prompt=0.03 reads fewer keys" in said
    assert "long prompts" not in cli("info", "-m", str(folder), "-c", "8191").out


def test_info_says_whether_a_length_fits_into_a_memory(cli: Cli, folder: Path) -> None:
    model = open_model(str(folder)).config
    size = in_words(1000 * row_bytes(model, "bfloat16"))
    said = cli("info", "-m", str(folder), "-c", "1000", "--memory", "1GiB").out
    assert f"1000 tokens      {size} bfloat16, " in said and "32768 tokens" not in said
    assert "--kv-cache-dtype bfloat16 fits into 1 GiB" in said
    *_, least = types_for(model)
    said = cli("info", "-m", str(folder), "-c", "1000", "--memory", "9").out
    assert f"none fits into 9 bytes, weights included: at most 0 tokens as {least} do" in said
    row = row_bytes(model, least)
    weights = 2 * weight_count(model)
    said = cli("info", "-m", str(folder), "-c", "1000", "--memory", str(weights + 900 * row)).out
    assert f"at most 900 tokens as {least} do" in said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("-m", "MODEL", "-c", "0"), "-c 0: must be at least 1 token"),
        (("-m", "MODEL", "-c", "999999"), "the model's context"),
        (("-m", "MODEL", "--memory", "5x"), "must be a positive number of bytes, such as 4GiB"),
        (("-c", "5"), "--ctx-size and --memory are about a model: give -m"),
    ],
)
def test_info_refuses(cli: Cli, folder: Path, given: tuple[str, ...], message: str) -> None:
    ran = cli("info", *(str(folder) if each == "MODEL" else each for each in given))
    assert ran.code == 2 and message in ran.err and ran.err.count("\n") == 1
