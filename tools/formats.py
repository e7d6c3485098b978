"""Write docs/formats.md from the tables of the readers: the formats of weights in codes.

With `--check`, only report whether the page is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from suffice.checkpoints.formats.gguf_types import CODES, TYPES, Codes

PAGE = Path(__file__).parent.parent / "docs" / "formats.md"
COLUMNS = 4096  # of the matrices whose bits are shown
PANEL_ROWS, OFFSET = 16, 128
HEAD = """\
# Formats of weights

Generated from the readers' tables by `python tools/formats.py`.

A quantized weight is `scale * level + minimum`. Neighbouring columns of a row, a *group*, share a
scale and a minimum; each weight has a *code*, which selects a level. suffice keeps the codes,
scales and minima of these types as the file has them and only moves them to other places in memory
(`--quant file`, the default). So the weights have the file's values, bit for bit. Of types with a
*grid*, places stay places: each stands for the codes of 8 or 4 neighbouring columns, and is looked
up where it is multiplied.

| GGUF type | bits | group | scale | minimum | levels | a weight in the file | in memory |
|---|---|---|---|---|---|---|---|
"""
FORMS = {
    "none": "none",
    "float16": "float16",
    "power": "power of two",
    "e4m3": "float of 8 bits",
    "nested32": "integer times a float16 of 256 columns",
    "nested": "integer times a float16 of 256 columns",
}
FOOT = """
Other types run as floats, in the type that holds them or as bfloat16:
{}.
`--quant none` and `--dtype` make floats of all types, and other settings of `--quant` round them
again.
"""


def line(name: str, codes: Codes) -> str:
    """Return a type's line of the table."""
    layout, levels = codes
    block = next(each for each in TYPES.values() if each.name == name)
    stored = 8 * block.bytes / block.values
    packed = 8 * layout.panel_bytes(COLUMNS) / (PANEL_ROWS * COLUMNS)
    bits = f"{layout.bits}, in a grid" if layout.grid != "none" else layout.bits
    cells = [name, bits, layout.group, FORMS[layout.scales], FORMS[layout.minima]]
    cells += [
        spelled([int(each) - OFFSET for each in levels]),
        f"{stored:.4g} bits",
        f"{packed:.4g} bits",
    ]
    return f"| {' | '.join(map(str, cells))} |\n"


def spelled(levels: list[int]) -> str:
    """Return levels in a few words."""
    first, last = levels[0], levels[-1]
    return f"{first} to {last}" if levels == list(range(first, last + 1)) else str(levels)[1:-1]


def page() -> str:
    """Return the page in Markdown."""
    others = sorted(block.name for block in TYPES.values() if block.name not in CODES)
    lines = [line(name, codes) for name, codes in CODES.items()]
    return HEAD + "".join(lines) + FOOT.format(", ".join(others))


def main() -> int:
    """Write the page, or with `--check` return 1 if that would change it."""
    found = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(found, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == found:
        return 0
    print("docs/formats.md is out of date: python tools/formats.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
