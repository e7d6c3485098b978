"""Scrooge's cycles: counted by hand, conserved, and where the memory bounds them."""

from __future__ import annotations

import dataclasses
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffice.errors import InputError
from suffice_hw import _simulator
from suffice_hw.scrooge import checks, simulate
from suffice_hw.scrooge.aet import Rule
from suffice_hw.scrooge.design import DESIGNS, MODELS, Design, Shape, model
from suffice_hw.scrooge.logits import SCHEMA, Synthetic, Trace

DESIGN = Design.load()
PLAIN = dataclasses.replace(DESIGN, query_traffic=False, metadata_bytes=0)
SMALL = Shape("small", 2, 4, 4, 128)
WORKLOAD = Synthetic.load("s")


@pytest.fixture(autouse=True)
def few_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate the cycles of fewer lengths than `hw validate` does."""
    monkeypatch.setattr(checks, "LENGTHS", 3)


def small(design: Design = DESIGN, **options: Any) -> simulate.Result:
    shares = (WORKLOAD.key_share, WORKLOAD.value_share)
    given: dict[str, Any] = {"tokens": 300, "sampled_lengths": 5} | options
    return simulate.run(design, SMALL, WORKLOAD, shares, **given)


@pytest.mark.parametrize(
    ("name", "gigabytes", "wave"),
    [
        ("opt-1.3b", 103.2, 16),
        ("opt-2.7b", 172.0, 8),
        ("opt-6.7b", 275.1, 8),
        ("opt-13b", 429.9, 8),
        ("llama-2-7b", 275.1, 8),
        ("llama-2-13b", 429.9, 8),
    ],
)
def test_the_papers_models(name: str, gigabytes: float, wave: int) -> None:
    shape = model(name)
    assert round(shape.attention_bytes(1024) / 1e9, 1) == pytest.approx(gigabytes)
    assert DESIGN.wave(shape) == wave


def test_one_token_by_hand() -> None:
    part = PLAIN.part()
    run = simulate.simulation(PLAIN, part, SMALL)
    decision = _simulator.Decision([0], [0], 1, 0)
    keys_end, softmax_end, end, wasted = run.run_head(decision, 1, [0, 1 << 20, 1 << 30], 0.0)
    # A row of 256 B lies in 4 channels, two bursts each: tRCD, CL and two bursts, then the pipe.
    row = 14 + 14 + 4 + 4 + part.controller_ns
    assert keys_end == row + PLAIN.pipe_cycles
    assert softmax_end == keys_end + 1 + PLAIN.softmax_cycles
    asked = 2 * -(-softmax_end // 2)  # the memory's clock has 2 ns
    assert end == asked + 14 + row + PLAIN.sum_cycles, "values are in the same banks: tRP more"
    assert wasted == 0
    counts = run.finish()
    assert counts.reads * part.burst_bytes == 2 * SMALL.row_bytes


def test_a_stop_drains_what_was_asked_for() -> None:
    run = simulate.simulation(PLAIN, PLAIN.part(), SMALL)
    decision = _simulator.Decision([0, *range(999, 983, -1)], [0], 1, 2)
    *_, wasted = run.run_head(decision, 1000, [0, 1 << 20, 1 << 30], 0.0)
    read = run.finish().reads * PLAIN.part().burst_bytes
    window = PLAIN.prefetch_bytes // SMALL.row_bytes
    assert window <= wasted < 3 * window
    assert read == (17 + wasted + 1) * SMALL.row_bytes, "each byte is accounted for"


def test_a_window_of_one_row_waits_for_each() -> None:
    ends = {}
    for rows in (1, 2):
        design = dataclasses.replace(PLAIN, prefetch_bytes=rows * SMALL.row_bytes)
        for count in range(1, 5):
            run = simulate.simulation(design, design.part(), SMALL)
            decision = _simulator.Decision([*range(count)], [0], count, 0)
            ends[rows, count] = run.run_head(decision, count, [0, 1 << 20, 1 << 30], 0.0)[0]
    # CL and two bursts in a row that is open: nothing hides them.
    assert all(ends[1, count + 1] - ends[1, count] >= 14 + 4 + 4 for count in range(1, 4))
    assert all(ends[2, count] < ends[1, count] for count in range(2, 5))


def test_a_longer_window_wastes_more() -> None:
    results = [small(dataclasses.replace(DESIGN, prefetch_bytes=size)) for size in (4096, 16384)]
    assert results[0].wasted_keys.sum() < results[1].wasted_keys.sum()
    assert results[0].keys_read.tolist() == results[1].keys_read.tolist()


def test_cycles_are_bounded_by_bytes() -> None:
    result = small()
    part = DESIGN.part()
    most = part.peak_bytes_per_ns
    read = (result.keys_read + result.values_read).sum() * result.row_bytes
    assert read / most < result.overlapped_cycles < result.serial_cycles.sum()
    assert result.baseline_bytes == SMALL.attention_bytes(300)
    assert result.baseline_bytes / most < result.baseline_overlapped_cycles
    assert result.baseline_overlapped_cycles < result.baseline_serial_cycles
    assert 1 < result.least_speedup < result.speedup
    assert result.least_speedup < result.overlapped_speedup
    assert result.reduction_with_waste < result.reduction


def test_refreshes_come_at_their_rate() -> None:
    part = DESIGN.part()
    shares = (WORKLOAD.key_share, WORKLOAD.value_share)
    narrow = Shape("narrow", 30, 3, 3, 64)  # its steps are short: most take a few intervals
    for shape, heads in ((narrow, 3), (model("opt-1.3b"), 1)):
        result = simulate.run(DESIGN, shape, WORKLOAD, shares, 256, heads, 8)
        for memory in (result.memory, result.baseline_memory):
            expected = part.channels * memory.ns / part.trefi_ns
            assert memory.refreshes == pytest.approx(expected, rel=0.05), shape.name


def test_no_threshold_reads_everything() -> None:
    shares = (2.0, 0.0)
    result = simulate.run(DESIGN, SMALL, WORKLOAD, shares, tokens=100, sampled_lengths=3)
    assert result.key_reduction == result.value_reduction == 1
    assert result.wasted_keys.sum() == 0
    assert result.speedup < 1, "nothing is gained, and indices are read"


def test_early_values_are_faster() -> None:
    early = small(dataclasses.replace(DESIGN, early_values=True))
    assert early.serial_cycles.sum() < small().serial_cycles.sum()


def test_shared_keys_are_read_once() -> None:
    grouped = Shape("grouped", 2, 8, 4, 128)
    shares = (WORKLOAD.key_share, WORKLOAD.value_share)
    results = {
        stop: simulate.run(
            dataclasses.replace(DESIGN, group_stop=stop),
            grouped,
            WORKLOAD,
            shares,
            tokens=300,
            sampled_lengths=3,
        )
        for stop in ("all", "any", "masked")
    }
    rows = {stop: result.keys_read.sum() for stop, result in results.items()}
    assert rows["any"] < rows["all"] == rows["masked"]
    assert results["masked"].values_read.sum() <= results["all"].values_read.sum()
    assert results["all"].baseline_bytes == grouped.attention_bytes(300)


def traced(tokens: int) -> Trace:
    random = np.random.default_rng(4)
    return Trace(
        "made up", 4, 128, list(random.normal(0, 2, (2, 4, tokens, tokens)).astype(np.float16))
    )


def test_a_trace_is_stored_and_read(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    traced(40).save(path)
    trace = Trace.load(path)
    assert trace.shape == dataclasses.replace(SMALL, name="made up")
    assert trace.tokens == 40
    totals, _ = trace.steps(Rule(wave=8, globals=2), SMALL, 1, 2, 40, [])
    own = np.ascontiguousarray(trace.layers[1][2:3], np.float32)
    again = np.zeros((3, 40), np.int32)
    _simulator.traced_steps(Rule(wave=8, globals=2).native, own, [], again)
    assert totals.tolist() == again.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Design.load("scrouge"), "unknown design 'scrouge'. Did you mean 'scrooge'?"),
        (lambda: Synthetic.load("x"), "unknown workload 'x'."),
        (lambda: model("opt-30b"), "unknown model 'opt-30b'. Did you mean 'opt-"),
        (lambda: small(tokens=5000), "tokens=5000: must be in [1, 4096]"),
        (lambda: small(sampled_heads=5), "sampled_heads=5: must be in [1, 4], those of small"),
        (lambda: small(sampled_lengths=1), "sampled_lengths=1: must be at least 2"),
        (lambda: dataclasses.replace(DESIGN, lanes=0), "Design: lanes=0: must be in [1, 256]"),
        (lambda: DESIGN.wave(Shape("wide", 1, 1, 1, 1024)), None),
        (lambda: DESIGN.wave(dataclasses.replace(SMALL, head_size=1000)), None),
        (
            lambda: dataclasses.replace(DESIGN, lanes=1).wave(SMALL),
            "head_size=128: must be at most 64, the width of all lanes",
        ),
        (lambda: Shape("odd", 1, 6, 4, 64), "Shape: kv_heads=4: must divide heads=6"),
        (
            lambda: traced(20).steps(Rule(), SMALL, 0, 0, 30, []),
            "tokens=30: must be at most 20, those of the trace",
        ),
        (
            lambda: traced(20).steps(Rule(), model("opt-1.3b"), 0, 0, 10, []),
            "the trace has 2 layers of 4 heads, opt-1.3b has 24 of 32",
        ),
        (lambda: Trace.load(Path("/none.npz")), "/none.npz: No such file or directory"),
        (lambda: Trace.load(Path(__file__)), "is no .npz file"),
    ],
)
def test_bad_input_is_one_line(call: Any, message: str | None) -> None:
    if message is None:
        assert call() == 1
        return
    with pytest.raises(InputError) as raised:
        call()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_trace_of_another_schema(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, schema=np.array("suffice-logits/2"))
    with pytest.raises(InputError, match=f"schema 'suffice-logits/2': must be '{SCHEMA}'"):
        Trace.load(path)
    np.savez(path, schema=np.array(SCHEMA))
    with pytest.raises(InputError, match="'model' is missing"):
        Trace.load(path)
    sizes = {"model": np.array("m"), "kv_heads": np.array(1), "head_size": np.array(64)}
    np.savez(path, schema=np.array(SCHEMA), layer_1=np.zeros((2, 3, 3)), **sizes)
    with pytest.raises(InputError, match="must have layer_0, layer_1, "):
        Trace.load(path)


@pytest.mark.parametrize("kind", ["<U3", "O", "c8", "f4", "f8", ">f2", "i4"])
def test_layers_of_another_type(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "t.npz"
    sizes = {"model": np.array("m"), "kv_heads": np.array(1), "head_size": np.array(64)}
    layer = np.zeros((2, 3, 3)).astype(kind)
    np.savez(path, schema=np.array(SCHEMA), layer_0=layer, **sizes)
    with pytest.raises(InputError, match=r"layer_0: is of \S+: must be float16$"):
        Trace.load(path)


def test_a_damaged_layer(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    traced(40).save(path)
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        place = file.getinfo("layer_1.npy").header_offset
    raw[place + 2000 : place + 2100] = bytes(100)
    path.write_bytes(raw)
    trace = Trace.load(path)
    assert len(trace.layers[0]) == 4
    with pytest.raises(InputError, match=r"t.npz: layer_1: is damaged$"):
        trace.layers[1]


def test_a_design_with_an_unknown_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((DESIGNS / "scrooge.toml").read_text().replace("lanes =", "lane ="))
    with pytest.raises(InputError, match=r"unknown key of mine.toml 'lane'. Did you mean 'lanes'"):
        Design.load(str(path))


def test_the_speed_up_is_a_mean_over_the_papers_models() -> None:
    found = [check for check in checks.speedup() if "speed-up" in check.what]
    for check in found:
        each = [float(gain) for gain in re.findall(r"[bB] (\d\.\d\d)", check.expected)]
        assert len(each) == len(MODELS) == 6
        assert float(check.ours) == pytest.approx(sum(each) / 6, abs=0.01)
        assert min(each) == each[0], "small heads gain less: opt-1.3b's are the smallest"


@pytest.mark.parametrize("group", checks.GROUPS, ids=lambda group: group.__name__)
def test_published_figures(group: Any) -> None:
    found = group()
    assert found
    assert [check for check in found if check.status == "miss"] == []
