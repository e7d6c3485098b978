"""Imports point down the list, never round in a circle; names on one line do not import each other.

`suffice_hw`, a package of its own, counts as one part of the list. The rooms of `serve` have a list
of their own. Imports for types alone count as well.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
LAYERS = [
    ["cli", "__init__"],
    ["plan", "integrations"],
    ["serve", "eval", "train", "suffice_hw"],
    ["engine"],
    ["speculate"],
    ["quantize"],
    ["text"],
    ["checkpoints"],
    ["decoder"],
    ["backends"],
    ["attention", "experts", "policy"],
    ["cache", "dialects", "quant", "sampling", "pull"],
    ["registry", "native", "sampling_params", "trace"],
    ["outside", "warned"],
    ["arrays", "errors", "data", "flags", "paths", "progress", "_native"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ROOMS = [  # of serve; its other modules stand above them
    ["interfaces", "page"],
    ["http"],
    ["processes"],
    ["errors", "settings"],
]
ROOM = {name: level for level, names in enumerate(ROOMS) for name in names}
PLAIN = {
    "attention",
    "experts",
    "policy",
    "quant",
}  # techniques, which must work without the compiled extension
CORE = {  # who may make objects of the extension
    "suffice.backends.cpu.attention",
    "suffice.backends.cpu.linear",
    "suffice.backends.cpu.outliers",
    "suffice.backends.cpu.packing",
    "suffice.backends.cpu.rounding",
    "suffice.backends.cpu.rules",
    "suffice.cache.kv",
    "suffice.cache.stored_rows",
    "suffice.cache.with_head",
    "suffice.decoder.native_blocks",
    "suffice.decoder.native_states",
    "suffice.engine.heads",
    "suffice.engine.runner",
    "suffice.integrations.requests",
    "suffice.checkpoints.formats.gguf_header",
    "suffice.checkpoints.formats.gguf_types",
    "suffice.checkpoints.stored_file",
    "suffice.decoder.key_rounding",
    "suffice.decoder.native_model",
    "suffice.sampling.rows",
    "suffice.sampling.state",
}
ONLY = {"suffice_hw": {"suffice_hw", "trace", "registry", "errors", "paths"}}
USES_CORE = re.compile(r"\bnative\.core\b")
FILES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def part_of(module: str) -> str:
    """Return the part of the list that a module belongs to."""
    package, *inside = module.split(".")
    return package if package == "suffice_hw" else inside[0] if inside else "__init__"


@functools.cache
def statements(source: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Return each import of a text, wherever it stands, and whether it is for types alone."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []
    todo: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while todo:
        node, for_types = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, for_types))
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            todo += [(each, True) for each in node.body]
            todo += [(each, for_types) for each in node.orelse]
        elif not isinstance(node, ast.expr):  # an expression holds no import
            todo += [(each, for_types) for each in ast.iter_child_nodes(node)]
    return found


def names(source: str, types: bool) -> Iterator[tuple[str, str | None]]:
    """Return what a text imports anywhere in it: modules, and names from them."""
    for node, for_types in statements(source):
        if for_types and not types:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        else:
            yield from ((node.module or "", alias.name) for alias in node.names)


def imported(source: str) -> set[str]:
    """Return the parts that a module's text imports, anywhere in it, for types too."""
    found = set()
    for node, _ in statements(source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module == "suffice":
            found |= {f"suffice.{a.name}" for a in node.names if a.name != "__version__"}
        else:
            found.add(node.module or "")
    parts = {part_of(name) for name in found if name.split(".")[0] in ("suffice", "suffice_hw")}
    return {part if part in LEVEL else "__init__" for part in parts}


def takes_core(source: str) -> bool:
    """Return whether a module takes the extension's objects from `suffice.native`."""
    found = ("suffice.native", "core") in names(source, types=False)
    return found or bool(USES_CORE.search(source))


def violations(part: str, source: str) -> list[str]:
    """Return a line for each import in the text of a module of `part` that points up or aside."""
    bad = [name for name in imported(source) if name != part and LEVEL[name] <= LEVEL[part]]
    bad += [name for name in imported(source) if part in ONLY and name not in ONLY[part]]
    bad += ["native"] if "native" in imported(source) and part in PLAIN else []
    bad += ["_native"] if "_native" in imported(source) and part != "native" else []
    command_line = LAYERS[0]
    return sorted(f"{part} imports {name}" for name in bad if part not in command_line)


def modules(source: str, known: Collection[str]) -> set[str]:
    """Return the known modules that a text imports; `suffice.__version__` is of none."""
    targets = {f"{name}.{what}" if what else name for name, what in names(source, types=True)}
    targets -= {"suffice.__version__", "suffice._native"}
    return {each if each in known else each.rpartition(".")[0] for each in targets} & set(known)


def upward(module: str, source: str, known: Collection[str]) -> list[str]:
    """Return a line for each import of a room of `serve` that does not point down the rooms."""
    room = module.split(".")[2]
    own = modules(source, known)
    found = {each.split(".")[2] for each in own if each.startswith("suffice.serve.")} - {room}
    higher = sorted(each for each in found if ROOM.get(each, -1) <= ROOM[room])
    return [f"{room} imports {each}" for each in higher]


def circle(sources: dict[str, str]) -> list[str]:
    """Return a cycle of modules, each importing the next; an empty list if there is none."""
    graph = {module: modules(source, sources) - {module} for module, source in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def drawn(text: str) -> list[set[str]]:
    """Return the parts on each line of DESIGN.md's table of rooms."""
    table = text.partition("| room | what is in it |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [{name.split("/")[0] for name in re.findall("`(.+?)`", cell)} for cell in cells]


def test_the_table_of_design_is_this_list() -> None:
    own = [set(names) - {"__init__", "_native", "suffice_hw"} for names in LAYERS]
    assert drawn((SOURCE.parent / "DESIGN.md").read_text()) == own


def test_imports_point_down() -> None:
    unplaced = sorted({part_of(module) for module in FILES} - set(LEVEL))
    assert not unplaced, f"{unplaced} have no layer: give them one in LAYERS and in DESIGN.md"
    bad = {
        module: found
        for module, path in FILES.items()
        if (found := violations(part_of(module), path.read_text()))
    }
    assert not bad


def test_imports_point_down_the_rooms_of_serve() -> None:
    inside = [each for each in FILES if each.startswith("suffice.serve.")]
    bad = {
        module: found
        for module in inside
        if module.split(".")[2] in ROOM
        and (found := upward(module, FILES[module].read_text(), FILES))
    }
    assert not bad
    assert {each.split(".")[2] for each in inside} >= set(ROOM)


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("http.guard", "from suffice.serve.page import FILES", ["http imports page"]),
        ("page.browser", "import suffice.serve.http.bodies", []),
        ("page.browser", "from suffice.serve.interfaces import chat", ["page imports interfaces"]),
        ("errors", "def f():\n    from suffice.serve import app", ["errors imports app"]),
        ("processes.wire", "from suffice.serve.settings import Settings", []),
        ("processes.wire", "from suffice.serve.processes import link", []),
    ],
)
def test_the_test_of_rooms_bites(module: str, source: str, complaint: list[str]) -> None:
    assert upward(f"suffice.serve.{module}", source, FILES) == complaint


def test_few_modules_make_objects_of_the_extension() -> None:
    found = {module for module, path in FILES.items() if takes_core(path.read_text())}
    assert found == CORE


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f():\n    from suffice.native import PANEL, core", True),
        ("from suffice import native\nnative.core.Arena()", True),
        ("from suffice import native\nnative.cores()", False),
        ("from suffice.native import PANEL", False),
    ],
)
def test_the_test_of_the_core_bites(source: str, found: bool) -> None:
    assert takes_core(source) == found


