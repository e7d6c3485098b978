"""Whose prompt somebody asked first costs what a prompt costs that nobody asked, by all counts.

So no time tells what others asked: until the first token, the same blocks are looked up, the same
are read (none), as many tokens are computed in as many steps, and the file system is asked as
often.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tiny
from suffice import LLM, SamplingParams
from suffice.engine import requests_on_disk, write_behind
from suffice.engine.disk_prefixes import ROWS, DiskPrefixes
from suffice.engine.memory import Memory

LENGTH = 4 * ROWS + 9
PARAMS = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
CALLS = ("stat", "lstat", "open", "utime", "scandir", "unlink", "rename", "mkdir", "statvfs")
_TIMES = ("last_step_at", "tokens_per_second", "token_seconds", "step_seconds", "row_seconds")
STATES = ("on disk", "in memory", "running")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny.make(folder, "llama", tokenizer=True, max_position_embeddings=512)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count calls of the file system; the writer waits, and no count depends on seconds."""
    calls: Counter[str] = Counter()

    def counting(name: str) -> Any:
        genuine = getattr(os, name)

        def call(*given: Any, **more: Any) -> Any:
            calls[name] += 1
            return genuine(*given, **more)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, counting(name))
    monkeypatch.setattr(write_behind, "_run", lambda mine: None)
    monkeypatch.setattr(requests_on_disk, "_COPIED", 1e18)
    monkeypatch.setattr(DiskPrefixes, "pays", lambda self, cache, rows: True)
    return calls


def tokens(seed: int) -> list[int]:
    return [3 + (7 * at + seed) % 90 for at in range(LENGTH)]


def added(llm: LLM, prompt: list[int], key: str) -> Any:
    request = llm.maker.make(prompt, PARAMS, key=key, group=key, reuse=True)
    llm.loop.add(request)
    return request


def until_the_first_token(llm: LLM, request: Any) -> int:
    steps = 0
    while not request.samples[0].tokens:
        llm.loop.step()
        steps += 1
    return steps


def load(model: Path, kept: Path) -> LLM:
    llm = LLM(model, prefix_dir=kept, threads=1, dtype="float32", growth="step:rows=16")
    llm.loop.retained.limit = None
    return llm


def cost(model: Path, kept: Path, state: str, asked: int, calls: Counter[str]) -> dict[str, Any]:
    """What a stranger's prompt costs where the owner's has seed 0."""
    own = shutil.copytree(kept, kept.with_name(f"{state} {asked}"))
    llm = load(model, own)
    if state != "on disk":
        owner = added(llm, tokens(0), "owner")
        until_the_first_token(llm, owner)
        while state == "in memory" and not owner.finished:
            llm.loop.step()
    llm.loop.step()  # the last one's blocks are with the writer
    before, calls_before = dataclasses.asdict(llm.loop.stats()), calls.copy()
    stranger = added(llm, tokens(asked), "stranger")
    steps = until_the_first_token(llm, stranger)
    after = dataclasses.asdict(llm.loop.stats())
    found = {name: after[name] - before[name] for name in after if name not in _TIMES}
    return {**found, **(calls - calls_before), "steps": steps, "cached": stranger.cached}


@pytest.fixture
def kept(model: Path, tmp_path: Path) -> Path:
    """A folder with the owner's prompt."""
    llm = load(model, tmp_path / "kept")
    until_the_first_token(llm, added(llm, tokens(0), "owner"))
    assert llm.loop.disk is not None
    llm.loop.disk.writer.flush(60)
    assert llm.loop.disk.folder.counts.written == LENGTH // ROWS
    return tmp_path / "kept"


@pytest.mark.parametrize("state", STATES)
def test_a_stranger_pays_what_a_new_prompt_costs(
    model: Path, kept: Path, state: str, counted: Counter[str]
) -> None:
    same = cost(model, kept, state, 0, counted)
    new = cost(model, kept, state, 1, counted)
    assert same == new
    assert same["prompt_tokens"] == LENGTH and same["cached"] == 0
    assert same["stat"] >= 1, "blocks were looked up"


def test_names_without_the_key_would_show(
    model: Path, kept: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = DiskPrefixes.chain
    monkeypatch.setattr(
        DiskPrefixes,
        "chain",
        lambda self, way, adapter, group: genuine(self, way, adapter, "owner"),
    )
    same = cost(model, kept, "on disk", 0, counted)
    new = cost(model, kept, "on disk", 1, counted)
    named = {"stat", "open", "steps", "cached", "prompt_tokens", "disk_blocks_read"}
    assert {name for name in named if same.get(name) != new.get(name)} >= named - {"steps"}


@pytest.mark.parametrize("state", STATES[1:])
def test_a_store_without_the_key_would_show(
    model: Path, kept: Path, state: str, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Memory, "_group", lambda self, request: "")
    same = cost(model, kept, state, 0, counted)
    new = cost(model, kept, state, 1, counted)
    assert same["prompt_tokens"] < new["prompt_tokens"] == LENGTH
