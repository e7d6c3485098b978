"""Fail on turns of phrase that readers stumble over: `make check` runs this over every text file.

Each phrase has a plainer form, which is printed. The list is short on purpose: it catches habits
and does not replace reading a sentence aloud. A word that code and text share has one spelling.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLAIN = {
    r"so many": "say the number, or 'until' with the condition",
    r"of those that": "a noun with its condition",
    r"of which": "a second sentence",
    r"anew": "again",
    r"thousand million": "billion, or G with a unit",
    r"likeliest": "most likely, or argmax",
    r"beside": "next to, compared with, or in addition to",
    r"whoever": "name who does it",
    r"multiply-adds a second": "multiply-adds per second",
}
SUFFIXES = {".py", ".pyi", ".md", ".cpp", ".h", ".inl", ".toml", ".txt", ".sh", ".yml"}
SKIPPED = {"tools/words.py", "tests/test_tools.py", "src/suffice/data/essay.txt", "CHANGELOG.md"}
PHRASE = re.compile(rf"\b({'|'.join(PLAIN)})\b", re.IGNORECASE)
SPELLED = re.compile(r"\w*quantis\w*", re.IGNORECASE)


def complaints(name: str, text: str) -> list[str]:
    """Return a line for every phrase of a file that has a plainer form or another spelling."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for match in PHRASE.finditer(line):
            plain = PLAIN[match[1].lower()]
            found.append(f"{name}:{number}: '{match[1]}': {plain}")
        for match in SPELLED.finditer(line):
            plain = re.sub("(?i)quantis", "quantiz", match[0])
            found.append(f"{name}:{number}: '{match[0]}': {plain}")
    return found


def files() -> list[str]:
    """Return the tracked text files that people read, stored results excepted."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    paths = [Path(name) for name in listed if name not in SKIPPED and (ROOT / name).exists()]
    return [str(p) for p in paths if p.suffix in SUFFIXES and "results" not in p.parts]


def main() -> int:
    """Print the complaints; the exit status is 1 if there are any."""
    bad: list[str] = []
    names = files()
    for name in names:
        bad += complaints(name, (ROOT / name).read_text(encoding="utf-8"))
    print("\n".join(bad) or f"{len(names)} files use none of the phrases")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
