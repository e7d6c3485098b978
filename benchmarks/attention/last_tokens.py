"""What mass.py and rivals.py share: a real model's last tokens, and a script over them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attention.art import Sample, capture, few
from benchmarks.harness import record
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.errors import InputError
from suffice.eval.texts import line_ends, load_text

Layer = tuple[np.ndarray, np.ndarray, np.ndarray]  # scaled q [H, D], k and v [G, S, D]
Tokens = list[list[Layer]]  # by token and layer


def tokens_of(samples: list[Sample], layers: int) -> Tokens:
    """Return the tokens that all layers have samples of, oldest first."""
    at: dict[int, dict[int, Sample]] = {}
    for sample in samples:
        at.setdefault(sample.k.shape[1], {})[sample.layer] = sample
    whole = [own for _, own in sorted(at.items()) if len(own) == layers]
    return [[(own[n].scale * own[n].q, own[n].k, own[n].v) for n in range(layers)] for own in whole]


def main(
    name: str,
    about: str | None,
    tokens: int,
    measure: Callable[[Tokens, argparse.Namespace], dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
) -> int:
    """Capture the last tokens, `tokens` by default, measure, and write the table."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--text", default="wikitext2", help="wikitext2, or a file")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=tokens, help="tokens before that length")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.quick:
        flags.length, flags.tokens = 64, 2
    try:
        text = load_text(flags.text, flags.data_dir)
        config = Config.create(flags.model, dtype="float32", max_model_len=flags.length)
        _, runner, tokenizer = load(config)
    except InputError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 2
    count = 8 * flags.tokens  # of the layers of ART's Table 4; others keep an eighth
    assert few(count) == flags.tokens
    samples = capture(runner, tokenizer.encode(text), (flags.length,), count)
    last = tokens_of(samples, len(runner.decoder.config.layers))[-flags.tokens :]
    shown = {"model": Path(flags.model).name, "text": Path(flags.text).name}
    shown |= {"line_ends": line_ends(text), "tokens": len(last), "length": flags.length}
    data = record.facts() | shown | measure(last, flags)
    folder = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    record.write(folder, name, data, table(data))
    print(table(data))
    return 0
