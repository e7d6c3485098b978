"""Fill the README's tables from the result files, so that no number in it is written by hand.

A marker `<!-- table: benchmarks/results/speed.json -->` is followed by the table of that file and
`<!-- end -->`. A result file is what `benchmarks/record.py` writes: JSON with `machine`, `command`
and `date`, and beside it the table in a file of the same name that ends in .md. With `--check`,
only say whether README and results agree.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(path: Path) -> str:
    """Return a result's table in Markdown, with the machine and the command under it."""
    result = json.loads(path.read_text(encoding="utf-8"))
    machine = f"{result['machine']['cpu']}, {result['machine']['cores']} cores"
    drawn = path.with_suffix(".md").read_text(encoding="utf-8").strip()
    return f"{drawn}\n\n{machine}, {result['date']}: `{result['command']}`\n"


def filled(readme: str, root: Path = ROOT) -> str:
    """Return the README's text with every marked table drawn anew.

    A result that does not exist leaves a line that says so.
    """

    def draw(match: re.Match[str]) -> str:
        path = root / match[2]
        text = table(path) if path.exists() else "Not measured yet.\n"
        return f"{match[1]}{text}{match[3]}"

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
