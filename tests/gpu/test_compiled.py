"""The kernels compile for GPUs that are not here: they fit, and nothing is spilled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = 99 << 10  # bytes of shared memory that a program may have on the smallest, sm_120


@pytest.mark.parametrize(
    ("target", "size"), [("sm_80", 128), ("sm_90", 64), ("sm_120", 128), ("gfx942", 128)]
)
def test_kernels_fit(target: str, size: int, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("compiled.py")
    command = [sys.executable, "-W", "ignore", str(script), target, str(size)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(found) == 21
    for each in found:
        assert each["shared"] <= SHARED and each["spilled"] == 0, each
