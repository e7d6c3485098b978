"""The flags of `suffice eval`, one group per command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from suffice.cli.flags import WHOLE, flag

DATA_DIR = flag("--data-dir", help="Folder with the data sets, if no hub is reachable.")
CALIBRATION_TEXT = (
    "The text to calibrate on, not the one to test on: a file, or wikitext2 (its test part)."
)
OUTPUT = flag("-o", "--output", help="Format: md, csv or json.")
MODE = flag("--mode", help="decode: token by token, with the techniques; prefill: as one prompt.")
MOST_WINDOWS = flag("--limit", help="Maximum number of windows; default: all.", **WHOLE)


@dataclass(frozen=True)
class PerplexityFlags:
    """Text, windows and reference of `eval perplexity`."""

    text: Annotated[str, flag("--text", help="A text file, or wikitext2 (its test part).")] = (
        "wikitext2"
    )
    data_dir: Annotated[str | None, DATA_DIR] = None
    window: Annotated[
        int,
        flag("--window", help="Tokens per window; each window starts without context.", **WHOLE),
    ] = 2048
    limit: Annotated[int | None, MOST_WINDOWS] = None
    prompt: Annotated[
        int | None,
        flag(
            "--prompt",
            help="First tokens of a window run as a prompt, for policies that evict; default: 0.",
            **WHOLE,
        ),
    ] = None
    mode: Annotated[str, MODE] = "decode"
    batch_size: Annotated[
        int, flag("-b", "--batch-size", help="Windows decoded together.", **WHOLE)
    ] = 8
    against: Annotated[
        str | None,
        flag(
            "--against",
            help="Compare with `exact`, the same model with nothing left out, or with another "
            "model of the same vocabulary, as it is stored.",
        ),
    ] = None
    output: Annotated[str, OUTPUT] = "md"


@dataclass(frozen=True)
class LatencyFlags:
    """Requests of `eval latency`."""

    lengths: Annotated[
        str | None,
        flag(
            "--lengths",
            help="Tokens of PROMPT/OUTPUT; default: 128/128,128/1920,1920/128,1920/1920.",
        ),
    ] = None
    prompts: Annotated[
        str | None,
        flag(
            "--prompts",
            help="Real prompts instead of --lengths: gsm8k, or a file with a prompt per line.",
        ),
    ] = None
    data_dir: Annotated[str | None, DATA_DIR] = None
    batch_size: Annotated[
        str | None,
        flag(
            "-b",
            "--batch-size",
            help="Requests run together, such as 1,8; default: 1, or 32 with --prompts.",
        ),
    ] = None
    limit: Annotated[
        int | None, flag("--limit", help="Maximum number of prompts; default: all.", **WHOLE)
    ] = None
    max_tokens: Annotated[
        int | None,
        flag("--max-tokens", help="Maximum new tokens per prompt; default: 256.", **WHOLE),
    ] = None
    repetitions: Annotated[int, flag("-r", "--repetitions", help="Measured runs.", **WHOLE)] = 3
    output: Annotated[str, OUTPUT] = "md"


@dataclass(frozen=True)
class RulerFlags:
    """Tasks, lengths and samples of `eval ruler`."""

    tasks: Annotated[
        str, flag("--tasks", help="Tasks such as niah_single_1,niah_multiquery, or all (eight).")
    ] = "all"
    lengths: Annotated[
        str, flag("--lengths", help="Tokens of prompt and answer together, such as 1024,4096.")
    ] = "1024,2048,4096"
    samples: Annotated[
        int, flag("--samples", help="Samples of each task at each length.", **WHOLE)
    ] = 20
    seed: Annotated[
        int, flag("-s", "--seed", help="Same seed, same samples; default: 0.", **WHOLE)
    ] = 0
    batch_size: Annotated[
        int, flag("-b", "--batch-size", help="Prompts answered together.", **WHOLE)
    ] = 8
    output: Annotated[str, OUTPUT] = "md"


@dataclass(frozen=True)
class LongBenchFlags:
    """Tasks, lengths and samples of `eval longbench`."""

    tasks: Annotated[
        str, flag("--tasks", help="Tasks such as multi_news,hotpotqa, or all (21).")
    ] = "multi_news"
    data_dir: Annotated[str | None, DATA_DIR] = None
    length: Annotated[
        int | None,
        flag(
            "--length",
            help="Most tokens of prompt and answer; longer prompts lose their middle; default: "
            "the model's context.",
            **WHOLE,
        ),
    ] = None
    samples: Annotated[
        int | None,
        flag("--samples", help="Maximum number of samples per task; default: all.", **WHOLE),
    ] = None
    batch_size: Annotated[
        int, flag("-b", "--batch-size", help="Prompts answered together.", **WHOLE)
    ] = 8
    against: Annotated[
        str | None,
        flag(
            "--against",
            help="Compare with `exact`, the same model with nothing left out, or with another "
            "model as it is stored.",
        ),
    ] = None
    output: Annotated[str, OUTPUT] = "md"


@dataclass(frozen=True)
class TasksFlags:
    """Tasks and questions of `eval tasks`."""

    tasks: Annotated[
        str,
        flag(
            "--tasks",
            help="From piqa, arc_easy, arc_challenge, hellaswag, winogrande, boolq, openbookqa.",
        ),
    ] = "piqa"
    data_dir: Annotated[str | None, DATA_DIR] = None
    limit: Annotated[
        int | None,
        flag("--limit", help="Maximum number of questions per task; default: all.", **WHOLE),
    ] = None
    mode: Annotated[str, MODE] = "decode"
    batch_size: Annotated[
        int, flag("-b", "--batch-size", help="Answers decoded together.", **WHOLE)
    ] = 8
    output: Annotated[str, OUTPUT] = "md"
