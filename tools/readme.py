"""Fill the tables of the pages from the result files, so that no number is written by hand.

Pages are README.md and every page below benchmarks/ and docs/. A marker
`<!-- table: benchmarks/attention/results/speed.json -->` is followed by the table of that file and
`<!-- end -->`; other markers are those of `tools/techniques.py` and `tools/findings.py`. A result
file is what `benchmarks/harness/record.py` writes: JSON with `machine`, `command` and `date`, and
its table in a file of the same name that ends in .md. With `--check`, only report whether pages
and results agree.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import findings
import techniques

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))
from benchmarks.catalog import current  # noqa: E402 (found once the path is there)

PAGES = ("README.md", "benchmarks/README.md", "benchmarks/*/*.md", "docs/**/*.md")
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that may have markers."""
    return sorted(path for pattern in PAGES for path in root.glob(pattern))


def table(path: Path) -> str:
    """Return a result's table in Markdown, with the machine and today's command under it."""
    result = json.loads(path.read_text(encoding="utf-8"))
    machine = f"{result['machine']['cpu']}, {result['machine']['cores']} cores"
    drawn = path.with_suffix(".md").read_text(encoding="utf-8").strip()
    return f"{drawn}\n\n{machine}, {result['date']}: `{current(result['command'])}`\n"


def filled(readme: str, root: Path = ROOT) -> str:
    """Return the README's text with every marked table filled in again.

    A result that does not exist gives the line "Not measured yet.".
    """

    def draw(match: re.Match[str]) -> str:
        path = root / match[2]
        text = table(path) if path.exists() else "Not measured yet.\n"
        return f"{match[1]}{text}{match[3]}"

    return findings.filled(techniques.filled(MARKED.sub(draw, readme)))


def main() -> int:
    """Rewrite the pages, or with `--check` return how many that would change."""
    changed = 0
    for path in pages():
        page = path.relative_to(ROOT)
        before = path.read_text(encoding="utf-8")
        after = filled(before)
        if before == after:
            continue
        changed += 1
        if "--check" in sys.argv[1:]:
            print(f"{page} and its results disagree: run python tools/readme.py")
        else:
            path.write_text(after, encoding="utf-8")
    return changed if "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
