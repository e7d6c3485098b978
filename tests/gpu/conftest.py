"""Tests of the kernels for GPUs; see tests/conftest.py for how they run without one."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs pip install 'suffice[gpu]'")
