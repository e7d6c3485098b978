"""Print the lengths of files and functions; fail on those too long or with empty names.

A C++ function is found by its layout under clang-format: from a line with the indentation of its
class, or none outside of a class, to a lone brace with the same indentation.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = ["src", "csrc", "tests", "benchmarks", "tools", "examples"]
MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60
MOST_EXAMPLE_LINES = 40
FORBIDDEN = {"utils", "common", "core", "helpers", "base"}


class Function(NamedTuple):
    """A function and its length in lines."""

    name: str
    line: int
    lines: int


def python_functions(text: str) -> list[Function]:
    """Return the functions of a Python module, methods and inner ones included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [Function(n.name, n.lineno, (n.end_lineno or n.lineno) - n.lineno + 1) for n in nodes]


CLASS = re.compile(r"(template <.*> )?(struct|class|union)\b( alignas\(\w+\))?[^()]*\{$")


def native_functions(text: str) -> list[Function]:
    """Return the functions of a C++ file, those of classes included; lambdas are part of theirs."""
    found: list[Function] = []
    indents, head, start, body = [0], "", 0, False
    for number, line in enumerate(text.splitlines()):
        code = line.split("//")[0].rstrip()
        indent = len(code) - len(code.lstrip())
        if not code or code.lstrip().startswith("#"):
            continue
        if not head:
            if indent < indents[-1] and code.lstrip().startswith("}"):
                indents.pop()
            if indent != indents[-1] or code.lstrip().startswith(("namespace", "extern", "}")):
                continue
            start = number
        whole = f"{head} {code.strip()}".strip()
        if not body and CLASS.match(whole):
            indents.append(indents[-1] + 2)
            head = ""
        elif body and indent == indents[-1] and code.endswith(("}", "};")):
            if code.endswith("}"):
                found.append(Function(_named(head), start + 1, number - start + 1))
            head, body = "", False
        elif not body and code.endswith((";", "}")):
            if code.endswith("}") and "(" in whole:
                found.append(Function(_named(whole), start + 1, number - start + 1))
            head = ""
        elif not body:
            head, body = whole, code.endswith("{")
    return found


def _named(head: str) -> str:
    """Return a function's head up to its parameters."""
    return re.sub(r"^template <.*?> (?=\w)", "", head).split("(")[0]


def complaints(path: Path, text: str, functions: list[Function]) -> list[str]:
    """Return a line for every rule that a file breaks; `path` is relative to the repository."""
    lines = text.count("\n")
    most = MOST_EXAMPLE_LINES if path.parts[0] == "examples" else MOST_FILE_LINES
    bad = [f"{path}: {lines} lines, at most {most}"] if lines > most else []
    bad += [f"{path}: the name '{name}' says nothing" for name in FORBIDDEN & set(path.parts)]
    bad += [f"{path}: the name '{path.stem}' says nothing"] if path.stem in FORBIDDEN else []
    for function in functions:
        if function.lines > MOST_FUNCTION_LINES:
            where = f"{path}:{function.line}: {function.name}"
            bad.append(f"{where}: {function.lines} lines, at most {MOST_FUNCTION_LINES}")
    return bad


def main() -> int:
    """Print the table and the complaints; the exit status is 1 if there are any."""
    bad: list[str] = []
    print(
        f"{'folder':12} {'files':>6} {'lines':>7} {'longest file':>13} {'functions':>10} ", end=""
    )
    print(f"{'median':>7} {'longest':>8}")
    for folder in FOLDERS:
        files = [p for p in sorted((ROOT / folder).rglob("*")) if p.suffix in READERS]
        file_lines, function_lines = [0], [0]
        for path in files:
            text = path.read_text(encoding="utf-8")
            functions = READERS[path.suffix](text)
            bad += complaints(path.relative_to(ROOT), text, functions)
            file_lines.append(text.count("\n"))
            function_lines += [function.lines for function in functions]
        median = statistics.median(function_lines[1:] or [0])
        print(f"{folder:12} {len(files):6} {sum(file_lines):7} {max(file_lines):13} ", end="")
        print(f"{len(function_lines) - 1:10} {median:7.0f} {max(function_lines):8}")
    print("\n".join(bad))
    return 1 if bad else 0


READERS = {
    ".py": python_functions,
    ".cpp": native_functions,
    ".h": native_functions,
    ".inl": native_functions,
}

if __name__ == "__main__":
    sys.exit(main())
