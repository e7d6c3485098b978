"""The law of rows on disk: after a restart a text is, bit for bit, what it is without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_step_laws import PARAMS, SETTINGS, assert_same, outputs
from test_step_laws import make as make

import tiny
from suffice import LLM
from suffice.cache import stored_rows
from suffice.cache.block_folder import files
from suffice.engine.disk_prefixes import ROWS, STATE_ROWS, Chain, DiskPrefixes
from suffice.engine.techniques import ModelWithTechniques

Make = Any
LENGTHS = (131, 58, 122, 190)  # of prompts that begin alike; blocks end in the middle of answers
each_setting = pytest.mark.parametrize(("name", "variant", "dtype"), SETTINGS)


def requests(llm: LLM, *, reuse: bool = False) -> list[Any]:
    words = llm.tokenizer.encode("To be, or not to be, that is the question 0123456789. " * 20)
    return [
        llm.maker.make([*words[: length - 3], 5, 7 + at, 9], params, reuse=reuse)
        for at, (length, params) in enumerate(zip(LENGTHS, PARAMS, strict=True))
    ]


def finish(llm: LLM, made: list[Any], apart: int = 0) -> list[Any]:
    for request in made:
        llm.loop.add(request)
        for _ in range(apart):
            llm.loop.step()
    while not all(request.finished for request in made):
        llm.loop.step()
    return outputs(made)


_cold: dict[Any, list[Any]] = {}


def alone(make: Make, name: str, variant: str, dtype: str) -> list[Any]:
    """What each request gives without a folder."""
    if (name, variant, dtype) not in _cold:
        llm = make(name, variant, dtype)
        _cold[name, variant, dtype] = finish(llm, requests(llm))
    return _cold[name, variant, dtype]


def started(make: Make, name: str, variant: str, dtype: str, folder: Path) -> LLM:
    """An engine that has just started: all it can find is in the folder."""
    llm: LLM = make(name, variant, dtype, prefix_dir=folder)
    llm.loop.retained.least = 16
    vars(llm.loop.disk)["pays"] = lambda cache, rows: True  # tiny models compute as fast
    return llm


def run(llm: LLM, made: list[Any], apart: int = 2) -> list[Any]:
    found = finish(llm, made, apart)
    assert llm.loop.disk is not None
    llm.loop.disk.writer.flush(60)
    llm.loop.retained.clear()
    assert llm.runner.memory_bytes[0] == 0, "all memory came back"
    return found


def test_of_a_text_that_is_larger_than_the_folder_the_beginning_stays(
    make: Make, tmp_path: Path
) -> None:
    prompt = [3 + 7 * at % 90 for at in range(7 * ROWS + 5)]
    size, cached = None, []
    for _ in range(4):
        llm = started(make, "exact", "llama", "float32", tmp_path)
        assert llm.loop.disk is not None
        llm.loop.disk.folder._limit = None if size is None else 4 * size
        request = llm.maker.make(prompt, PARAMS[0])
        run(llm, [request])
        chain = llm.loop.disk.chain(0, -1, "")
        there = {each.path.stem: each.size for each in files(tmp_path)}
        kept = [chain.name(block, prompt).hex() in there for block in range(7)]
        cached.append(request.cached)
        if size is None:
            size = max(there.values())
            assert all(kept)
            for each in list(files(tmp_path)):
                each.path.unlink()
        else:
            assert kept[:3] == [True] * 3 and not all(kept)
    assert cached[:2] == [0, 0] and min(cached[2:]) >= 3 * ROWS


def longer(llm: LLM, made: list[Any]) -> list[Any]:
    """The same texts, which go on from their answers."""
    return [
        llm.maker.make([*r.tokens, *r.samples[0].tokens, 3, 4], params, reuse=True)
        for r, params in zip(made, PARAMS, strict=True)
    ]


@each_setting
def test_a_restart_gives_the_bits_of_a_cold_run(
    make: Make, name: str, variant: str, dtype: str, tmp_path: Path
) -> None:
    wanted = alone(make, name, variant, dtype)
    first = started(make, name, variant, dtype, tmp_path / "kept")
    made = requests(first, reuse=True)
    assert_same(name, run(first, made), wanted)

    second = started(make, name, variant, dtype, tmp_path / "kept")
    again = requests(second, reuse=True)
    assert_same(name, run(second, again), wanted)
    if second.runner.shares_prompts:
        least = 2 * STATE_ROWS if variant in tiny.STATEFUL else ROWS
        assert all(request.from_disk >= least for request in (again[0], again[2], again[3]))
        assert second.loop.disk is not None and second.loop.disk.folder.counts.damaged == 0
    else:
        assert not any(request.from_disk for request in again)
        assert not list((tmp_path / "kept").glob("*/*"))

    third = started(make, name, variant, dtype, tmp_path / "kept")
    third.loop.retained.limit = None
    going_on = longer(third, made)
    found = run(third, going_on)
    cold = make(name, variant, dtype)
    fresh = [cold.maker.make(request.tokens, request.params) for request in going_on]
    assert_same(name, found, finish(cold, fresh))


def test_rows_of_answers_that_a_prompt_would_not_give_would_show(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelWithTechniques, "shares_answers", lambda self, technique=0: True)
    with pytest.raises(AssertionError):
        test_a_restart_gives_the_bits_of_a_cold_run(make, "aet", "llama", "float32", tmp_path)


def test_names_that_forget_the_text_before_would_show(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = Chain.name

    def forgetful(self: Chain, block: int, tokens: Any) -> bytes:
        return genuine(Chain(self._key, self._names[:1], b""), 0, tokens[block * ROWS :])

    monkeypatch.setattr(Chain, "name", forgetful)
    found, wanted, _ = other_beginnings(make, tmp_path)
    assert found != wanted


def other_beginnings(make: Make, folder: Path) -> tuple[list[Any], list[Any], int]:
    """Run a text whose first block one has, and another, after a different one, the rest.

    Returns what it gives, what it gives without a folder, and how many tokens came from disk.
    """
    one = started(make, "exact", "llama", "float32", folder / "kept")
    tokens = requests(one)[3].tokens
    first = [7, 8, *tokens[2:ROWS]]
    run(one, [one.maker.make(each, PARAMS[0]) for each in (tokens, [*first, *tokens[:ROWS]])])
    asked = [*first, *tokens[ROWS:]]
    two = started(make, "exact", "llama", "float32", folder / "kept")
    cold = make("exact", "llama", "float32")
    found, wanted = two.maker.make(asked, PARAMS[0]), cold.maker.make(asked, PARAMS[0])
    return run(two, [found]), finish(cold, [wanted]), found.from_disk


def test_a_block_is_not_that_of_another_beginning(make: Make, tmp_path: Path) -> None:
    found, wanted, from_disk = other_beginnings(make, tmp_path)
    assert found == wanted
    assert from_disk == ROWS


@pytest.mark.parametrize("variant", ["llama", "qwen3.5"])
def test_damaged_rows_are_computed(make: Make, variant: str, tmp_path: Path) -> None:
    found, damaged = damaged_rows(make, variant, tmp_path)
    assert_same("exact", found, alone(make, "exact", variant, "float32"))
    assert damaged > 0


def test_rows_that_were_not_checked_would_show(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_rows, "read", unchecked(stored_rows.read))
    found, damaged = damaged_rows(make, "llama", tmp_path)
    assert damaged == 0
    assert found != alone(make, "exact", "llama", "float32")


def unchecked(genuine: Any) -> Any:
    """What reads rows and claims that their checksum is right."""
    import os
    import struct

    def read(cache: Any, first: int, rows: int, file: int, offset: int) -> int:
        genuine(cache, first, rows, file, offset)
        return int(struct.unpack_from("<Q", os.pread(file, 8, 64))[0])

    return read


def damaged_rows(make: Make, variant: str, folder: Path) -> tuple[list[Any], int]:
    """Damage all blocks, and return what a restart gives and how many it found damaged."""
    one = started(make, "exact", variant, "float32", folder / "kept")
    run(one, requests(one, reuse=True))
    for path in (folder / "kept").glob("*/*.block"):
        whole = bytearray(path.read_bytes())
        for at in range(131, len(whole), 64):  # the high bytes of floats: four times, or a quarter
            whole[at] ^= 0x01
        path.write_bytes(whole)
    two = started(make, "exact", variant, "float32", folder / "kept")
    found = run(two, requests(two, reuse=True))
    disk = two.loop.disk
    assert isinstance(disk, DiskPrefixes)
    return found, disk.folder.counts.damaged
