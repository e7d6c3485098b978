"""Running the command line in a test, and what its output must look like."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

SUMMARY = re.compile(
    r"prompt \d+ tokens( \(\d+ cached\))? [\d.-]+ tokens/s \| "
    r"decode \d+ tokens [\d.-]+ tokens/s \| "
    r"(drafts accepted \d+ of \d+ \([\d.]+ %\), [\d.]+ tokens a step \| )?"
    r"KV rows read [\d,.]+ of [\d,.]+( \([\d.]+ %\))? \| peak memory \d+ MiB"
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
