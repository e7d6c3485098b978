"""Settings are compared by what techniques say of themselves, never by their names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import suffice
from suffice.attention import ATTENTIONS, SOFTMAXES
from suffice.cache import GROWTHS, KV_DTYPES
from suffice.policy import POLICIES
from suffice.quant import QUANTS
from suffice.registry import Table
from suffice.speculate import SPECULATORS

SOURCE = Path(suffice.__file__).parent
TABLES = (ATTENTIONS, SOFTMAXES, POLICIES, GROWTHS, QUANTS, SPECULATORS)
NAMES = {name for table in TABLES for name in table.names()} | set(KV_DTYPES)
WORDS = {"double", "exact", "full", "none", "self", "step", "float32", "bfloat16"}  # English, types

# Where Python is asked what an object of somebody else has, or whether the C library has a call.
ASKS_OTHERS = {
    "checkpoints/formats/quantized_file.py": "arrays of a file",
    "cli/techniques.py": "whether a seam's techniques name an exact limit",
    "decoder/pages.py": "the system",
    "decoder/shelf.py": "the system",
    "engine/interrupts.py": "signal handlers",
    "integrations/checks.py": "transformers' configurations and modules",
    "integrations/growing_cache.py": "transformers' configurations, and growth policies of a user",
    "integrations/plain_attention.py": "transformers' modules and masks",
    "integrations/transformers.py": "transformers' models and keys",
    "outside.py": "modules and classes of a user",
    "serve/app.py": "bodies of any interface; a few have the id of a request",
    "text/template_sandbox.py": "functions that a template calls",
}


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module but its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    skipped = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
        ):
            yield node.value


def named(source: str) -> set[str]:
    """Return the techniques that a module's texts name, alone, in quotes or as a value."""
    found = set()
    for text in texts(ast.parse(source)):
        quoted = re.findall(r"^(\w+)$|['=](\w+)|(\w+):\w+=", text)
        found |= NAMES & {each for groups in quoted for each in groups}
        found |= (NAMES - WORDS) & set(re.findall(r"\w+", text))
    return found


@pytest.mark.parametrize("module", ["engine/config.py", "engine/runner.py"])
def test_no_technique_is_named(module: str) -> None:
    others = {"float32", "bfloat16", "none"}  # types of weights; no logits
    assert named((SOURCE / module).read_text(encoding="utf-8")) <= others


@pytest.mark.parametrize(
    "line",
    [
        'x == "certified"',
        'POLICIES.load("full")',
        'f"attention=certified, {x}"',
        'f"none:dtype={x}"',
    ],
)
def test_a_name_would_be_found(line: str) -> None:
    assert named(line)


def asks(source: str) -> list[str]:
    """Return the calls that ask an object for a member that it may not have."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3))
    ]


def test_techniques_are_not_asked_what_they_have() -> None:
    found = {
        path.relative_to(SOURCE).as_posix(): calls
        for path in SOURCE.rglob("*.py")
        if "attr" in (text := path.read_text(encoding="utf-8")) and (calls := asks(text))
    }
    assert found.keys() == ASKS_OTHERS.keys()


def test_asking_would_be_found() -> None:
    assert asks("getattr(method, 'hadamard', False)") and asks("hasattr(method, 'site')")
    assert not asks("getattr(method, name)")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_techniques_have_what_their_seam_declares(table: Table) -> None:
    from suffice.attention import Attention
    from suffice.attention.softmax import Softmax
    from suffice.cache import Growth
    from suffice.policy import Policy
    from suffice.quant import Quant
    from suffice.speculate import Speculator

    protocols = (Attention, Softmax, Policy, Growth, Quant, Speculator)
    protocol = dict(zip(TABLES, protocols, strict=True))[table]
    declared = [name for name in vars(protocol) if not name.startswith("_")]
    assert declared
    for name in table.names():
        kind = table.load(name)
        fields = getattr(kind, "__dataclass_fields__", {})
        missing = [one for one in declared if not hasattr(kind, one) and one not in fields]
        assert not missing, name
