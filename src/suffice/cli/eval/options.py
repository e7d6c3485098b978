"""The flags of `suffice eval`, a group for each of its commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from suffice.cli.flags import WHOLE, flag

DATA_DIR = flag("--data-dir", help="Folder that has the data, where no hub is reachable.")
OUTPUT = flag("-o", "--output", help="md, csv or json.")
MODE = flag("--mode", help="decode: token by token, as techniques run; prefill: as a prompt.")
MOST_WINDOWS = flag("--limit", help="Most windows; default: all of the text.", **WHOLE)


@dataclass(frozen=True)
class PerplexityFlags:
    """What `eval perplexity` measures, and against what."""

    text: Annotated[str, flag("--text", help="A text file, or wikitext2.")] = "wikitext2"
    data_dir: Annotated[str | None, DATA_DIR] = None
    window: Annotated[
        int, flag("--window", help="Tokens that a prediction may look back on.", **WHOLE)
    ] = 2048
    limit: Annotated[int | None, MOST_WINDOWS] = None
    prompt: Annotated[
        int | None,
        flag(
            "--prompt",
            help="Tokens of a window run as a prompt, which a policy may thin out; default: none.",
            **WHOLE,
        ),
    ] = None
    mode: Annotated[str, MODE] = "decode"
    batch_size: Annotated[
        int, flag("-b", "--batch-size", help="Windows that are decoded together.", **WHOLE)
    ] = 8
    against: Annotated[
        str | None,
        flag(
            "--against", help="Compare with `exact`: the model as it is stored, nothing left out."
        ),
    ] = None
    output: Annotated[str, OUTPUT] = "md"


@dataclass(frozen=True)
class LatencyFlags:
    """Which requests `eval latency` runs."""

    lengths: Annotated[
        str | None,
        flag(
            "--lengths",
            help="Tokens of prompt/output; default: 128/128,128/1920,1920/128,1920/1920.",
        ),
    ] = None
    prompts: Annotated[
        str | None,
        flag("--prompts", help="Instead of fixed lengths: gsm8k, or a file, a prompt per line."),
    ] = None
    data_dir: Annotated[str | None, DATA_DIR] = None
    batch_size: Annotated[
        str | None,
        flag(
            "-b",
            "--batch-size",
            help="Requests that run together, such as 1,8; default: 1, or 32 with --prompts.",
        ),
    ] = None
    limit: Annotated[
        int | None, flag("--limit", help="Most prompts; default: all of them.", **WHOLE)
    ] = None
    max_tokens: Annotated[
        int | None,
        flag("--max-tokens", help="Most new tokens of a prompt; default: 256.", **WHOLE),
    ] = None
    repetitions: Annotated[int, flag("-r", "--repetitions", help="Runs that count.", **WHOLE)] = 3
    output: Annotated[str, OUTPUT] = "md"


@dataclass(frozen=True)
class RulerFlags:
    """What `eval ruler` asks."""

    tasks: Annotated[
        str, flag("--tasks", help="Tasks such as niah_single_1,niah_multiquery; all: all eight.")
    ] = "all"
    lengths: Annotated[
        str, flag("--lengths", help="Tokens of a prompt with its answer, such as 1024,4096.")
    ] = "1024,2048,4096"
    samples: Annotated[
        int, flag("--samples", help="Samples of each task at each length.", **WHOLE)
    ] = 20
    seed: Annotated[
        int, flag("-s", "--seed", help="Same seed, same samples; default: 0.", **WHOLE)
    ] = 0
    batch_size: Annotated[
        int, flag("-b", "--batch-size", help="Prompts that are answered together.", **WHOLE)
    ] = 8
    output: Annotated[str, OUTPUT] = "md"


@dataclass(frozen=True)
class TasksFlags:
    """Which questions `eval tasks` asks."""

    tasks: Annotated[
        str,
        flag(
            "--tasks",
            help="Of piqa, arc_easy, arc_challenge, hellaswag, winogrande, boolq, openbookqa.",
        ),
    ] = "piqa"
    data_dir: Annotated[str | None, DATA_DIR] = None
    limit: Annotated[
        int | None,
        flag("--limit", help="Most questions of a task; default: all of them.", **WHOLE),
    ] = None
    mode: Annotated[str, MODE] = "decode"
    batch_size: Annotated[
        int, flag("-b", "--batch-size", help="Answers that are decoded together.", **WHOLE)
    ] = 8
    output: Annotated[str, OUTPUT] = "md"
