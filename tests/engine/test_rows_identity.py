"""Whose rows are whose: what changes a row leads to other names, and nothing else does."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_disk_prefixes import PARAMS, WHOLE, answered, disk_of, load, tokens
from test_disk_prefixes import always_pays as always_pays
from test_disk_prefixes import folder as folder

import tiny
from adapters import write as write_adapter
from suffice import LLM
from suffice.engine.rows_identity import disk_prefixes
from suffice.errors import InputError


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "int8/bfloat16"},
        {"dtype": "bfloat16"},
        {"quantization": "int8"},
        {"attention": "tiers:eps=0.1"},  # which keeps bases next to the rows
    ],
    ids=str,
)
def test_rows_of_another_setting_are_not_found(
    folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    answered(load(folder, tmp_path), tokens())
    llm = load(folder, tmp_path, **changes)
    other = answered(llm, tokens())
    assert other.num_cached_tokens == disk_of(llm).folder.counts.damaged == 0
    assert other.outputs == answered(load(folder, None, **changes), tokens()).outputs
    assert answered(load(folder, tmp_path, **changes), tokens()).num_cached_tokens == WHOLE


@pytest.mark.parametrize(
    "same",
    [
        {"attention": "aet:keys=0.7"},
        {"max_model_len": 300},
        {"prefill_chunk": 40},
        {"growth": "upfront"},
        {"threads": 2},
        {"speculative_config": "ngram"},
    ],
    ids=str,
)
def test_what_changes_no_row_does_not_matter(
    folder: Path, tmp_path: Path, same: dict[str, Any]
) -> None:
    if same.get("threads", 1) > len(os.sched_getaffinity(0)):
        pytest.skip("one core")
    answered(load(folder, tmp_path), tokens())
    found = answered(load(folder, tmp_path, **same), tokens())
    assert found.num_cached_tokens == WHOLE
    assert found.outputs == answered(load(folder, None, **same), tokens()).outputs


def test_a_fitted_rotation_is_another_model(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = tiny.make(
        tmp_path / "model",
        "llama",
        tokenizer=True,
        max_position_embeddings=256,
        rope_parameters=rope,
    )
    answered(load(model, tmp_path / "kept"), tokens())
    assert answered(load(model, tmp_path / "kept"), tokens()).num_cached_tokens == WHOLE
    for context in (600, 900):
        found = answered(load(model, tmp_path / "kept", max_model_len=context), tokens())
        assert found.num_cached_tokens == 0


def test_weights_that_differ_in_the_middle_are_another_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files have the same size, and ends."""
    monkeypatch.setattr("suffice.checkpoints.files._PART", 64)
    answered(load(folder, tmp_path / "kept"), tokens())
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    weights = other / "model.safetensors"
    whole = bytearray(weights.read_bytes())
    whole[len(whole) // 2] ^= 1
    weights.write_bytes(whole)
    one, two = load(folder, tmp_path / "kept"), load(other, tmp_path / "kept")
    assert one.runner.stamp == two.runner.stamp, "what tells models apart elsewhere"
    assert answered(two, tokens()).num_cached_tokens == 0
    assert answered(one, tokens()).num_cached_tokens == WHOLE


def test_adapters_are_told_apart_by_what_is_in_them(folder: Path, tmp_path: Path) -> None:
    for at in range(2):
        write_adapter(tmp_path / f"adapter{at}", folder, ["q_proj", "v_proj"], seed=at)
    both = {"a": tmp_path / "adapter0", "b": tmp_path / "adapter1"}
    for name in ("a", "b", None):
        llm = load(folder, tmp_path / "kept", adapters=both)
        assert answered(llm, tokens(), adapter=name).num_cached_tokens == 0
    swapped = load(folder, tmp_path / "kept", adapters={"x": both["b"], "y": both["a"]})
    plain = load(folder, None, adapters={"x": both["b"], "y": both["a"]})
    for name in ("x", "y", None):
        found = answered(swapped, tokens(), adapter=name)
        assert found.num_cached_tokens == WHOLE
        assert found.outputs == answered(plain, tokens(), adapter=name).outputs


@pytest.mark.parametrize("what", ["suffice.native.isa", "suffice.engine.rows_identity._code"])
def test_another_instruction_set_or_build_finds_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    answered(load(folder, tmp_path), tokens())
    with monkeypatch.context() as patch:
        patch.setattr(what, lambda: "other")
        assert answered(load(folder, tmp_path), tokens()).num_cached_tokens == 0
    assert answered(load(folder, tmp_path), tokens()).num_cached_tokens == WHOLE


def test_a_session_goes_on_after_a_restart(folder: Path, tmp_path: Path) -> None:
    """A conversation's later turns are kept as its first is; a new session finds them all."""
    talk = tokens(150)
    llm = load(folder, tmp_path)
    with llm.session() as session:
        for _ in range(3):
            *_, (_, output) = session.stream(talk, PARAMS)
            talk = [*talk, *output.outputs[0].token_ids, *tokens(30, seed=len(talk))]
    disk_of(llm).writer.flush(60)
    with load(folder, tmp_path).session() as session:
        *_, (_, found) = session.stream(talk, PARAMS)
    with load(folder, None).session() as session:
        *_, (_, wanted) = session.stream(talk, PARAMS)
    assert found.outputs == wanted.outputs
    assert found.num_cached_tokens == (len(talk) - 30) // 64 * 64


def test_a_name_from_outside_is_refused(tmp_path: Path, folder: Path) -> None:
    """Nobody knows when what is not part of suffice changes the rows that it makes."""
    llm = load(folder, None)
    kind = type("Outside", (type(llm.config.experts),), {"__module__": "somewhere"})
    config = dataclasses.replace(llm.config, experts=kind(), prefix_dir=tmp_path)
    with pytest.raises(InputError, match="Outside is of another package"):
        disk_prefixes(config, llm.runner)


def test_files_that_changed_since_they_were_loaded_are_noticed(
    folder: Path, tmp_path: Path
) -> None:
    """An engine may have weights in memory that are not those of the files any more."""
    model = Path(shutil.copytree(folder, tmp_path / "model"))
    llm = load(model, None)
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(whole)
    with pytest.raises(InputError, match="has changed since it was loaded"):
        llm.save_prefix(tokens(), tmp_path / "rows")


@pytest.mark.parametrize("attention", ["exact", "aet:keys=0.5"])
def test_a_session_leaves_and_takes_no_rows_that_a_prompt_would_not_have(
    folder: Path, tmp_path: Path, attention: str
) -> None:
    """Turns after an answer that left something out follow rows of that answer."""

    def turns(llm: LLM, count: int) -> list[Any]:
        talk, found = tokens(150), []
        with llm.session() as session:
            for _ in range(count):
                *_, (_, output) = session.stream(talk, PARAMS)
                found.append(output.outputs)
                talk = [*talk, *output.outputs[0].token_ids, *tokens(90, seed=len(talk))]
        if llm.loop.disk is not None:
            disk_of(llm).writer.flush(60)
        return [*found, talk]

    *wanted, talk = turns(load(folder, None, attention=attention), 3)
    plain = answered(load(folder, None, attention=attention), talk).outputs
    for _ in range(2):
        *found, again = turns(load(folder, tmp_path / "a", attention=attention), 3)
        assert (found, again) == (wanted, talk)
        assert answered(load(folder, tmp_path / "a", attention=attention), talk).outputs == plain
    # The whole text is on disk now, as a prompt has it; a session goes on with its own rows.
    assert turns(load(folder, tmp_path / "a", attention=attention), 3) == [*wanted, talk]
