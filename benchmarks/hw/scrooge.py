"""Run the Scrooge accelerator on the logits of a real model: memory reads and speed.

    python -m benchmarks.hw.scrooge --data-dir DIR     SmolLM2, 1024 tokens of WikiText-2 (minutes)
    python -m benchmarks.hw.scrooge --quick            96 tokens of WikiText-2, to see that it runs

The thresholds are the paper's for LLaMA-2, and others for its Fig. 9: the speed-up at a loss of
perplexity. That is the one of `aet` with `block=1`, the same algorithm token by token, on the
windows of `attention.quality`, where it is stored. `--trace FILE` stores the logits for `suffice hw
run scrooge --trace FILE`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.attention.quality_table import change_with_error
from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from suffice.attention.aet import AET
from suffice.cli.hw import trace as hw_trace
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.eval.texts import load_text
from suffice_hw.scrooge.checks import PUBLISHED
from suffice_hw.scrooge.logits import Trace
from suffice_hw.scrooge.trace_checks import THRESHOLDS, simulated

NAME = "scrooge"
TOKENS = 1024
PUBLISHED_LOSS = {"s": "within 0.5 %", "as": "within 5 %"}
PLAIN = AET().values  # what a setting need not name
OTHERS = ((0.95, 0.001), (0.8, 0.001))
QUALITY = Path(__file__).parents[1] / "attention/results/quality.json"


def loss(thresholds: tuple[float, float]) -> str:
    """Return the stored change of perplexity with thresholds of keys and values; "" if none is."""
    keys, values = thresholds
    options = f"keys={keys:g}" + ("" if values == PLAIN else f",values={values:g}")
    records = json.loads(QUALITY.read_text())["records"] if QUALITY.exists() else {}
    found = records.get(f"aet:{options},block=1")
    return change_with_error(found["result"]["against"]) if found else ""


def measure(trace: Trace) -> list[dict[str, Any]]:
    """Return a row for each setting, and one for its published figures.

    Those are means over six models, of OPT and LLaMA-2, as is the perplexity of each setting.
    """
    rows = []
    for mode, thresholds in (*THRESHOLDS.items(), *(("", each) for each in OTHERS)):
        name, result = f"{mode.upper()}: ".removeprefix(": "), simulated(trace, thresholds)
        read = (result.keys_read + result.values_read) / 2 / result.rows_held
        third = max(len(read) // 3, 1)
        rows.append(
            {
                "setting": f"{name}{thresholds[0]:g} / {thresholds[1]:g}",
                "K": result.key_reduction,
                "V": result.value_reduction,
                "K and V": result.reduction,
                "speed-up": result.speedup,
                "perplexity": loss(thresholds),
                "first third read": float(read[:third].mean()),
                "last third read": float(read[-third:].mean()),
            }
        )
        if mode:
            figures = zip(("K", "V", "K and V", "speed-up"), PUBLISHED[mode][:4], strict=True)
            within = {"perplexity": PUBLISHED_LOSS[mode]}
            rows.append({"setting": f"{name}published, six models"} | dict(figures) | within)
    return rows


def main() -> int:
    """Capture, simulate, write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--text", default="wikitext2", help="wikitext2, or a file")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--trace", type=Path, help="file for the logits (.npz)")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=record.results(__file__))
    flags = parser.parse_args()
    count = 96 if flags.quick else flags.tokens
    config = Config.create(flags.model, dtype="float32", max_model_len=count)
    _, runner, tokenizer = load(config)
    tokens = tokenizer.encode(load_text(flags.text, flags.data_dir))[:count]
    with tempfile.TemporaryDirectory() as folder:
        path = flags.trace or Path(folder) / "logits.npz"
        hw_trace.write(runner, flags.model, tokens, path)
        rows = measure(Trace.load(path))
    head = list(rows[0])
    cells = [[row.get(name, "") for name in head] for row in rows]
    about = f"{flags.model}, {flags.text}, {len(tokens)} tokens, times less than the baseline"
    table = f"## Scrooge on real logits\n\n{about}\n\n{markdown(head, cells)}"
    record.write(flags.out, NAME, record.facts() | {"about": about, "rows": rows}, table)
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
