"""Processes that share a folder, and are killed: each text is the one without a folder."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny
from suffice import LLM, SamplingParams
from suffice.cache.block_folder import BlockFolder, files
from suffice.engine.disk_prefixes import DiskPrefixes

REQUESTS = int(os.environ.get("SUFFICE_REQUESTS", "40"))  # of all processes; 10000 is the long run
PROCESSES = 4
PROMPTS = 12
PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
LIMIT = 400 << 10  # bytes: less than all prompts have, so that blocks come and go


def prompts() -> list[list[int]]:
    """Texts, and many begin alike."""
    chance = random.Random(0)
    words = [3 + (11 * at) % 90 for at in range(400)]
    return [
        [*words[: 64 * chance.randrange(1, 4)], *([3 + at] * chance.randrange(10, 130)), 5]
        for at in range(PROMPTS)
    ]


def work(model: str, folder: str, count: int, seed: int) -> None:
    """Answer prompts in a random order; print a line for each, and at the end the counts."""
    DiskPrefixes.pays = lambda self, cache, rows: True  # type: ignore[method-assign]
    llm = LLM(
        model,
        threads=1,
        dtype="float32",
        prefix_dir=folder,
        prefix_disk_bytes=LIMIT,
        growth="step:16",
    )
    chance, known = random.Random(seed), prompts()
    for _ in range(count):
        at = chance.randrange(PROMPTS)
        (found,) = llm.generate([known[at]], PARAMS, use_tqdm=False)
        line = [
            at,
            found.outputs[0].token_ids,
            found.num_cached_tokens,
            found.outputs[0].finish_reason,
        ]
        print(json.dumps(line), flush=True)
    assert llm.loop.disk is not None
    llm.loop.disk.writer.flush(60)
    print(json.dumps(llm.loop.disk.stats()), flush=True)


def started(model: Path, folder: Path, count: int, seed: int) -> subprocess.Popen[str]:
    code = "import sys; from test_disk_processes import work; work(sys.argv[1], sys.argv[2], "
    code += "int(sys.argv[3]), int(sys.argv[4]))"
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
    given = [sys.executable, "-c", code, str(model), str(folder), str(count), str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(given, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny.make(folder, "llama", tokenizer=True, max_position_embeddings=512)


@pytest.fixture(scope="module")
def wanted(model: Path) -> list[list[int]]:
    llm = LLM(model, threads=1, dtype="float32")
    found = llm.generate(prompts(), PARAMS, use_tqdm=False)
    return [list(each.outputs[0].token_ids) for each in found]


def test_four_processes_share_a_folder(
    model: Path, wanted: list[list[int]], tmp_path: Path
) -> None:
    folder, each = tmp_path / "kept", REQUESTS // PROCESSES
    together = [started(model, folder, each, seed) for seed in range(PROCESSES)]
    last = (started(model, folder, each, seed) for seed in (PROCESSES,))  # once those have ended
    cached, total = 0, {"damaged": 0, "removed": 0}
    for process in itertools.chain(together, last):
        lines = process.communicate(timeout=1800)[0].splitlines()
        assert process.returncode == 0 and len(lines) == each + 1, "nothing is lost"
        for at, tokens, found, reason in map(json.loads, lines[:-1]):
            assert (tokens, reason) == (wanted[at], "length")
            cached += found > 0
        stats: dict[str, Any] = json.loads(lines[-1])
        for name in total:
            total[name] += stats[f"disk_blocks_{name}"]
    assert total["damaged"] == 0 and cached > 0 and total["removed"] > 0
    assert not [each for each in files(folder) if not each.whole]


def test_processes_that_are_killed_leave_nothing_wrong(
    model: Path, wanted: list[list[int]], tmp_path: Path
) -> None:
    chance = random.Random(3)
    for seed in range(max(REQUESTS // 20, 3)):
        process = started(model, tmp_path / "kept", 1000, seed)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 12)):
            at, tokens, _, reason = json.loads(process.stdout.readline())
            assert (tokens, reason) == (wanted[at], "length")
        process.kill()
        process.communicate()
    last = started(model, tmp_path / "kept", 2 * PROMPTS, 99)
    lines = last.communicate(timeout=600)[0].splitlines()
    assert json.loads(lines[-1])["disk_blocks_damaged"] == 0
    assert all(json.loads(line)[1] == wanted[json.loads(line)[0]] for line in lines[:-1])
    folder = BlockFolder(tmp_path / "kept", limit=LIMIT)
    folder.prune()
    assert folder.bytes <= LIMIT
