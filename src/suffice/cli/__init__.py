"""The command line's entry, which loads little, so that Ctrl-C is handled from the start."""

from __future__ import annotations

import sys
from typing import NoReturn

from suffice.cli.interrupt import INTERRUPTED, ends_process


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    try:
        with ends_process():
            from suffice.cli.commands import execute
        code = execute(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)
