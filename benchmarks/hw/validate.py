"""Store the table of `suffice hw validate`: published figures of accelerators and ours.

    python -m benchmarks.hw.validate            all parts (half a minute)
    python -m benchmarks.hw.validate --quick    the part `exaq`, into build/

The figures come from models of hardware, so they do not depend on the machine.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from suffice_hw import checks

NAME = "validate"
HEAD = ["part", "group", "figure", "published", "ours", "status", "source"]


def computed(parts: list[str]) -> list[dict[str, Any]]:
    """Return the checks of some parts, each with its status."""
    return [
        {"part": part, **dataclasses.asdict(check), "status": check.status}
        for part in parts
        for group in checks.of(part)
        for check in group()
    ]


def table(found: list[dict[str, Any]]) -> str:
    """Return the verdict, the checks, and the reasons of known misses."""
    count = collections.Counter(check["status"] for check in found)
    verdict = ", ".join(f"{count[status]} {status}" for status in sorted(count))
    keys = ("part", "group", "what", "published", "ours", "status", "source")
    rows = [[check[key] for key in keys] for check in found]
    reasons = [
        f"* {check['group']}, {check['what']}: {check['expected']}."
        for check in found
        if check["expected"] and check["status"] != "hit"
    ]
    text = ["## Published figures and ours", f"{len(found)} figures: {verdict}."]
    text += [markdown(HEAD, rows)]
    return "\n\n".join([*text, "Why a figure is a known miss, or was not run:", "\n".join(reasons)])


def main() -> int:
    """Compute and write the table; the status is 1 if a figure misses without a reason."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=checks.PARTS)
    parser.add_argument("--quick", action="store_true", help="the part exaq, results in build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    found = computed(flags.parts or (["exaq"] if flags.quick else list(checks.PARTS)))
    folder = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    record.write(folder, NAME, record.facts() | {"checks": found}, table(found))
    print(table(found))
    return int(any(check["status"] == "miss" for check in found))


if __name__ == "__main__":
    sys.exit(main())
