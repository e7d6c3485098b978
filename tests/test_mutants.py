"""The seeded faults fit the tree, and there is one for everything that is registered."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suffice.attention import ATTENTIONS, SOFTMAXES
from suffice.cache import GROWTHS
from suffice.checkpoints.formats.hf_readers import _READERS
from suffice.experts import EXPERTS
from suffice.policy import POLICIES
from suffice.quant import QUANTS
from suffice.serve import app
from suffice.speculate import SPECULATORS

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))  # tools import each other
mutants: Any = importlib.import_module("mutants")
mutants_faults: Any = importlib.import_module("mutants_faults")
mutants_tree: Any = importlib.import_module("mutants_tree")

FAULTS = mutants_faults.faults()
TABLES = {
    "attention": ATTENTIONS,
    "softmax": SOFTMAXES,
    "policy": POLICIES,
    "experts": EXPERTS,
    "growth": GROWTHS,
    "quant": QUANTS,
    "drafter": SPECULATORS,
}
SEAMS = ("attention", "softmax", "policy", "experts", "growth", "quant", "speculate")
OWN_FORMATS = ("gguf", "safetensors", "suffice", "lora")  # what folders of others do not name
RULES = (  # of who runs when, and what becomes of them
    *("fair-order", "overtaking", "preemption", "limits", "shared-prompts", "prompt-chunks"),
    *("turns-of-threads", "stop-strings", "cancellation", "deadlines", "failures", "prefix-store"),
    *("drafts", "failover", "routing"),
)


def routes() -> Iterator[str]:
    """Yield the paths of the application; files of the page count as the page."""
    settings = SimpleNamespace(page=True, allowed_origins=(), api_keys=())
    models = SimpleNamespace(settings=settings, served=[SimpleNamespace(front=None)])
    found: Any = app.build(models)  # type: ignore[arg-type]
    while not hasattr(found, "routes"):
        found = found._app  # one stands around the other
    for route in found.routes:
        if route.path.startswith("/page/") and "." in route.path:
            yield "/"
        elif getattr(route, "include_in_schema", True) or route.path in ("/live", "/page/server"):
            yield route.path


def needed() -> Iterator[str]:
    """Yield the subjects that must have a fault each."""
    for seam, table in TABLES.items():
        yield from (f"{seam}:{name}" for name in table.names())
    yield from (f"seam:{name}" for name in SEAMS)
    yield from (f"kernel:{path.stem}" for path in (ROOT / "csrc/kernels/parts").glob("*.cpp"))
    yield from (f"format:{name}" for name in (*_READERS, *OWN_FORMATS))
    yield from (f"endpoint:{path}" for path in routes())
    yield from (f"scheduler:{name}" for name in RULES)


def fault(**changes: Any) -> Any:
    """Return a fault of a file that the tests below make."""
    plain = {"name": "one", "subject": "a:b", "file": "made.py", "old": "1", "new": "2"}
    made: dict[str, Any] = {**plain, "why": "x", "tests": ("test_it.py::test_it",), "area": "a"}
    return mutants_faults.Fault(**made | changes)


def tree(folder: Path) -> Path:
    (folder / "made.py").write_text("def value():\n    return 1\n")
    (folder / "test_it.py").write_text(
        "from made import value\n\n\ndef test_it():\n    assert value() == 1\n\n\n"
        "def test_blind():\n    assert value()\n\n\n"
        "class TestAll:\n    text = 'def test_text():'\n\n    def test_own(self):\n        pass\n"
    )
    return folder


def test_all_faults_fit() -> None:
    assert {each.name: found for each in FAULTS if (found := each.complaints(ROOT))} == {}


def test_names_differ() -> None:
    names = [each.name for each in FAULTS]
    assert sorted(set(names)) == sorted(names)


def test_everything_that_is_registered_has_a_fault() -> None:
    assert mutants_faults.missing(FAULTS, needed()) == []


def test_what_has_no_fault_is_missing() -> None:
    found = [fault(subject=subject) for subject in set(needed()) - {"policy:h2o"}]
    assert mutants_faults.missing(found, needed()) == ["policy:h2o"]
    assert {"kernel:codes_few_wide", "format:gptq", "endpoint:/v1/messages"} <= set(needed())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, None),
        ({"old": "3"}, "one: its text is 0 times in made.py"),
        ({"old": "e"}, "one: its text is 3 times in made.py"),
        ({"new": "1"}, "one: changes nothing"),
        ({"file": "gone.py"}, "one: there is no gone.py"),
        ({"tests": ("test_it.py::test_it[a::b]", "test_it.py::TestAll::test_own", ".")}, None),
        ({"tests": ("test_it.py::test_i[a]",)}, "one: there is no test test_it.py::test_i[a]"),
        *(
            ({"tests": (f"test_it.py::{test}",)}, f"one: there is no test test_it.py::{test}")
            for test in ("test_other", "test_text", "test_own", "TestAll::test_it", "test_it::x")
        ),
        ({"tests": ("test_gone.py",)}, "one: there is no test test_gone.py"),
        ({"tests": ()}, "one: names no test, or not what would go wrong"),
    ],
)
def test_a_fault_that_does_not_fit(
    tmp_path: Path, changes: dict[str, Any], complaint: str | None
) -> None:
    assert fault(**changes).complaints(tree(tmp_path)) == ([complaint] if complaint else [])


def test_a_key_that_no_fault_has(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[[fault]]\nname = "x"\nsubjekt = "y"\n')
    with pytest.raises(ValueError, match=r"^a.toml: x: file, new, old, subject, subjekt, tests"):
        mutants_faults.faults(tmp_path)


def test_a_fault_is_there_for_a_while(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    path, made = tree(tmp_path / "tree") / "made.py", mutants_tree.Tree(tmp_path, tmp_path)
    before = path.read_text()
    with made.changed(fault()) as fits:
        assert fits and path.read_text() == before.replace("1", "2")
    assert path.read_text() == before
    with made.changed(fault(old="e")) as fits:
        assert not fits and path.read_text() == before


@pytest.mark.parametrize(
    ("code", "result", "by"),
    [
        (0, "survived", ""),
        (1, "caught", "test_a"),
        (None, "caught", "it hangs"),
        (-11, "caught", "it dies of signal 11"),
        (4, "broken", "pytest could not run the tests"),
    ],
)
def test_what_a_run_says(code: int | None, result: str, by: str) -> None:
    found = mutants.judged(mutants_tree.Ran(code, ["test_a"], 1.0, ""))
    assert (found["result"], found["by"]) == (result, by)


def test_a_small_tree_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault is caught by the test that sees it, and survives one that does not."""
    root = tmp_path / "root"
    made = mutants_tree.Tree(tmp_path / "root", tmp_path / "work", imports=())
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # to load them takes seconds
    root.mkdir()
    tree(root)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    for package in ("suffice", "suffice_hw"):
        (root / "src" / package).mkdir(parents=True)
        (root / "src" / package / "__init__.py").touch()
    with made.held():
        caught = mutants.tried(made, fault(), whole=False)
        survived = mutants.tried(made, fault(tests=("test_it.py::test_blind",)), whole=False)
        results = {"one": caught, "two": {**caught, "by": "test_it.py::test_never"}}
        mutants.distrust(made, results)
    assert (caught["result"], caught["by"]) == ("caught", "test_it.py::test_it")
    assert survived["result"] == "survived"
    assert (root / "made.py").read_text().endswith("return 1\n")
