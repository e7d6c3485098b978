"""Models of transformers, each loaded once per test file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_reference import load


@pytest.fixture(scope="module")
def models(checkpoints: Callable[[str], Path]) -> Callable[[str], Any]:
    return functools.cache(lambda family: load(checkpoints(family), torch.float32))
