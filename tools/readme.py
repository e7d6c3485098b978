"""Fill the README's tables from the result files, so that no number in it is written by hand.

A marker `<!-- table: benchmarks/results/speed.json -->` is followed by the table of that file and
`<!-- end -->`. A result file is JSON with `machine`, `command`, `date` and
`table: {"columns": [...], "rows": [[...], ...]}`. With `--check`, only say whether README and
results agree.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def table(result: dict[str, Any]) -> str:
    """Return a result's table in Markdown, with the machine and the command under it."""
    columns, rows = result["table"]["columns"], result["table"]["rows"]
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    drawn = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
    source = f"{result['machine']}, {result['date']}: `{result['command']}`"
    return "\n".join([*drawn, "", source]) + "\n"


def filled(readme: str, root: Path = ROOT) -> str:
    """Return the README's text with every marked table drawn anew.

    A result that does not exist leaves a line that says so.
    """

    def draw(match: re.Match[str]) -> str:
        path = root / match[2]
        text = "Not measured yet.\n"
        if path.exists():
            text = table(json.loads(path.read_text(encoding="utf-8")))
        return f"{match[1]}{text}{match[4]}"

    return MARKED.sub(draw, readme)


def main() -> int:
    """Rewrite the README, or with `--check` return 1 if that would change it."""
    path = ROOT / "README.md"
    before = path.read_text(encoding="utf-8")
    after = filled(before)
    if "--check" in sys.argv[1:]:
        if before != after:
            print("README.md and benchmarks/results disagree: run python tools/readme.py")
        return int(before != after)
    path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
