"""Running the command line in a test, and what its output must look like."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

BOUND = (
    r"(at most [\d.]+ %( of the longest value)? on average "
    r"\(worst( [\d.]+ %|: no useful bound)\)|an amount that has no useful bound)"
)
SUMMARY = re.compile(
    r"prompt \d+ tokens( \(\d+ cached\))? [\d.,-]+ tok/s(?: \| |\n)"
    r"decode \d+ tokens [\d.,-]+ tok/s(?: \| |\n)"
    r"(drafts accepted \d+ of \d+, [\d.]+ tokens a step(?: \| |\n))?"
    r"(weights [\w:=,]+?(, run as [\w ]+)?(, [\d.]+ bits a weight)?(?: \| |\n))?"
    r"(prompt attention read [\d.]+ %(, without a bound)?(?: \| |\n))?"
    r"(cache [\d.,]+( [GM]iB)?( -> [\d.,]+)? [GM]iB, read [\d.]+ %(, sketch included)?(?: \| |\n))?"
    r"(up to [\d.]+ % of softmax unread(?: \| |\n))?"
    rf"((after this prompt, )?softmax off by {BOUND}(?: \| |\n))?"
    rf"(outputs moved by {BOUND}(?: \| |\n))?(each bound [\d.]+ % sure(?: \| |\n))?"
    r"(states [\d.,]+ [GM]iB, rewritten each step(?: \| |\n))?"
    r"(experts [\d.,]+ [GM]iB, read [\d.]+ %(?: \| |\n))?"
    r"(up to [\d.]+ % of experts' weights left out(?: \| |\n))?"
    r"memory [\d.,]+ [GM]iB"
)


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


def complaint(ran: Ran) -> str:
    """Return what a command complained of, once sure that it did so in the right form."""
    assert ran.code == 2, ran
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("suffice: error: ")
    return lines[0].removeprefix("suffice: error: ")


_LOADED = """
import json, sys
from suffice.cli import main
commands, modules = json.loads(sys.argv[1])
found = []
for command in commands:
    sys.argv = ["suffice", *command]
    try:
        main()
    except SystemExit:
        found.append([command, [name for name in modules if name in sys.modules]])
print(json.dumps(found))
"""


def loaded_by(
    commands: Sequence[list[str]], modules: list[str]
) -> list[tuple[list[str], list[str]]]:
    """Run commands in a new process, one after the other; return each with what is loaded then."""
    given = [sys.executable, "-c", _LOADED, json.dumps([commands, modules])]
    ran = subprocess.run(given, capture_output=True, text=True, check=True)
    found: list[tuple[list[str], list[str]]] = json.loads(ran.stdout.splitlines()[-1])
    assert len(found) == len(commands), "each ends by itself"
    return found
