"""The wheel in a fresh environment: no compiler, no PyTorch, and the demo's command runs."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def ran(*command: str | Path, folder: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of a new environment that has the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("wheel")
    ran(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    venv.create(folder / "fresh")  # the pip of this environment installs into it
    programs = folder / "fresh" / "bin"
    (wheel,) = folder.glob("*.whl")
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
    ran(*pip, "install", *quiet, wheel, PATH=str(programs))
    return programs


def test_the_demo_runs_without_a_compiler_and_without_torch(
    installed: Path, checkpoint: Path, tmp_path: Path
) -> None:
    flags = ["--model", checkpoint, "--temp", "0", "--n-predict", "8"]
    alone = {"PATH": str(installed), "SUFFICE_CACHE": str(tmp_path)}
    one, two = (ran(installed / "suffice", "run", *flags, "hi", **alone) for _ in range(2))
    assert one.strip() and one == two
    missing = "from importlib.util import find_spec as f; print([f('torch'), f('transformers')])"
    assert ran(installed / "python", "-c", missing, **alone).strip() == "[None, None]"


def test_the_servers_page_is_in_the_wheel(installed: Path) -> None:
    code = "from importlib.resources import files as f; print([p.name for p in f('{}').iterdir()])"
    found = ran(installed / "python", "-c", code.format("suffice.serve.page"), folder=installed)
    page = ROOT / "src" / "suffice" / "serve" / "page"
    for each in page.glob("*.*"):
        assert f"'{each.name}'" in found
