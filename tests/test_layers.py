"""Imports point down the list; names on one line do not import each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
LAYERS = [
    ["cli", "__init__"],
    ["serve", "eval", "integrations", "suffice_hw"],
    ["engine"],
    ["speculate"],
    ["models"],
    ["attention", "policy"],
    ["cache", "quant", "sampling", "pull"],
    ["registry", "native", "sampling_params", "trace"],
    ["errors", "data", "paths", "progress", "_native"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ONLY = {"suffice_hw": {"suffice_hw", "trace", "registry", "errors"}}


def imported(source: str) -> set[str]:
    """Return the parts of suffice that a text imports, anywhere in it; suffice_hw is a part."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "suffice":
            found |= {f"suffice.{a.name}" for a in node.names if a.name != "__version__"}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    names = [name.split(".") for name in found]
    parts = {"suffice_hw" for name in names if name[0] == "suffice_hw"}
    inside = [name[1:] for name in names if name[0] == "suffice"]
    return parts | {name[0] if name and name[0] in LEVEL else "__init__" for name in inside}


def violations(part: str, source: str) -> list[str]:
    """Return a line for each import in the text of a module of `part` that points up or aside."""
    bad = [name for name in imported(source) if name != part and LEVEL[name] <= LEVEL[part]]
    bad += [name for name in imported(source) if part in ONLY and name not in ONLY[part]]
    bad += ["_native"] if "_native" in imported(source) and part != "native" else []
    command_line = LAYERS[0]
    return sorted(f"{part} imports {name}" for name in bad if part not in command_line)


def test_imports_point_down() -> None:
    bad = []
    for path in sorted(SOURCE.rglob("*.py")):
        package, part = path.relative_to(SOURCE).with_suffix("").parts[:2]
        part = package if package == "suffice_hw" else part
        assert part in LEVEL, f"'{part}' has no layer: give it one in LAYERS and in DESIGN.md"
        bad += [f"{path}: {line}" for line in violations(part, path.read_text())]
    assert bad == []


@pytest.mark.parametrize(
    ("part", "source", "complaint"),
    [
        ("cache", "from suffice.engine.config import Config", ["cache imports engine"]),
        ("cache", "def f():\n    import suffice.quant", ["cache imports quant"]),
        ("models", "from suffice import LLM", ["models imports __init__"]),
        ("suffice_hw", "from suffice.cache import GROWTHS", ["suffice_hw imports cache"]),
        ("suffice_hw", "from suffice_hw import settings\nimport suffice.trace", []),
        ("engine", "from suffice_hw.dram import part", ["engine imports suffice_hw"]),
        ("cache", "from suffice import _native", ["cache imports _native"]),
        ("native", "from suffice import _native", []),
        ("engine", "from suffice import native, __version__\nimport torch", []),
    ],
)
def test_the_layer_test_bites(part: str, source: str, complaint: list[str]) -> None:
    assert violations(part, source) == complaint
