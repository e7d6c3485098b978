"""Generated parts of the pages: the README's table of techniques, and an entry for each technique.

`<!-- techniques -->` is filled with the table of docs/techniques.toml, whose figures are cells of
stored tables, and `<!-- technique: SEAM NAME -->` with the technique's docstring and options. Each
ends at `<!-- end -->`. `tools/readme.py` calls this.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cells

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "docs/techniques.toml"
MODEL = "SmolLM2-135M"
MARKED = re.compile(r"(<!-- (techniques|technique: \w+ \w+) -->\n).*?(<!-- end -->)", re.DOTALL)
LABELS = ("Source", "Differs", "Exact", "Bound", "Cost", "Native")
SECTION = re.compile(rf"^(?:{'|'.join((*LABELS, 'Example'))}) {{2,}}|^Options$", re.MULTILINE)


def entries() -> list[dict[str, Any]]:
    """Return the entries of docs/techniques.toml, in their order."""
    found: list[dict[str, Any]] = cells.described(SOURCE)["technique"]
    return found


def measured(entry: dict[str, Any]) -> str:
    """Return an entry's measured cost, with the cells that it names."""
    if "says" not in entry:
        return "not measured"
    return cells.filled(entry["says"], results(entry))


def results(entry: dict[str, Any]) -> list[Path]:
    """Return the pages whose cells an entry names."""
    return [ROOT / page for page in entry["result"].split()]


def table() -> str:
    """Return the README's table, below what its figures are of."""
    about = measured(cells.described(SOURCE)["about"]).strip("\n")
    lines = [about, "", f"| seam | technique | what it does | from | measured on {MODEL} |"]
    lines.append("| --- | --- | --- | --- | --- |")
    seam = ""
    for entry in entries():
        first = f"`--{entry['seam']}`" if entry["seam"] != seam else ""
        seam = entry["seam"]
        cost = f"on {entry['on']}: {measured(entry)}" if "on" in entry else measured(entry)
        row = (first, f"`{entry['name']}`", entry["does"], entry["from"], cost)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def section(seam_name: str, name: str) -> str:
    """Return a technique's part of its seam's page."""
    from suffice.cli.techniques import SEAMS, Page, documentation

    seam = next(seam for seam in SEAMS if seam.name == seam_name)
    page = Page.of(seam, name)
    technique = seam.table.load(name)
    body = SECTION.split(documentation(technique), maxsplit=1)[0].partition("\n")[2].strip("\n")
    lines = [f"## `{name}`", "", page.sentence, ""]
    if body:
        lines += ["```text", body, "```", ""]
    found = next((e for e in entries() if (e["seam"], e["name"]) == (seam_name, name)), None)
    if found and "says" in found:
        on = found.get("on", MODEL)
        links = ", ".join(
            f"[{page.stem}](../../{page.relative_to(ROOT)})" for page in results(found)
        )
        lines += [f"Measured on {on}: {measured(found)} ({links}).", ""]
    lines += [f"* {label}: {page.sections[label]}" for label in LABELS if label in page.sections]
    if page.options:
        lines += ["", "| option | default | what it does |", "| --- | --- | --- |"]
        lines += [
            f"| `{key}` | `{page.shown(key)}` | {does} |" for key, does in page.options.items()
        ]
    return "\n".join([*lines, "", f"    suffice run {seam.flag} {page.example} ...", ""])


def filled(text: str) -> str:
    """Return a page's text with its markers filled."""

    def draw(match: re.Match[str]) -> str:
        kind, _, names = match[2].partition(": ")
        return f"{match[1]}{table() if kind == 'techniques' else section(*names.split())}{match[3]}"

    return MARKED.sub(draw, text)
