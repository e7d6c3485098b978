"""Rows in a file: who goes on with them has the text that who never stopped has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiny
from engines import sharing
from suffice import LLM, SamplingParams
from suffice.engine.loop import Loop
from suffice.errors import InputError

PARAMS = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True, logprobs=1)
VARIANTS = ("llama", "gemma3", *tiny.STATEFUL)
TYPES = ("float32", "int8", "kmeans4", "planes")
CASES = [*((each, "float32") for each in VARIANTS), *(("llama", each) for each in TYPES[1:])]
Make = Any


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    folders: dict[str, Path] = {}
    load = sharing(threads=1, dtype="float32", growth="step:rows=16")

    def made(variant: str = "llama", **options: Any) -> LLM:
        if variant not in folders:
            folder = tmp_path_factory.mktemp(variant)
            folders[variant] = tiny.make(
                folder, variant, tokenizer=True, max_position_embeddings=512
            )
        return load(folders[variant], **options)

    return made


def tokens(length: int, seed: int = 0) -> list[int]:
    return [3 + (7 * at + seed) % 90 for at in range(length)]


def told(session: Any, prompt: list[int]) -> Any:
    *_, (_, output) = session.stream(prompt, PARAMS)
    return output


@pytest.mark.parametrize(("variant", "dtype"), CASES)
def test_a_session_goes_on_where_it_was_saved(
    make: Make, variant: str, dtype: str, tmp_path: Path
) -> None:
    llm = make(variant, kv_cache_dtype=dtype)
    with llm.session() as session:
        first = told(session, tokens(333))
        count = session.save(tmp_path / "rows")
        asked = [*first.prompt_token_ids, *first.outputs[0].token_ids, 3, 4, 5]
        wanted = told(session, asked)
    assert count == 333 + 8
    other = make(variant, kv_cache_dtype=dtype)
    with other.load_prefix(tmp_path / "rows") as again:
        assert again.tokens == asked[:count]
        found = told(again, asked)
    assert found.outputs == wanted.outputs
    assert found.num_cached_tokens == wanted.num_cached_tokens == count
    with other.load_prefix(tmp_path / "rows") as again:  # a prompt that leaves the text earlier
        cut = told(again, [*asked[:320], 8, 9])
    (cold,) = other.generate([[*asked[:320], 8, 9]], PARAMS, use_tqdm=False)
    assert cut.outputs == cold.outputs
    assert cut.num_cached_tokens >= (288 if llm.runner._states else 320)
    assert other.runner.memory_bytes[0] == 0


def test_a_prompt_is_saved_without_an_answer(make: Make, tmp_path: Path) -> None:
    llm = make()
    assert llm.save_prefix(tokens(100), tmp_path / "rows") == 100
    assert llm.runner.memory_bytes[0] == 0
    wanted = llm.generate([[*tokens(100), 5]], PARAMS, use_tqdm=False)[0]
    with make().load_prefix(tmp_path / "rows") as session:
        found = told(session, [*tokens(100), 5])
    assert (found.outputs, found.num_cached_tokens) == (wanted.outputs, 100)


def test_rows_of_answers_that_leave_something_out_are_not_saved(make: Make, tmp_path: Path) -> None:
    llm = make(attention="aet:keys=0.5")
    with llm.session() as session:
        first = told(session, tokens(150))
        assert session.save(tmp_path / "rows") == 150
        told(session, [*tokens(150), *first.outputs[0].token_ids, 5])
        assert session.save(tmp_path / "rows") == 150, "what follows them is not a prompt's"
    wanted = llm.generate([[*tokens(150), 5, 6]], PARAMS, use_tqdm=False)[0]
    with make(attention="aet:keys=0.5").load_prefix(tmp_path / "rows") as session:
        assert told(session, [*tokens(150), 5, 6]).outputs == wanted.outputs


def test_what_does_not_fit_is_refused(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    make().save_prefix(tokens(300), path)
    with pytest.raises(InputError, match=r"with kv_cache_dtype float32 \(here int8\): give the"):
        make(kv_cache_dtype="int8").load_prefix(path)
    with pytest.raises(
        InputError, match=r"saved with another quantization, weights in memory float32 "
    ):
        make(quantization="int8").load_prefix(path)
    with pytest.raises(InputError, match="saved with another model"):
        make("gemma3").load_prefix(path)
    with pytest.raises(InputError, match="has 300 tokens: the context has 256"):
        make(max_model_len=256).load_prefix(path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        make().load_prefix(tmp_path / "gone")
    for use in (make().load_prefix, lambda path: make().save_prefix(tokens(20), path)):
        with pytest.raises(InputError, match=r"^a.x00b is no path: it has a null character$"):
            use("a\0b")
    (tmp_path / "notes").write_text("something else")
    with pytest.raises(InputError, match="is no file of saved rows"):
        make().load_prefix(tmp_path / "notes")
    with pytest.raises(InputError, match="is no file of saved rows: give another name"):
        make().save_prefix(tokens(20), tmp_path / "notes")
    with pytest.raises(InputError, match="cannot be written"):
        make().save_prefix(tokens(20), tmp_path / "gone" / "rows")
    with pytest.raises(InputError, match="nothing is in the cache yet"):
        make().session().save(path)
    with pytest.raises(InputError, match="rows serve no later prompt"):
        make(policy="h2o:rank_only=true", attention="aet:keys=0.7").save_prefix(tokens(20), path)


def test_what_cannot_be_saved_is_not_computed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = list[Any]()
    monkeypatch.setattr(Loop, "step", steps.append)
    for options, path, message in (
        ({}, tmp_path / "gone" / "rows", "rows cannot be written: No such file"),
        (
            {"policy": "h2o:rank_only=true"},
            tmp_path / "rows",
            "rows serve no later prompt",
        ),
        (
            {"attention": "tiers:prompt=0.01"},
            tmp_path / "rows",
            "rows serve no later prompt",
        ),
    ):
        with pytest.raises(InputError, match=message):
            make(**options).save_prefix(tokens(20), path)
    assert steps == [] and not list(tmp_path.iterdir())


def test_a_refused_file_leaves_no_sequence(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows"
    make().save_prefix(tokens(300), path)
    llm, opened = make(max_model_len=256), list[Any]()
    genuine = llm.runner.open

    def opening(*given: Any) -> Any:
        opened.append(genuine(*given))
        return opened[-1]

    monkeypatch.setattr(llm.runner, "open", opening)
    with pytest.raises(InputError, match="has 300 tokens"):
        llm.load_prefix(path)
    with pytest.raises(InputError, match="cannot be read"):
        llm.load_prefix(tmp_path / "gone")
    assert opened == [], "nothing is opened for it"
    make().save_prefix(tokens(100), path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InputError, match="is damaged"):
        llm.load_prefix(path)
    (sequence,) = opened
    assert sequence.cache.bytes == 0


@pytest.mark.parametrize("variant", ["llama", "qwen3.5"])
def test_a_damaged_file_is_refused(make: Make, variant: str, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    llm = make(variant)
    llm.save_prefix(tokens(300), path)
    whole = path.read_bytes()
    step = len(whole) // 23
    for at in range(9, len(whole), step):
        for damaged in (
            whole[:at],
            whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :],
            whole[:at] + bytes(64) + whole[at + 64 :],
        ):
            if damaged == whole:
                continue
            path.write_bytes(damaged)
            with pytest.raises(InputError, match=r"damaged|has version|no file of"):
                llm.load_prefix(path)
    assert llm.runner.memory_bytes[0] == 0
    path.write_bytes(whole)
    llm.load_prefix(path).close()
