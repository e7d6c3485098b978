"""What command lines of benchmarks share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from suffice import native
from suffice.errors import InputError


def printed(name: str, run: Callable[[], str]) -> int:
    """Print what a benchmark returns, and return its exit code; a user's error is one line."""
    try:
        print(run())
    except InputError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 2
    return 0


def quick_or_whole(about: str | None) -> argparse.Namespace:
    """Read the command line of a script with --quick and --output; `about` is its docstring."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes; figures mean nothing")
    parser.add_argument("--output", type=Path, help="folder for the results")
    return parser.parse_args()


def store(
    options: argparse.Namespace,
    script: str,
    data: dict[str, Any],
    table: Callable[[dict[str, Any]], str],
) -> None:
    """Print a result's table and store both with the facts, under the name of a `script` file.

    Results of --quick go to build/results, others next to the script.
    """
    data = record.facts() | data
    usual = record.BUILD / "results" if options.quick else record.results(script)
    record.write(options.output or usual, Path(script).stem, data, table(data))
    print(table(data))


def with_peers(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the flags of a comparison with peers, which has --quick, and read the command line."""
    parser.add_argument("--rounds", type=int, default=None, help="default: 5, quick: 2")
    parser.add_argument("--threads", type=int, default=native.cores())
    parser.add_argument("--jobs", type=int, default=native.cores(), help="compilers at a time")
    parser.add_argument("--output", type=Path, help="folder for the results")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 2 if options.quick else 5
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options
