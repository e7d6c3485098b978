"""What tests of `suffice calibrate` and `suffice quantize` share: a text, and how it is given."""

from __future__ import annotations

from pathlib import Path

from sample_text import OWLS
from suffice import SamplingParams

TEXT = OWLS * 12
ASKED = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def text_flags(folder: Path, windows: int) -> list[str]:
    """Write the text to a folder; return the flags that name it and cut it into windows."""
    (folder / "text.txt").write_text(TEXT)
    return ["--text", str(folder / "text.txt"), "--window", "40", "--limit", str(windows)]
