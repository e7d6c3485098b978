"""Several threads share an engine: every request has the same result as alone."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fake_engine import fake_llm, mixed, runner_of
from suffice import SamplingParams
from suffice.engine.fair_lock import FairLock

THREADS = 4
TALK = [{"role": "user", "content": "ab"}]


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def params(number: int, turn: int) -> SamplingParams:
    return SamplingParams(seed=10 * number + turn, max_tokens=9, ignore_eos=True)


def slow(history: list[int]) -> Any:
    time.sleep(1e-4)  # another thread comes in
    return mixed(history)


def generated(llm: Any, chosen: SamplingParams) -> str:
    (output,) = llm.generate("ab", chosen, use_tqdm=False)
    return str(output.outputs[0].text)


def streamed(llm: Any, chosen: SamplingParams) -> str:
    return "".join(delta for delta, _ in llm.stream("ab", chosen))


def talked(llm: Any, chosen: SamplingParams) -> str:
    with llm.session() as session:
        return "".join(delta for delta, _ in session.chat(TALK, chosen))


@pytest.mark.parametrize("use", [generated, streamed, talked])
@pytest.mark.usefixtures("many_switches")
def test_threads_do_not_disturb_each_other(use: Callable[[Any, SamplingParams], str]) -> None:
    llm = fake_llm(slow)

    def work(number: int) -> list[str]:
        return [use(llm, params(number, turn)) for turn in range(5)]

    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(work, range(THREADS)))
    alone = fake_llm()
    for number, texts in enumerate(together):
        assert texts == [use(alone, params(number, turn)) for turn in range(5)]
    assert runner_of(llm).open_sequences == []
    assert max(runner_of(llm).batches) > 1, "they decoded together"


def test_who_waits_is_not_overtaken() -> None:
    lock, order, waiting = FairLock(), [], threading.Event()

    def wait() -> None:
        waiting.set()
        with lock.turn():
            order.append("waited")

    for _ in range(10):
        order.clear()
        waiting.clear()
        other = threading.Thread(target=wait)
        with lock.turn():
            other.start()
            waiting.wait()
            time.sleep(0.02)
            with lock.turn():
                order.append("entered again")
        with lock.turn():
            order.append("came back")
        other.join()
        assert order == ["entered again", "waited", "came back"]
