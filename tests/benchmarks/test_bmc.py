"""The benchmark's arithmetic, and that a tiny run of it ends with results."""

from __future__ import annotations

import json
import mmap
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.growth import block, bmc
from benchmarks.harness import counters
from suffice.cache import Growth, machine
from suffice.cache.bmc import BMC
from suffice.cache.growth import Double, Iterative, Step, Upfront

POLICIES = [BMC(rows=16), BMC(rows=1), Iterative(), Upfront(), Step(24), Double()]


@pytest.mark.parametrize("growth", POLICIES, ids=repr)
@pytest.mark.parametrize("drafts", [block.Drafts(), block.Drafts(rows=5, gained=2)], ids=repr)
def test_windows_cover_every_token_and_never_overflow(growth: Growth, drafts: block.Drafts) -> None:
    windows = block.windows_of(growth, 64, drafts)
    held = 0
    for window in windows:
        assert window.held == held < window.capacity <= 64
        for at, rows in window.steps:
            assert at == held
            assert 1 <= rows <= drafts.rows
            assert at + rows <= window.capacity
            held += min(rows, drafts.gained)
    assert held == 64


def test_plain_windows_are_the_policys_allocations() -> None:
    assert [len(w.steps) for w in block.windows_of(BMC(rows=16), 64)] == [16] * 4
    assert [w.capacity for w in block.windows_of(Double(), 64)] == [1, 2, 4, 8, 16, 32, 64]
    assert len(block.windows_of(Iterative(), 64)) == 64
    assert len(block.windows_of(Iterative(), 64, block.Drafts(rows=5, gained=4))) == 16


def test_spread_takes_the_middles_of_equal_parts() -> None:
    assert block.spread(3, 8) == [0, 1, 2]
    assert block.spread(100, 1) == [50]
    assert sum(block.spread(1000, 10)) / 10 == pytest.approx(500)


@pytest.mark.parametrize("rows", ["padded", "used"])
@pytest.mark.parametrize("pages", ["small", "huge"])
@pytest.mark.parametrize("growth", POLICIES, ids=repr)
def test_every_policy_and_variant_does_the_same_work(
    growth: Growth, pages: str, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All positions sampled: every step's output equals attention over the rows in use."""
    shape = block.Shape("tiny", 4, 2, 8)
    body = block.Block(shape, 2, 32)
    monkeypatch.setattr(block.Block, "_step", checked(block.Block._step))
    sampling = block.Sampling(windows=32, steps=32)
    times = body.decode(growth, block.Variant(pages, rows), sampling)
    assert times.sampled_steps == times.all_steps == 32
    assert times.total > 0
    assert times.allocations == len(block.windows_of(growth, 32))


def checked(step):  # type: ignore[no-untyped-def]
    def run(self, keys, values, held, rows, variant):  # type: ignore[no-untyped-def]
        result = step(self, keys, values, held, rows, variant)
        k, v = keys[:, : held + rows], values[:, : held + rows]
        exact = (self.query[:, : self.group * rows] @ k.mT * self.scale).softmax(-1) @ v
        torch.testing.assert_close(result, exact, rtol=1e-4, atol=1e-6)
        expected = torch.cat([self.pool[:, :held], self.query[:, :rows]], dim=1)
        # Rows written by earlier sampled steps hold the query, all others the pool
        for row in range(held):
            same_as_pool = torch.equal(k[:, row], expected[:, row])
            assert same_as_pool or torch.equal(k[:, row], self.query[:, 0])
        return result

    return run


def test_a_tiny_run_writes_a_table_a_plot_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    flags = ["--quick", "--threads", str(torch.get_num_threads()), "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["bmc", *flags, "--only", "fig5", "table5"])
    monkeypatch.setattr(machine, "_READ_BYTES", 1 << 22)
    bmc.main()
    assert {f"fig5.{kind}" for kind in ("json", "md", "png")} <= {
        f.name for f in tmp_path.iterdir()
    }
    result = json.loads((tmp_path / "fig5.json").read_text())
    assert [row["T"] for row in result["rows"]] == [1, 2, 4, 8, 16, 32, 64]
    assert sum(row["model's T"] == "x" for row in result["rows"]) == 1
    assert {"schema", "date", "command", "commit", "machine", "versions"} <= result.keys()
    assert str(Path.home()) not in (tmp_path / "fig5.json").read_text()


def test_events_are_counted_where_the_machine_counts_them() -> None:
    counter = counters.opened(counters.PAGE_FAULTS)
    if counter is None:
        pytest.skip("the kernel does not let this process count")
    before, pages = counter.read(), 300
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory[:: mmap.PAGESIZE] = bytes(pages)
    assert pages <= counter.read() - before < pages + 200
    counter.close()
    assert counters.opened((99, 0)) is None, "there is no such kind of event"


@pytest.mark.parametrize("counted", [True, False])
def test_tlb_misses_are_shown_where_they_are_counted(
    counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = iter(range(0, 10**6, 7))

    class Counted:
        def read(self) -> int:
            return next(reads)

    monkeypatch.setattr(block, "tlb_counter", lambda: Counted() if counted else None)
    shape = block.Shape("tiny", 2, 2, 8)
    times = block.Block(shape, 1, 16).decode(Iterative(), sampling=block.Sampling(16, 16))
    parts = 3 * times.allocations  # timed: allocation, copy and step of each
    assert times.tlb_misses == (7 * parts if counted else 0)
