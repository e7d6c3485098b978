"""What requests take from disk and leave there, and that nobody notices when the disk fails.

Also tests requests_on_disk.py and write_behind.py.
"""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import tiny
from suffice import LLM, AsyncLLM, SamplingParams
from suffice.cache.block_folder import BlockFolder, files
from suffice.engine import disk_prefixes as module
from suffice.engine import write_behind
from suffice.engine.disk_prefixes import ROWS, DiskPrefixes
from suffice.engine.service import Engine, Work
from suffice.engine.write_behind import WriteBehind

PARAMS = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=1)
LENGTH = 200  # tokens of a prompt: three blocks and some more
WHOLE = LENGTH // ROWS * ROWS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(
        tmp_path_factory.mktemp("tiny"), "llama", tokenizer=True, max_position_embeddings=512
    )


@pytest.fixture(autouse=True)
def always_pays(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tiny models compute as fast as a disk reads."""
    if "pays" not in request.node.name:
        monkeypatch.setattr(DiskPrefixes, "pays", lambda self, cache, rows: True)


def load(model: Path, kept: Path | None, **options: Any) -> LLM:
    usual = {"threads": 1, "dtype": "float32", "growth": "step:rows=16"}
    return LLM(model, prefix_dir=kept, **{**usual, **options})


def disk_of(llm: LLM) -> DiskPrefixes:
    assert llm.loop.disk is not None
    return llm.loop.disk


def tokens(length: int = LENGTH, seed: int = 0) -> list[int]:
    return [3 + (7 * at + seed) % 90 for at in range(length)]


def answered(llm: LLM, prompt: list[int], **more: Any) -> Any:
    (found,) = llm.generate([prompt], PARAMS, use_tqdm=False, **more)
    if llm.loop.disk is not None:
        disk_of(llm).writer.flush(60)
    return found


def test_a_prompt_is_computed_once(folder: Path, tmp_path: Path) -> None:
    wanted = answered(load(folder, None), tokens())
    first = answered(load(folder, tmp_path), tokens())
    assert first.outputs == wanted.outputs and first.num_cached_tokens == 0
    llm = load(folder, tmp_path)
    second = answered(llm, tokens())
    assert second.outputs == wanted.outputs and second.num_cached_tokens == WHOLE
    stats = llm.loop.stats()
    assert (stats.disk_prefix_queries, stats.disk_prefix_hits) == (LENGTH, WHOLE)
    assert (stats.disk_blocks_read, stats.disk_blocks_written) == (3, 0)


def test_all_but_the_last_token_of_a_prompt_of_whole_blocks(folder: Path, tmp_path: Path) -> None:
    prompt = tokens(2 * ROWS)
    answered(load(folder, tmp_path), prompt)
    again = answered(load(folder, tmp_path), prompt)
    assert again.num_cached_tokens == 2 * ROWS - 1
    assert again.outputs == answered(load(folder, None), prompt).outputs


def test_an_answer_is_kept_too(folder: Path, tmp_path: Path) -> None:
    prompt = tokens(WHOLE - 4)
    first = answered(load(folder, tmp_path), prompt)
    longer = [*prompt, *first.outputs[0].token_ids, 3, 4, 5]
    assert answered(load(folder, tmp_path), longer).num_cached_tokens == WHOLE


def test_samples_of_one_prompt_go_on_from_it(folder: Path, tmp_path: Path) -> None:
    """Each leaves rows of its own answer, under its own name."""
    prompt = tokens(WHOLE - 10)
    params = SamplingParams(n=3, max_tokens=20, seed=1, temperature=2.0, ignore_eos=True)
    wanted = load(folder, None).generate([prompt], params, use_tqdm=False)[0].outputs
    for cached, blocks in ((0, 2 + 3), (WHOLE - ROWS, 2 + 3)):
        llm = load(folder, tmp_path)
        (found,) = llm.generate([prompt], params, use_tqdm=False)
        disk_of(llm).writer.flush(60)
        assert found.outputs == wanted and found.num_cached_tokens == cached
        assert sum(1 for _ in files(tmp_path)) == blocks
    assert len({each.token_ids for each in wanted}) == 3


def test_coroutines_keep_prompts_too(folder: Path, tmp_path: Path) -> None:
    async def answers() -> int:
        options = {"threads": 1, "dtype": "float32", "growth": "step:rows=16"}
        async with AsyncLLM(folder, prefix_dir=tmp_path, **options) as llm:
            found = await llm.generate(tokens(), PARAMS)
            disk_of(llm.llm).writer.flush(60)
            return int(found.num_cached_tokens)

    assert [asyncio.run(answers()) for _ in range(2)] == [0, WHOLE]


def test_nothing_is_kept_unless_asked_for(folder: Path, tmp_path: Path) -> None:
    llm = load(folder, None)
    answered(llm, tokens())
    assert llm.loop.disk is None and not list(tmp_path.iterdir())


def test_a_request_that_shall_not_be_kept_is_not(folder: Path, tmp_path: Path) -> None:
    llm = load(folder, tmp_path)
    request = llm.maker.make(tokens(), PARAMS, reuse=False)
    llm._run([request], False)
    disk_of(llm).writer.flush(60)
    assert not list(files(tmp_path))


def test_scored_prompts_are_run(folder: Path, tmp_path: Path) -> None:
    answered(load(folder, tmp_path), tokens())
    wanted = load(folder, None).score([tokens()], use_tqdm=False)
    assert load(folder, tmp_path).score([tokens()], use_tqdm=False) == wanted


def test_groups_do_not_find_each_other(folder: Path, tmp_path: Path) -> None:
    found = {}
    for group in ("one", "two", "one", "two"):
        llm = load(folder, tmp_path)
        request = llm.maker.make(tokens(), PARAMS, group=group)
        llm._run([request], False)
        disk_of(llm).writer.flush(60)
        found.setdefault(group, []).append(request.from_disk)
    assert found == {"one": [0, WHOLE], "two": [0, WHOLE]}
    assert len({each.path.name for each in files(tmp_path)}) == 6


def test_names_need_the_secret(folder: Path, tmp_path: Path) -> None:
    """Who knows a prompt cannot tell from the names of another folder that it was asked."""
    for kept in "ab":
        answered(load(folder, tmp_path / kept), tokens())
    one, two = ({each.path.name for each in files(tmp_path / kept)} for kept in "ab")
    assert len(one) == len(two) == 3 and not one & two
    secret = tmp_path / "secret"
    secret.write_text("of several hosts, long enough")
    for kept in "cd":
        answered(load(folder, tmp_path / kept, prefix_secret=secret), tokens())
    three, four = ({each.path.name for each in files(tmp_path / kept)} for kept in "cd")
    assert three == four and not three & one


def test_a_damaged_block_is_removed_and_written_again(folder: Path, tmp_path: Path) -> None:
    wanted = answered(load(folder, tmp_path), tokens())
    paths = {each.path: each.path.read_bytes() for each in files(tmp_path)}
    for path, whole in paths.items():
        path.write_bytes(whole[:-1])
        llm = load(folder, tmp_path)
        found = answered(llm, tokens())
        assert found.outputs == wanted.outputs and found.num_cached_tokens < WHOLE
        assert llm.loop.stats().disk_blocks_damaged >= 1
        assert path.read_bytes() == whole, "it is there again, as it was"


def test_a_block_that_is_missing_ends_what_is_read(folder: Path, tmp_path: Path) -> None:
    wanted = answered(load(folder, tmp_path), tokens())
    paths = sorted(each.path for each in files(tmp_path))
    for path in paths:
        path.unlink()
        found = answered(load(folder, tmp_path), tokens())
        assert found.outputs == wanted.outputs and found.num_cached_tokens in (0, 64, 128)
        assert sorted(each.path for each in files(tmp_path)) == paths


def test_blocks_that_vanish_between_a_look_and_a_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(load(folder, tmp_path), tokens())
    llm = load(folder, tmp_path)
    genuine = DiskPrefixes.find

    def find(self: DiskPrefixes, *given: Any) -> Any:
        found = genuine(self, *given)
        for each in list(files(tmp_path)):
            each.path.unlink()
        return found

    monkeypatch.setattr(DiskPrefixes, "find", find)
    found = answered(llm, tokens())
    assert found.num_cached_tokens == 0
    assert found.outputs == answered(load(folder, None), tokens()).outputs


def test_a_folder_that_fails_is_not_noticed(folder: Path, tmp_path: Path) -> None:
    """It vanishes, is a file, cannot be read, and comes back."""
    kept = tmp_path / "kept"
    wanted = answered(load(folder, None), tokens()).outputs
    llm = load(folder, kept)
    shutil.rmtree(kept)
    assert answered(llm, tokens()).outputs == wanted
    kept.write_text("no folder")
    assert answered(llm, tokens()).outputs == wanted
    kept.unlink()
    assert llm.loop.stats().disk_blocks_failed >= 1
    kept.mkdir(0o700)
    disk_of(llm).folder._paused_until = 0
    assert answered(llm, tokens()).outputs == wanted
    assert answered(llm, tokens()).num_cached_tokens == WHOLE


def test_two_engines_use_a_folder_at_the_same_time(folder: Path, tmp_path: Path) -> None:
    engines = [load(folder, tmp_path) for _ in range(2)]
    plain = load(folder, None)
    prompts = [tokens(LENGTH + 10 * at, seed=at // 3) for at in range(9)]
    wanted = [answered(plain, each).outputs for each in prompts]
    found: dict[int, list[Any]] = {}

    def run(at: int) -> None:
        order = prompts if at else prompts[::-1]
        both = [answered(engines[at], each).outputs for each in order]
        found[at] = both if at else both[::-1]

    threads = [threading.Thread(target=run, args=(at,)) for at in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {0: wanted, 1: wanted}
    assert all(disk_of(each).folder.counts.damaged == 0 for each in engines)


def test_a_request_that_ends_while_rows_come_leaves_nobody_reading(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aborted or parked: no thread writes into a cache that others have by then."""
    answered(load(folder, tmp_path), tokens())
    llm = load(folder, tmp_path)
    genuine, reading = module.block_file.read, threading.Event()

    def slow(*given: Any, **more: Any) -> Any:
        reading.set()
        time.sleep(0.02)
        return genuine(*given, **more)

    monkeypatch.setattr(module.block_file, "read", slow)
    for act in (llm.loop.abort, lambda each: llm.loop.memory.park(each)):
        reading.clear()
        request = llm.maker.make(tokens(), PARAMS)
        llm.loop.add(request)
        llm.loop.step()
        assert request.loading is not None and reading.wait(10)
        act(request)
        assert request.loading is None and not disk_of(llm).loading
        assert request.finished or llm.runner.memory_bytes[0] == 0
    while not request.finished:
        llm.loop.step()
    assert request.output().outputs == answered(load(folder, None), tokens()).outputs
    assert llm.runner.memory_bytes[0] == 0


def test_others_run_on_while_rows_come(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(load(folder, tmp_path), tokens())
    llm = load(folder, tmp_path)
    genuine, go = module.block_file.read, threading.Event()
    monkeypatch.setattr(module.block_file, "read", lambda *a, **m: go.wait(60) and genuine(*a, **m))
    other = llm.maker.make(tokens(40, seed=5), SamplingParams(max_tokens=50, ignore_eos=True))
    known = llm.maker.make(tokens(), PARAMS)
    for each in (other, known):
        llm.loop.add(each)
    for _ in range(30):
        llm.loop.step()
    assert len(other.samples[0].tokens) > 20 and known.loading is not None
    go.set()
    while not (other.finished and known.finished):
        llm.loop.step()
    assert known.from_disk == WHOLE


def test_memory_and_disk_add_up(folder: Path, tmp_path: Path) -> None:
    """A beginning in memory goes on from disk, from where a block begins."""
    long = tokens(WHOLE + 20)
    wanted = answered(load(folder, None), long).outputs
    answered(load(folder, tmp_path), long)
    llm = load(folder, tmp_path)
    llm.loop.retained.limit, llm.loop.retained.least = None, 16
    with_memory = llm.maker.make(long[: ROWS + 10], PARAMS)
    llm._run([with_memory], False)
    request = llm.maker.make(long, PARAMS)
    llm._run([request], False)
    assert request.output().outputs == wanted
    assert (request.cached, request.from_disk) == (WHOLE, WHOLE - ROWS)


def test_the_beginning_of_a_text_goes_last(folder: Path, tmp_path: Path) -> None:
    """Blocks are used when their text is, also where its rows are found in memory."""
    llm = load(folder, tmp_path)
    llm.loop.retained.limit, llm.loop.retained.least = None, 16
    for cached in (0, LENGTH - 1):
        request = llm.maker.make(tokens(), PARAMS)
        llm._run([request], False)
        disk_of(llm).writer.flush(60)
        assert (request.cached, request.from_disk) == (cached, 0)
        chain = disk_of(llm).chain(0, -1, "")
        kept = sorted(files(tmp_path), key=lambda each: -each.used)
        assert [bytes.fromhex(each.path.stem) for each in kept] == [
            chain.name(block, tokens()) for block in range(WHOLE // ROWS)
        ]
        for each in kept[::-1]:
            os.utime(each.path, (1, 1))


def test_reading_that_is_slower_than_computing_no_longer_pays(folder: Path, tmp_path: Path) -> None:
    llm = load(folder, tmp_path)
    cache, disk = llm.runner.open("a", 512).cache, disk_of(llm)
    assert disk.pays(cache, 100), "nothing has been measured"
    disk._byte_seconds = 1e-6
    assert disk.pays(cache, 100)
    disk.token_seconds = 2e-6 * cache.row_bytes
    assert disk.pays(cache, 100)
    disk.token_seconds = 0.5e-6 * cache.row_bytes
    found = [disk.pays(cache, 100) for _ in range(2 * module._AGAIN)]
    assert found.count(True) == 2, "now and then it is measured again"


def test_a_queue_that_is_full_takes_the_rest_later(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = load(folder, tmp_path)
    writer = disk_of(llm).writer
    monkeypatch.setattr(write_behind, "MOST_BYTES", 1)
    with writer._writing:  # nothing is written
        request = llm.maker.make(tokens(), SamplingParams(max_tokens=100, ignore_eos=True))
        llm.loop.add(request)
        for _ in range(10):
            llm.loop.step()
        assert len(writer._queue) <= 2 and request.samples[0].chain.done <= 2
    while not request.finished:
        writer.flush(60)
        llm.loop.step()
    writer.flush(60)
    assert sum(1 for _ in files(tmp_path)) == (LENGTH + 99) // ROWS


def test_the_end_of_a_process_writes_what_is_left(folder: Path, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from suffice import LLM, SamplingParams
from suffice.engine import write_behind
write_behind._run = lambda mine: None  # a thread that is never scheduled
llm = LLM({str(folder)!r}, threads=1, dtype="float32", prefix_dir={str(tmp_path)!r})
llm.generate([{tokens()}], SamplingParams(max_tokens=1), use_tqdm=False)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert sum(1 for _ in files(tmp_path)) == 3


def test_a_writer_that_nobody_has_ends(tmp_path: Path) -> None:
    writer = WriteBehind(BlockFolder(tmp_path))
    thread = writer._thread
    del writer
    thread.join(30)
    assert not thread.is_alive()


def test_an_engine_says_what_came_from_disk(folder: Path, tmp_path: Path) -> None:
    finals = []
    for _ in range(2):
        llm = load(folder, tmp_path)
        engine = Engine(llm)
        for name in "12":
            ended: queue.Queue[Any] = queue.Queue()
            work = Work(name, tuple(tokens()), PARAMS, group="key")
            engine.submit(work, lambda delta, to=ended: delta.final and to.put(delta.final))
            finals.append(ended.get(timeout=60))
        engine.close()
        disk_of(llm).writer.flush(60)
    found = [(each.cached_tokens, each.cached_from_disk) for each in finals]
    assert found == [(0, 0), (LENGTH - 1, 0), (WHOLE, WHOLE), (LENGTH - 1, 0)]