def test_imports_form_no_circle() -> None:
    found = circle({module: path.read_text() for module, path in FILES.items()})
    assert not found


@pytest.mark.parametrize(
    ("part", "source", "complaint"),
    [
        ("cache", "from suffice.engine.config import Config", ["cache imports engine"]),
        ("cache", "def f():\n    import suffice.quant", ["cache imports quant"]),
        ("decoder", "from suffice import LLM", ["decoder imports __init__"]),
        ("suffice_hw", "from suffice.cache import GROWTHS", ["suffice_hw imports cache"]),
        ("suffice_hw", "from suffice_hw import settings\nimport suffice.trace", []),
        ("engine", "from suffice_hw.dram import part", ["engine imports suffice_hw"]),
        ("cache", "from suffice import _native", ["cache imports _native"]),
        ("native", "from suffice import _native", []),
        ("engine", "from suffice import native, __version__\nimport torch", []),
        (
            "attention",
            "def f():\n    from suffice.native import core",
            ["attention imports native"],
        ),
        ("policy", "from suffice.backends.cpu import rules", ["policy imports backends"]),
        ("decoder", "from suffice.backends.cpu.rules import native_rule", []),
    ],
)
def test_the_layer_test_bites(part: str, source: str, complaint: list[str]) -> None:
    assert violations(part, source) == complaint


@pytest.mark.parametrize(
    ("upper", "lower", "found"),
    [
        ("from p.lower import f", "def f():\n    from p import upper", {"p.upper", "p.lower"}),
        ("import p.lower", "from p.upper import g", {"p.upper", "p.lower"}),
        ("import p.lower", "if TYPE_CHECKING:\n    from p.upper import G", {"p.upper", "p.lower"}),
        ("import p.lower", "if TYPE_CHECKING:\n    pass\nelse:\n    import p", {"p", "p.lower"}),
        ("import p.lower", "import q", set()),
    ],
)
def test_the_test_of_circles_bites(upper: str, lower: str, found: set[str]) -> None:
    package = "import p.lower" if "p" in found else ""
    assert set(circle({"p": package, "p.upper": upper, "p.lower": lower})) == found
