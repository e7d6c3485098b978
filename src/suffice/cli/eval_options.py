"""The flags of `suffice eval`, a group for each of its commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from suffice.cli.options import WHOLE, flag

DATA_DIR = flag("--data-dir", help="Folder that has the data, where no hub is reachable.")
OUTPUT = flag("-o", "--output", help="md, csv or json.")


@dataclass(frozen=True)
class PerplexityFlags:
    """What `eval perplexity` measures, and against what."""

    text: Annotated[str, flag("--text", help="A text file, or wikitext2.")] = "wikitext2"
    data_dir: Annotated[str | None, DATA_DIR] = None
    window: Annotated[
        int, flag("--window", help="Tokens that a prediction may look back on.", **WHOLE)
    ] = 2048
    limit: Annotated[
        int | None, flag("--limit", help="Most windows; default: all of the text.", **WHOLE)
    ] = None
    mode: Annotated[
        str,
        flag("--mode", help="decode: token by token, as techniques run; prefill: as a prompt."),
    ] = "decode"
    batch_size: Annotated[
        int, flag("-b", "--batch-size", help="Windows that are decoded together.", **WHOLE)
    ] = 8
    against: Annotated[
        str | None,
        flag("--against", help="Compare with `exact`: the model as it is, nothing left out."),
    ] = None
    output: Annotated[str, OUTPUT] = "md"
