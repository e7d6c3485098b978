"""The thread team: what fails in one of its threads goes on to the caller."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from suffice import native
from suffice.native import core

WEIGHT = np.arange(64 * 64, dtype=np.float32)


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = native.threads()
    core.set_threads(3)  # more than the cores there may be: threads that fail are waited for
    yield
    core.set_threads(before)


def product() -> np.ndarray:
    linear, y = core.Linear(WEIGHT.view(np.uint8), 64, 64, "float32"), np.zeros((1, 64), np.float32)
    linear(np.ones((1, 64), np.float32), y)
    return y


@pytest.mark.parametrize("thread", range(3))
def test_an_exception_in_a_thread_is_the_caller_s(three_threads: None, thread: int) -> None:
    expected = product()
    for _ in range(20):
        with pytest.raises(MemoryError):
            core.fail_in_thread(thread)
        assert np.array_equal(product(), expected)  # the team works on
    core.fail_in_thread(3)  # there is no such thread, so none fails


def test_an_exception_of_the_only_thread() -> None:
    before = native.threads()
    core.set_threads(1)
    with pytest.raises(MemoryError):
        core.fail_in_thread(0)
    core.set_threads(before)
