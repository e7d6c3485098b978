"""Ctrl-C ends what the main thread does, and nothing else: not the lock, not other requests."""

from __future__ import annotations

import dis
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from fake_engine import FakeRunner, fake_llm, runner_of
from suffice import SamplingParams
from suffice.engine import fair_lock
from suffice.engine.fair_lock import FairLock
from suffice.engine.interrupts import allowed, deferred

HERE = Path(__file__).parent
SIGNALS = 250
LONG = SamplingParams(max_tokens=9, ignore_eos=True)


@pytest.fixture
def two_threads() -> Iterator[subprocess.Popen[str]]:
    paths = os.pathsep.join(
        [str(HERE.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    child = subprocess.Popen(
        [sys.executable, str(HERE / "interrupted.py"), str(SIGNALS)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    stuck = threading.Timer(120, child.kill)
    stuck.start()
    with child:
        yield child
        stuck.cancel()
        child.kill()


def test_a_waiting_thread_goes_on_after_hundreds_of_interruptions(
    two_threads: subprocess.Popen[str],
) -> None:
    child, pauses = two_threads, random.Random(1)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    for number in range(1, SIGNALS + 1):
        threading.Event().wait(pauses.uniform(0, 2e-3))
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == f"{number}\n", "the second thread waits for ever"
    assert child.wait() == 0


# The code between a thread's entry into the queue and its turn.
IN_LOCK: set[CodeType] = {
    fair_lock.Turn.__enter__.__code__,
    fair_lock.Turn.wait.__code__,
    fair_lock.FairLock.join.__code__,
    fair_lock.FairLock.own.__code__,
}


def interruptible(frame: FrameType, last: int) -> bool:
    """Return whether Python may call a handler after the opcode at `last`, -1 for none."""
    name = dis.opname[frame.f_code.co_code[last]] if last >= 0 else "RESUME"
    return name in ("RESUME", "SEND") or name.startswith("CALL") or "BACKWARD" in name


def interrupt_at(number: int, act: Callable[[], None]) -> bool:
    """Run `act`, interrupted at the `number`-th point where it can be; return whether it was not.

    Signals from outside come at all of them sooner or later, but not in a known order.
    """
    left = number
    last: dict[FrameType, int] = {}

    def opcode(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "opcode":
            left -= interruptible(frame, last.get(frame, -1))
            last[frame] = frame.f_lasti
            if left == 0:
                left = -1
                raise KeyboardInterrupt
        return opcode

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code not in IN_LOCK:
            return None
        frame.f_trace_opcodes = True
        return opcode

    sys.settrace(call)
    try:
        act()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return left > 0


def free(lock: FairLock) -> bool:
    """Return whether another thread gets its turn."""

    def enter() -> None:
        with lock.turn():
            pass

    other = threading.Thread(target=enter, daemon=True)
    other.start()
    other.join(5)
    return not other.is_alive()


@pytest.mark.parametrize("nested", [False, True])
def test_an_interruption_anywhere_in_the_lock_leaves_it_free(nested: bool) -> None:
    for number in range(1, 1000):
        lock = FairLock()

        def twice(lock: FairLock = lock) -> None:
            with lock.turn():
                if nested:
                    with lock.turn():
                        pass

        over = interrupt_at(number, twice)
        assert free(lock), f"taken after an interruption at point {number}"
        if over:
            break
    assert number > 5, "the lock was traced"


def test_who_is_interrupted_while_it_waits_lets_nobody_past_who_is_inside() -> None:
    """The turn before holds the lock still: that the waiting one is gone says nothing of it."""
    for number in range(1, 1000):
        lock, order = FairLock(), list[str]()
        waits = threading.Event()

        def wait(
            lock: FairLock = lock, order: list[str] = order, waits: threading.Event = waits
        ) -> None:
            waits.set()
            with lock.turn():
                order.append("third")

        third = threading.Thread(target=wait, daemon=True)
        with lock.turn():
            over: list[bool] = []
            second = threading.Thread(
                target=lambda lock=lock, over=over, number=number: over.append(
                    interrupt_at(number, lambda: enter(lock))
                ),
                daemon=True,
            )
            second.start()
            second.join(0.02)  # it is interrupted, or waits
            third.start()
            waits.wait()
            third.join(0.005)
            order.append("first")
        second.join(5)
        third.join(5)
        assert order == ["first", "third"], f"interrupted at point {number}"
        if over == [True]:
            break
    assert number > 5, "the lock was traced"


def enter(lock: FairLock) -> None:
    with lock.turn():
        pass


def test_a_step_is_not_interrupted_half_way() -> None:
    llm = fake_llm()
    runner = runner_of(llm)
    verify = runner.verify

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return verify(*given)

    runner.verify = interrupted  # type: ignore[method-assign]
    stream = llm.stream("ab", LONG)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(9):
            next(stream)
    assert runner.batches == [1], "the first decode step was the last, and ran to its end"
    assert runner.open_sequences == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_prompt_of_another_caller_is_run_again_after_an_interruption() -> None:
    class Interrupted(FakeRunner):
        def prefill(self, sequence: Any, tokens: list[int]) -> Any:
            logits = super().prefill(sequence, tokens)
            if len(self.prefilled) == 1:
                signal.raise_signal(signal.SIGINT)
            return logits

    llm = fake_llm()
    llm.runner.__class__ = Interrupted
    other = llm._one("abc", LONG, None)
    llm.loop.add(other)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("c", LONG, use_tqdm=False)
    while not other.finished:
        llm.loop.step()
    (alone,) = fake_llm().generate("abc", LONG, use_tqdm=False)
    assert other.output().outputs == alone.outputs
    assert runner_of(llm).open_sequences == []


def test_a_handler_held_back_is_called_at_the_end_and_within_allowed() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append("handled"))
    try:
        with deferred():
            signal.raise_signal(signal.SIGINT)
            with deferred():
                came.append("held back")
            with allowed():
                came.append("let through")
            signal.raise_signal(signal.SIGINT)
            came.append("held back again")
        assert came == ["held back", "handled", "let through", "held back again", "handled"]
    finally:
        signal.signal(signal.SIGINT, before)
