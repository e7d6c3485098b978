"""The wheel in a fresh environment: no compiler, no PyTorch, and the demo's command runs."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from suffice.serve.page import FILES

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


def needed(first: Distribution) -> list[Distribution]:
    """Return the distributions that one needs, and those that they need, as they say."""
    found: dict[str, Distribution] = {}
    todo = [first]
    while todo:
        wanted = map(Requirement, todo.pop().requires or ())
        for each in wanted:
            own = each.marker is None or each.marker.evaluate({"extra": ""})
            if own and each.name not in found:
                found[each.name] = distribution(each.name)
                todo.append(found[each.name])
    return list(found.values())


def link(wanted: Distribution, folder: Path) -> None:
    """Put a distribution of this environment into another one, as links to what it has there."""
    for name in {file.parts[0] for file in wanted.files or ()} - {"..", "__pycache__"}:
        if not (folder / name).exists():
            (folder / name).symlink_to(Path(str(wanted.locate_file(name))))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of a new environment that has the wheel and what it needs.

    What it needs is what this environment has of that, which pip would unpack for seconds.
    """
    folder = tmp_path_factory.mktemp("wheel")
    ran(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    venv.create(folder / "fresh")  # the pip of this environment installs into it
    programs = folder / "fresh" / "bin"
    (wheel,) = folder.glob("*.whl")
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
    ran(*pip, "install", *quiet, "--no-deps", "--no-index", wheel, PATH=str(programs))
    (packages,) = (folder / "fresh" / "lib").glob("*/site-packages")
    (about,) = packages.glob("suffice-*.dist-info")
    for each in needed(Distribution.at(about)):
        link(each, packages)
    ran(*pip, "check")  # versions, too
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
    code = "from suffice.serve.page import FILES; print(sorted(FILES))"
    assert ran(installed / "python", "-c", code, folder=installed).strip() == str(sorted(FILES))
    licences = "from importlib.metadata import files; print([str(p) for p in files('suffice')])"
    assert "licenses/src/suffice/serve/page/lib/LICENSES.txt" in ran(
        installed / "python", "-c", licences, folder=installed
    )
