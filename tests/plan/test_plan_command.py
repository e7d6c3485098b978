"""`suffice plan`: what it prints, writes and refuses."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from commands import Cli, complaint
from planning import calibration
from suffice.cli.plan import drawn
from suffice.cli.plan_flags import LoadFlags, PlanFlags
from suffice.flags import offered
from suffice.plan import calibrate, stored
from suffice.plan.costs import Residual
from suffice.plan.stored import Calibration
from suffice.plan.trace import Arrival, Lengths, made, write

pytestmark = pytest.mark.usefixtures("one_thread")


LOAD = ("--request-rate", "20", "--num-prompts", "60", "--input-len", "50", "--output-len", "10")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> tuple[str, ...]:
    """Make the steps of a model known; return the flags that name it."""
    monkeypatch.setattr(stored, "find", lambda *place: calibration())
    return ("-m", str(checkpoint))


def test_the_fewest_engines_are_found_and_said(cli: Cli, known: tuple[str, ...]) -> None:
    ran = cli("plan", *known, *LOAD, "--slo", "ttft=300ms,tpot=20ms")
    assert ran.code == 0
    lines = ran.err.splitlines()
    assert lines[0].startswith("1 x 2 cores: ") and "miss" in lines[0]
    assert "| 3 x 2 cores |" in ran.out and "costs: planned, 2 threads" in ran.out


def test_json_has_every_try_and_the_same_command_prints_the_same(
    cli: Cli, known: tuple[str, ...]
) -> None:
    command = ("plan", *known, *LOAD, "--slo", "ttft=300ms,tpot=20ms", "-o", "json")
    first, second = cli(*command), cli(*command)
    assert first.out == second.out
    (tries,) = json.loads(first.out).values()
    assert [each["instances"] for each in tries] == [1, 2, 4, 3]
    assert [each["holds"] for each in tries] == [False, False, True, True]
    assert tries[1]["figures"]["requests"] == 60


def test_several_kinds_of_engines_are_compared(cli: Cli, known: tuple[str, ...]) -> None:
    ran = cli("plan", *known, *LOAD, "--cores", "1,4", "--node-cores", "8", "--bandwidth", "100")
    assert ran.code == 0
    assert " x 1 core |" in ran.out and " x 4 cores |" in ran.out


def test_no_number_that_holds_ends_with_1(cli: Cli, known: tuple[str, ...]) -> None:
    ran = cli("plan", *known, *LOAD, "--slo", "ttft=300ms,tpot=20ms", "--most-instances", "2")
    assert ran.code == 1
    assert "more than 2" in ran.out and "miss tpot" in ran.err


@pytest.mark.parametrize(
    ("load", "goal", "missed"),
    [
        (LOAD, "tpot=1us", "miss tpot"),
        (
            (*LOAD[:2], "--num-prompts", "5", "--input-len", "10000"),
            "ttft=1s",
            "are refused or fail",
        ),
    ],
)
def test_goals_that_nothing_can_hold_are_said_at_once(
    cli: Cli, known: tuple[str, ...], load: tuple[str, ...], goal: str, missed: str
) -> None:
    ran = cli("plan", *known, *load, "--slo", goal)
    assert ran.code == 1
    *warned, line = ran.err.splitlines()
    assert len(warned) == (missed == "are refused or fail")
    assert line.startswith("1 x 2 cores: on an idle engine") and missed in line
    assert "| no number |" in ran.out


def test_requests_beyond_the_context_are_said_and_have_no_times(
    cli: Cli, known: tuple[str, ...], tmp_path: Path
) -> None:
    context = calibration().model.context
    write(tmp_path / "trace", [Arrival(0, 10 * context, 5), Arrival(1, context + 1, 5)])
    asked = ("plan", *known, "--trace", str(tmp_path / "trace"))
    ran = cli(*asked, "--plot", str(tmp_path / "p.png"))
    assert ran.code == 1 and "| - | - | - | - |" in re.sub(" +", " ", ran.out)
    said = (
        f"2 of 2 requests exceed the context of {context} tokens (the first has {10 * context} + 5)"
    )
    assert ran.err.splitlines()[0].startswith(f"suffice: warning: {said}: ")
    assert len(ran.err.splitlines()) == 2, "no warning of the picture"
    (own,) = json.loads(cli(*asked, "-o", "json").out, parse_constant=pytest.fail).values()
    assert own[-1]["figures"]["p50_ttft_ms"] is None


def test_a_trace_and_a_picture(cli: Cli, known: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path / "trace", made("bursts", 10, 40, Lengths(50, 10), burst=4))
    picture = tmp_path / "plan.svg"
    ran = cli("plan", *known, "--trace", str(tmp_path / "trace"), "--plot", str(picture))
    assert ran.code == 0
    text = picture.read_text()
    assert "<svg" in text and list(tmp_path.glob("*.part")) == []


def test_the_costs_of_a_calibration_are_shown() -> None:
    text = drawn(calibration())
    # 4 ms, 0.5 ms for each row, and 1 us for each of 8 x 2048 rows that are read.
    assert re.search(r"8 samples, depth 2048 +\| 24.38 ", text)
    assert "median 1.0%, p95 5.0% of 100 calls" in text


@pytest.mark.parametrize("median", [0.02, 0.3])
def test_a_measurement_beside_other_work_is_said(
    median: float, cli: Cli, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = calibration()
    found = replace(found, residual=Residual(median=median, p95=1.0, measured=100))

    class Measuring(contextlib.nullcontext[Any]):
        done, total = 0, 0

        def __init__(self, *given: object) -> None:
            super().__init__(self)

        def steps(self) -> Iterator[None]:
            return iter(())

        def result(self) -> Calibration:
            return found

    saved: list[Calibration] = []
    monkeypatch.setattr(calibrate, "Measuring", Measuring)
    monkeypatch.setattr(stored, "find", lambda *place: None)
    monkeypatch.setattr(stored, "save", saved.append)
    ran = cli("plan", "-m", str(checkpoint), *LOAD)
    assert ran.code == 0 and saved == [found]
    assert ("differ from their costs by 30% in the median" in ran.err) == (median > 0.1)


def test_what_is_not_given_is_as_in_the_server() -> None:
    from suffice.cli.serve import ServerFlags
    from suffice.serve.settings import Settings

    limits, own = ServerFlags().limits, PlanFlags()
    assert own.limits() == limits.read() and own.parallel == Settings.max_num_seqs
    assert own.max_queue == Settings.max_queue
    assert not LoadFlags().given and LoadFlags(rate=1.0).given


RATE = ("--request-rate", "1")
WHOLE = "must be a whole number in ["
BAD = [
    ((), "give --trace FILE or --request-rate N"),
    (("--trace", "absent"), "absent: cannot be read: No such file or directory"),
    (("--trace", "x", *RATE), "--trace and --request-rate contradict each other: give one"),
    (("--request-rate", "0"), "--request-rate 0: must be a number of requests per second above 0"),
    (("--request-rate", "nan"), "--request-rate nan: must be a number of requests per second"),
    (("--request-rate", "x"), "Invalid value for '--request-rate': 'x' is not a number"),
    ((*RATE, "--arrivals", "steady"), "--arrivals steady: must be poisson or bursts."),
    ((*RATE, "--burst-size", "0"), f"--burst-size 0: {WHOLE}1, "),
    ((*RATE, "--num-prompts", "0"), f"--num-prompts 0: {WHOLE}1, "),
    ((*RATE, "--num-prompts", "1" + 30 * "0"), f"0: {WHOLE}1, "),
    ((*RATE, "--input-len", "0"), f"--input-len 0: {WHOLE}1, "),
    ((*RATE, "--input-len", "1" + 30 * "0"), f"0: {WHOLE}1, "),
    ((*RATE, "--output-len", "-3"), f"--output-len -3: {WHOLE}1, "),
    ((*RATE, "--range-ratio", "1"), "--range-ratio 1: must be in [0, 1)"),
    ((*RATE, "--range-ratio", "nan"), "--range-ratio nan: must be in [0, 1)"),
    ((*RATE, "--prefix-len", "-1"), f"--prefix-len -1: {WHOLE}0, "),
    ((*RATE, "--num-prefixes", "0"), f"--num-prefixes 0: {WHOLE}1, "),
    ((*RATE, "--seed", "x"), "Invalid value for '--seed': 'x' is not a whole number"),
    ((*RATE, "--slo", "ttft=fast"), "--slo ttft=fast: must be like ttft=1s,tpot=50ms"),
    ((*RATE, "--slo", ""), "--slo '': must be like"),
    ((*RATE, "--goal", "all"), "--goal all: must be a share"),
    ((*RATE, "--goal", "nan%"), "--goal nan%: must be a share"),
    ((*RATE, "--cores", "two"), "--cores two: must be whole numbers of at least 1"),
    ((*RATE, "--cores", "2,2"), "--cores 2,2: must be whole numbers of at least 1"),
    ((*RATE, "--cores", "8", "--node-cores", "4"), "--cores 8: must be at most --node-cores 4"),
    ((*RATE, "--node-cores", "1"), "must be at most --node-cores 1"),
    ((*RATE, "--instances", "0"), f"--instances 0: {WHOLE}1, "),
    ((*RATE, "--instances", "1" + 30 * "0"), f"0: {WHOLE}1, "),
    ((*RATE, "--most-instances", "0"), f"--most-instances 0: {WHOLE}1, "),
    ((*RATE, "--bandwidth", "-5"), "--bandwidth -5: must be a number of GB/s above 0"),
    ((*RATE, "--bandwidth", "nan"), "--bandwidth nan: must be a number of GB/s above 0"),
    ((*RATE, "--bandwidth", "inf"), "--bandwidth inf: must be a number of GB/s above 0"),
    ((*RATE, "--node-cores", "0"), f"--node-cores 0: {WHOLE}1, "),
    ((*RATE, "-np", "0"), f"-np 0: {WHOLE}1, "),
    ((*RATE, "--max-queue", "-1"), f"--max-queue -1: {WHOLE}0, "),
    ((*RATE, "--step-ms", "0"), "--step-ms 0: must be a number above 0"),
    ((*RATE, "--step-ms", "inf"), "--step-ms inf: must be a number above 0"),
    (
        (*RATE, "--prefix-cache-bytes", "x"),
        "--prefix-cache-bytes x: must be a positive number of bytes",
    ),
    ((*RATE, "--front-request-us", "nan"), "--front-request-us nan: must be microseconds"),
    ((*RATE, "--front-token-us", "-1"), "--front-token-us -1: must be microseconds, at least 0"),
    ((*RATE, "-o", "html"), "-o html: must be md or json"),
    ((*RATE, "--plot", "a.gif"), "--plot a.gif: must end in .png, .svg or .pdf"),
    ((*RATE, "--plot", "no/a.png"), "--plot no/a.png: there is no folder 'no'"),
    ((*RATE, "--speculate", "ngram"), "--speculate: `suffice plan` does not simulate drafts"),
    ((*RATE, "--policy", "snapkv"), "--policy: `suffice plan` simulates no policy that evicts"),
]


@pytest.mark.parametrize(("flags", "said"), BAD)
def test_bad_flags_are_one_line(
    cli: Cli, known: tuple[str, ...], flags: tuple[str, ...], said: str
) -> None:
    ran = cli("plan", *known, *flags)
    assert ran.code == 2 and said in complaint(ran)


def test_every_flag_of_its_own_is_tried_with_a_bad_value() -> None:
    """But those that are on or off."""
    declared = [
        own.names
        for group in (LoadFlags, PlanFlags)
        for field, own in offered(group).values()
        if not isinstance(field.default, bool)
    ]
    tried = {flag for flags, _ in BAD for flag in flags[-2:-1]}
    assert [names for names in declared if tried.isdisjoint(names)] == []


def test_nothing_is_measured_for_bad_values(cli: Cli, checkpoint: Path) -> None:
    ran = cli("plan", "-m", str(checkpoint), *RATE, "-np", "0")
    assert ran.code == 2 and complaint(ran).startswith("-np 0")


def test_no_kept_caches_are_as_in_the_server(cli: Cli, known: tuple[str, ...]) -> None:
    assert cli("plan", *known, *LOAD, "--prefix-cache-bytes", "0").code == 0


def test_it_needs_the_packages_of_the_server(
    cli: Cli, known: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("suffice.plan")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    ran = cli("plan", *known, *LOAD)
    assert ran.code == 2 and "`suffice plan` needs msgspec" in complaint(ran)


def test_ctrl_c_ends_a_simulation(checkpoint: Path) -> None:
    program = """
import sys
from planning import calibration
from suffice.plan import stored
stored.find = lambda *place: calibration()
from suffice.plan.cluster import Cluster
run = Cluster.run
def noted(*arguments, **more):
    print("simulating", flush=True)
    return run(*arguments, **more)
Cluster.run = noted
from suffice.cli import main
main()
"""
    load = ["--request-rate", "5", "--num-prompts", "100000"]
    command = [sys.executable, "-c", program, "plan", "-m", str(checkpoint), *load]
    support = str(Path(__file__).parents[1] / "support")
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": support},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "simulating\n", process.stderr.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "Traceback" not in process.stderr.read()
