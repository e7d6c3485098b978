"""Programs of other people by the server's address: `make clients` installs and runs them.

They need an environment of their own, since they want other versions than the other tests.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import speaking
import tiny
from serving import Served, real, served

PROGRAMS = sorted((Path(__file__).parent / "clients").glob("uses_*.py"))
ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SUFFICE_CLIENTS", ROOT / "build" / "clients")) / "bin" / "python"
SAID = (
    "<think>Hm.</think>Now.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A random model: what it is not bound to is noise."""
    folder = tmp_path_factory.mktemp("clients")
    tiny.make(folder, "llama", tokenizer=True, max_position_embeddings=16384)
    with real(folder) as found:
        yield found


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory, engine_path: None) -> Iterator[Served]:
    """An engine that says one text."""
    folder = speaking.make(tmp_path_factory.mktemp("speaker"), "qwen3", tokens=False)
    says: dict[str, Any] = {"says": SAID, "context": 16384, "ends": True}
    with served(folder, options=says, model="tiny") as found:
        yield found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_of_others(model: Served, speaker: Served, program: Path) -> None:
    name = program.stem.removeprefix("uses_")
    if not PYTHON.exists():
        pytest.skip(f"{name} is not installed: make clients")
    own = [str(PYTHON), "-X", "utf8", str(program), model.url, speaker.url]
    offline = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # it would ask for prices
    ended = subprocess.run(
        own, capture_output=True, text=True, env=offline, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
