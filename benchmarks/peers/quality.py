"""Measures the perplexity of the settings that speed.py times, and of 4bit, over float weights.

    python -m benchmarks.peers.quality --data-dir DIR            8 windows of 1024 (ten minutes)
    python -m benchmarks.peers.quality --data-dir DIR --quick    2 windows of 64, into build/

Every setting decodes the same windows of WikiText-2 token by token, with the weights and the cache
of speed.py. The reference has the file's weights as float32, and a float32 cache. No setting is
calibrated: speed.py quantizes at load time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.attention.quality import compared, kept
from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.peers.speed import MODEL, OURS
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.eval.perplexity import PerplexityPlan, scored, windows_of
from suffice.eval.texts import load_text
from suffice.text.tokenizer import Tokenizer

NAME = "quality"
FLOAT = {"dtype": "float32", "quantization": None, "kv": "float32"}
SETTINGS = {
    "bf16": OURS["bf16"],
    "int8, bf16 cache": OURS["int8"] | {"kv": "bfloat16"},
    "int8": OURS["int8"],
    "4bit, bf16 cache": {"dtype": "auto", "quantization": "4bit", "kv": "bfloat16"},
    "4-bit": OURS["4-bit"],
}
HEAD = ["setting", "weights", "keys and values", "perplexity", "ratio", "KL mean", "same token"]


def opened(flags: argparse.Namespace, setting: dict[str, Any]) -> tuple[Runner, Tokenizer]:
    """Return the model with a setting's weights and cache."""
    config = Config.create(
        flags.model,
        dtype=setting["dtype"],
        quantization=setting["quantization"],
        kv_cache_dtype=setting["kv"],
        threads=flags.threads,
        max_model_len=flags.window,
    )
    _, runner, tokenizer = load(config)
    return runner, tokenizer


def measured(flags: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return each setting's figures, compared with the float weights."""
    plan = PerplexityPlan(flags.window, flags.limit, together=flags.limit)
    reference, tokenizer = opened(flags, FLOAT)
    text = load_text("wikitext2", flags.data_dir)
    windows = windows_of(tokenizer, text, plan, flags.window)
    expected = kept(reference, windows, plan)
    found = {}
    for name, setting in SETTINGS.items():
        runner, _ = opened(flags, setting)
        figures = compared(name, scored(runner, windows, plan), expected, len(windows))
        stored = setting["quantization"] or setting["dtype"]
        found[name] = {"weights": stored, "kv": setting["kv"], **figures}
    return found


def table(data: dict[str, Any]) -> str:
    """Return the results as text and a table."""
    rows = []
    for name, found in data["settings"].items():
        against = found["against"]
        ratio = f"{against['ratio']:.4f} ± {against['ratio_error']:.4f}"
        stored = [name, f"`{found['weights']}`", found["kv"]]
        closeness = [against["divergence"], against["agreement"]]
        rows.append([*stored, found["perplexity"], ratio, *closeness])
    about = (
        f"{data['model']}, WikiText-2, {data['windows']} windows of {data['window']} tokens, "
        "decoded token by token; nothing is calibrated. Ratio and KL divergence (nats) are over "
        "the file's own weights as float32 with a float32 cache."
    )
    return f"## What the timed settings cost in quality\n\n{about}\n\n{markdown(HEAD, rows)}"


def main() -> int:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--window", type=int)
    parser.add_argument("--limit", type=int, help="windows")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, results in build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    flags.window = flags.window or (64 if flags.quick else 1024)
    flags.limit = flags.limit or (2 if flags.quick else 8)
    folder = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    try:
        found = measured(flags)
    except InputError as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 2
    shown = {"model": Path(flags.model).name, "window": flags.window, "windows": flags.limit}
    data = record.facts() | shown | {"settings": found}
    record.write(folder, NAME, data, table(data))
    print(table(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
