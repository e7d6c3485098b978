"""The benchmark of servers: arithmetic of bars and gaps, and a trial run."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import install as peers
from benchmarks.serve import bars, cases, install, servers, speed
from benchmarks.serve.bars import Bar
from benchmarks.serve.cases import Round
from benchmarks.serve.servers import Place, Server
from suffice.eval import serving_load


def test_a_ratio_is_of_one_round_and_against_the_harder_peer() -> None:
    turns = [
        {"default": {"x": 4.0}, "vllm": {"x": 2.0}, "vllm-tuned": {"x": 1.0}},
        {"default": {"x": 9.0}, "vllm": {"x": 3.0}, "vllm-tuned": {"x": 3.0}},
    ]
    least = Bar("", "case", 2.5, True, "x", "default", bars.VLLM)
    assert least.rounds(turns) == ([2.0, 3.0], "vllm")
    assert least.reached([2.0, 3.0]) and not least.reached([2.0, 2.9])
    most = Bar("", "case", 3.5, False, "x", "default", bars.VLLM)
    assert most.rounds(turns) == ([4.0, 3.0], "vllm-tuned")
    assert most.reached([4.0, 3.0]) and not most.reached([4.0, 3.1])


def test_what_was_not_measured_is_said() -> None:
    turns = [{"default": {"x": 4.0}}]
    assert Bar("", "case", 2.5, True, "x", "default", bars.VLLM).rounds(turns) == ([], "")
    assert Bar("", "case", 1, True, value=lambda turn: turn["int8"]["x"]).rounds(turns) == ([], "")
    shown = bars.bars({})
    assert shown.count("| - | - |") == len(bars.BARS)


def test_every_bar_has_its_case_and_servers() -> None:
    for bar in bars.BARS:
        own = speed.CASES[bar.case][1]
        assert not bar.over or (bar.ours in own and set(bar.over) & set(own)), bar.what


def test_a_gap_counts_if_it_touches_the_span() -> None:
    chunks = [0.0, 1.0, 1.5, 3.5, 4.0, 9.0]
    assert cases.longest_gap(chunks, since=0.5, until=3.0) == 2000.0
    assert cases.longest_gap(chunks, since=0.5, until=5.0) == 5000.0
    assert cases.longest_gap(chunks, since=0.5, until=1.2) == 1000.0


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "LOG", tmp_path_factory.mktemp("log"))
        found = Server("default", Place(checkpoint, checkpoint, 1))
    yield found
    found.close()


@pytest.mark.parametrize("case", ["streams-8", "first-token", "long-prompt", "behind-long",
                                  "shared-prefix", "deep"])  # fmt: skip
def test_a_case_gives_the_figures_of_its_bars(
    server: Server, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_load, "_FIRST_ID", 10)
    monkeypatch.setattr(serving_load, "_LAST_ID", 200)
    sizes = cases.Sizes(8, 100, 32, 200, 120, 10, 96, 8, 64, 100, 60)
    found = asyncio.run(speed._awaited(speed.CASES[case][0], Round(server, sizes, 1)))
    assert all(value >= 0 for value in found.values())
    for bar in bars.BARS:
        if bar.case == case and bar.figure:
            assert found[bar.figure] > 0
        elif bar.case == case and bar.value is not None:
            bar.value({"default": found, "certified": found})
    if case == "deep":
        assert found["rows_differ"] == 0 and found["rows_share"] == 1, "exact attention reads all"


def test_a_server_that_is_paused_answers_later(server: Server) -> None:
    server.pause()
    assert servers.children(server.process.pid) == [server.engine()]
    server.resume()
    assert server.metrics()["engine_steps_total"] >= 0


def test_a_peer_that_cannot_be_had_is_noted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Path
) -> None:
    def fail(name: str, jobs: int) -> None:
        raise peers.InstallError(f"{name}: no wheel")

    monkeypatch.setattr(install, "server", fail)
    monkeypatch.setattr(speed.pull, "pull", lambda name: checkpoint)
    asked = ["speed", "--quick", "--servers", "llama", "--cases", "streams-1", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", [*asked, "--output", str(tmp_path)])
    assert speed.main() == 0
    found = json.loads((tmp_path / "speed.json").read_text())
    assert found["cases"] == {"streams-1": [{}]} and found["errors"] == {"llama": "llama: no wheel"}
    assert "Not measured: llama: no wheel" in (tmp_path / "speed.md").read_text()
