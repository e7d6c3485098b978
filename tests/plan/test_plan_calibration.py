"""Calibrations: measured with a real engine, kept, and found again."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commands import Cli, complaint
from planning import calibration
from suffice.engine.config import Config
from suffice.errors import InputError
from suffice.plan import calibrate, stored
from suffice.plan.calibrate import Measuring, Part, Scene, Watched
from suffice.plan.costs import Call
from suffice.plan.stored import Calibration


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure a few steps alone, and none of 16 samples, which take half of the time."""
    scenes = calibrate.scenes

    def few(*given: Any) -> list[Scene]:
        return [each for each in scenes(*given) if each.samples < 16]

    monkeypatch.setattr(calibrate, "scenes", few)
    monkeypatch.setattr(calibrate, "SAMPLES", (1, 3))
    monkeypatch.setattr(calibrate, "DEPTHS", (20, 130))
    monkeypatch.setattr(calibrate, "PARTS", (8, 40))
    monkeypatch.setattr(calibrate, "LONG", 260)
    monkeypatch.setattr(calibrate, "STEPS", 16)
    monkeypatch.setattr(calibrate, "GROUP", 4)
    monkeypatch.setattr(calibrate, "ROUNDS", 1)
    monkeypatch.setattr(calibrate, "_READ_BYTES", 1 << 20)


def test_a_model_is_measured(checkpoint: Path, quick: None) -> None:
    config = Config.create(str(checkpoint), threads=1, max_model_len=4096)
    with Measuring(config, "these") as measuring:
        steps = list(measuring.steps())
        found = measuring.result()
    assert len(steps) == 9 == measuring.total == measuring.done
    assert isinstance(found, Calibration) and found.options == "these" and found.threads == 1
    assert found.model.context == 4096 and found.model.tile_rows == 128
    assert found.model.shares_prompts and found.model.growth.startswith("bmc:copy_cost=")
    costs = found.costs
    assert costs.seconds(Call(1, 1, 20)) > 0 and costs.overhead(1) > 0
    assert costs.mapped > 0 and costs.copied > 0 and costs.weight_bytes > 0
    assert found.residual.measured > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BaseException, "its thread has died"),
        (SystemExit, "a step failed: SystemExit"),
        (RuntimeError, "a step failed: RuntimeError"),
    ],
)
def test_an_engine_that_fails_ends_the_measurement(
    cli: Cli, checkpoint: Path, quick: None, error: type[BaseException], said: str
) -> None:
    """Also if nobody is left to say so."""
    calls, run = 0, Watched.run

    def failing(self: Watched, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 100:
            raise error
        return run(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watched, "run", failing)
        ran = cli("plan", "--calibrate", "-m", str(checkpoint), "-c", "4096", "-t", "1")
    assert ran.code == 2
    last = ran.err.splitlines()[-1]
    assert last == f"suffice: error: the engine failed while it was measured: {said}"


def test_what_calls_compute_is_noted(checkpoint: Path, quick: None) -> None:
    seen: list[Call] = []
    real = calibrate.grouped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            calibrate, "grouped", lambda calls: seen.extend(c.call for c in calls) or real(calls)
        )
        config = Config.create(str(checkpoint), threads=1, max_model_len=4096)
        with Measuring(config, "") as measuring:
            list(measuring.steps())
            measuring.result()
    # The scene of three samples at depth 130: a step when all have begun and none has ended.
    assert any(call.rows == call.outputs == 3 and 3 * 131 <= call.read <= 3 * 170 for call in seen)
    # The second whole tile of the long prompt, whose tokens attend to 128 and to themselves.
    assert Call(128, 0, 0, 128 * 128 + 128 * 129 / 2) in seen
    assert Call(40, 1, 0, 40 * 41 / 2) in seen, "a short prompt, with its last token's logits"


def test_scenes_fit_memory_and_context() -> None:
    all_ = calibrate.scenes(8192, 1000)
    few = calibrate.scenes(8192, 100_000, most_bytes=10**8)
    assert max(each.samples * each.depth for each in few) < max(
        each.samples * each.depth for each in all_
    )
    assert all(each.bytes(100_000) <= 10**8 for each in few)
    assert all(each.depth + each.steps < 600 for each in calibrate.scenes(600, 1000))
    with pytest.raises(InputError, match="is too small, or its memory too large"):
        calibrate.scenes(64, 1000)
    assert Scene(2, 10, 6, also=20).bytes(10) == 10 * (2 * 272 + 20)


