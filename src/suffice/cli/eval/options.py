"""The flags of `suffice eval`, one group per command."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from suffice.cli.flags import flag

DATA_DIR = partial(flag, None, "--data-dir", "Folder with the data sets, if no hub is reachable.")
CALIBRATION_TEXT = (
    "The text to calibrate on, not the one to test on: a file, or wikitext2 (its test part)."
)
OUTPUT = partial(flag, "md", "-o --output", "Format: md, csv or json.")
MODE = partial(
    flag,
    "decode",
    "--mode",
    "decode: token by token, with the techniques; prefill: as one prompt.",
)
MOST_WINDOWS = partial(flag, None, "--limit", "Maximum number of windows; default: all.")


@dataclass(frozen=True)
class PerplexityFlags:
    """Text, windows and reference of `eval perplexity`."""

    text: str = flag("wikitext2", "--text", "A text file, or wikitext2 (its test part).")
    data_dir: str | None = DATA_DIR()
    window: int = flag(2048, "--window", "Tokens per window; each window starts without context.")
    limit: int | None = MOST_WINDOWS()
    prompt: int | None = flag(
        None,
        "--prompt",
        "First tokens of a window run as a prompt, for policies that evict; default: 0.",
    )
    mode: str = MODE()
    batch_size: int = flag(8, "-b --batch-size", "Windows decoded together.")
    against: str | None = flag(
        None,
        "--against",
        "Compare with `exact`, the same model with nothing left out, or with another "
        "model of the same vocabulary, as it is stored.",
    )
    output: str = OUTPUT()


@dataclass(frozen=True)
class LatencyFlags:
    """Requests of `eval latency`."""

    lengths: str | None = flag(
        None, "--lengths", "Tokens of PROMPT/OUTPUT; default: 128/128,128/1920,1920/128,1920/1920."
    )
    prompts: str | None = flag(
        None,
        "--prompts",
        "Real prompts instead of --lengths: gsm8k, spec-bench, speed-bench, or a file with a "
        "prompt per line.",
    )
    data_dir: str | None = DATA_DIR()
    batch_size: str | None = flag(
        None,
        "-b --batch-size",
        "Requests run together, such as 1,8; default: 1, or 32 with --prompts.",
    )
    limit: int | None = flag(None, "--limit", "Maximum number of prompts; default: all.")
    max_tokens: int | None = flag(
        None, "--max-tokens", "Maximum new tokens per prompt; default: 256."
    )
    repetitions: int = flag(3, "-r --repetitions", "Measured runs.")
    output: str = OUTPUT()


@dataclass(frozen=True)
class RulerFlags:
    """Tasks, lengths and samples of `eval ruler`."""

    tasks: str = flag(
        "all", "--tasks", "Tasks such as niah_single_1,niah_multiquery, or all (eight)."
    )
    lengths: str = flag(
        "1024,2048,4096", "--lengths", "Tokens of prompt and answer together, such as 1024,4096."
    )
    samples: int = flag(20, "--samples", "Samples of each task at each length.")
    seed: int = flag(0, "-s --seed", "Same seed, same samples; default: 0.")
    batch_size: int = flag(8, "-b --batch-size", "Prompts answered together.")
    output: str = OUTPUT()


@dataclass(frozen=True)
class LongBenchFlags:
    """Tasks, lengths and samples of `eval longbench`."""

    tasks: str = flag("multi_news", "--tasks", "Tasks such as multi_news,hotpotqa, or all (21).")
    data_dir: str | None = DATA_DIR()
    length: int | None = flag(
        None,
        "--length",
        "Most tokens of prompt and answer; longer prompts lose their middle; default: "
        "the model's context.",
    )
    samples: int | None = flag(
        None, "--samples", "Maximum number of samples per task; default: all."
    )
    batch_size: int = flag(8, "-b --batch-size", "Prompts answered together.")
    against: str | None = flag(
        None,
        "--against",
        "Compare with `exact`, the same model with nothing left out, or with another "
        "model as it is stored.",
    )
    output: str = OUTPUT()


@dataclass(frozen=True)
class TasksFlags:
    """Tasks and questions of `eval tasks`."""

    tasks: str = flag(
        "piqa",
        "--tasks",
        "From piqa, arc_easy, arc_challenge, hellaswag, winogrande, boolq, openbookqa.",
    )
    data_dir: str | None = DATA_DIR()
    limit: int | None = flag(None, "--limit", "Maximum number of questions per task; default: all.")
    mode: str = MODE()
    batch_size: int = flag(8, "-b --batch-size", "Answers decoded together.")
    output: str = OUTPUT()
