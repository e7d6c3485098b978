"""The names of the parts of a GGUF file that is split, as llama.cpp's `gguf-split` names them."""

from __future__ import annotations

import re

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MOST = 1000


def parts_of(name: str) -> tuple[str, ...]:
    """Return the names or paths of all parts of a file, in order; of a whole one, its own."""
    found = _PART.fullmatch(name)
    count = 0 if found is None else int(found["count"])
    if found is None or not 1 <= count <= _MOST:
        return (name,)
    return tuple(f"{found['stem']}-{at:05}-of-{count:05}.gguf" for at in range(1, count + 1))


def stem_of(name: str) -> str:
    """Return the name of a .gguf file without its ending and the number of its part."""
    found = _PART.fullmatch(name)
    return name.removesuffix(".gguf") if found is None else found["stem"]