def test_a_calibration_is_kept_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFICE_CACHE", str(tmp_path))
    monkeypatch.setattr(stored.machine, "cpu_name", lambda: "test")
    assert stored.find("", 2, "base") is None
    two = calibration()
    costs = dataclasses.replace(
        two.costs, hardware=dataclasses.replace(two.costs.hardware, cores=8)
    )
    eight = msgspec.structs.replace(two, costs=costs)
    stored.save(two)
    stored.save(eight)
    stored.save(msgspec.structs.replace(two, measured="later"))
    assert len(stored.read()) == 2
    near = stored.find("", 3, "base")
    assert near is not None and near.threads == 2 and near.measured == "later"
    assert stored.find("", 6, "base") == eight
    assert stored.find("other", 2, "base") is None and stored.find("", 2, "v3") is None


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1, "calibrations": [{}]}'])
def test_a_damaged_file_is_refused(cli: Cli, checkpoint: Path, tmp_path: Path, text: str) -> None:
    folder = tmp_path / "empty-cache"
    folder.mkdir()
    (folder / "plan.json").write_text(text)
    ran = cli("plan", "-m", str(checkpoint), "--request-rate", "1")
    assert ran.code == 2 and "holds no calibrations: measure again with" in complaint(ran)


def test_the_first_run_measures_and_the_next_does_not(
    cli: Cli, checkpoint: Path, quick: None, tmp_path: Path
) -> None:
    options = ("-m", str(checkpoint), "-c", "4096", "-t", "1", "--num-prompts", "4")
    load = ("--request-rate", "1", "--output-len", "2", "--slo", "ttft=60s")
    first = cli("plan", *options, *load)
    assert first.code == 0 and "measuring the steps of" in first.err
    assert (tmp_path / "empty-cache" / "plan.json").is_file()
    second = cli("plan", *options, *load)
    assert second.code == 0 and "measuring" not in second.err and second.out == first.out
    other = cli("plan", *options, *load, "--attention", "aet")
    assert "measuring the steps of" in other.err, "other options cost something else"


def test_an_interrupted_measurement_goes_on(
    cli: Cli,
    checkpoint: Path,
    quick: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ("plan", "--calibrate", "-m", str(checkpoint), "-c", "4096", "-t", "1")
    real, played = calibrate._play, []

    def play(engine: Any, scene: Scene, *rest: Any) -> None:
        if len(played) == 4:  # the first use of everything, and three scenes
            raise KeyboardInterrupt
        played.append(scene)
        real(engine, scene, *rest)

    monkeypatch.setattr(calibrate, "_play", play)
    ran = cli(*command)
    assert ran.code == 130 and ran.out == ""
    assert ran.err.splitlines()[-1] == (
        "interrupted: 3 measurements are kept; the same command goes on"
    )
    folder = tmp_path / "empty-cache"
    (kept,) = folder.glob("plan-*.json")
    before = stored.parts(kept, Part)
    assert [part.scene for part in before] == played[1:] and all(part.calls for part in before)

    played.clear()
    ran = cli(*command, "-t", "2")
    assert "0 measurements are kept" not in ran.err and ran.code == 130, "others are not mixed in"

    again: list[Scene] = []
    found: list[Part] = []

    def rest(engine: Any, scene: Scene, *more: Any) -> None:
        again.append(scene)
        found[:] = stored.parts(kept, Part)
        real(engine, scene, *more)

    monkeypatch.setattr(calibrate, "_play", rest)
    ran = cli(*command)
    assert ran.code == 0 and "3 measurements are kept of an earlier run" in ran.err
    assert "steps: 9 of 9" in ran.err and len(again) == 1 + 6
    assert found[:3] == before and len(found) == 8
    assert not kept.exists() and len(stored.read()) == 1
    kept.write_bytes(msgspec.json.encode([Part(Scene(7, 7, 7), [], [], [])]))  # of other scenes
    again.clear()
    assert cli(*command).code == 0 and len(again) == 1 + 9


def test_ctrl_c_keeps_what_is_measured(checkpoint: Path, tmp_path: Path) -> None:
    program = """
from suffice.plan import calibrate
calibrate.SAMPLES, calibrate.DEPTHS, calibrate.PARTS = (1, 3), (20, 130), (8,)
calibrate.STEPS = 40
from suffice.cli import main
main()
"""
    command = ["plan", "--calibrate", "-m", str(checkpoint), "-c", "4096", "-t", "1"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SUFFICE_CACHE": str(tmp_path / "cache")},
    ) as process:
        assert process.stderr is not None
        end = time.monotonic() + 60
        while not list((tmp_path / "cache").glob("plan-*.json")):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        said = process.stderr.read()
    (kept,) = (tmp_path / "cache").glob("plan-*.json")
    count = len(stored.parts(kept, Part))
    assert count >= 1
    assert f"interrupted: {count} measurements are kept; the same command goes on\n" in said
    assert "Traceback" not in said


def test_the_costs_alone_can_be_measured(cli: Cli, checkpoint: Path, quick: None) -> None:
    ran = cli("plan", "--calibrate", "-m", str(checkpoint), "-c", "4096", "-t", "1")
    assert ran.code == 0
    assert "8 samples, depth 128" in ran.out and "error of the fit: median" in ran.out
