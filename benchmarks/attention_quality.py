"""What attention techniques cost in quality, and what they read, through the decode step.

    python benchmarks/attention_quality.py --data-dir DIR     WikiText-2, every setting that has no
                                                              result yet (some two minutes each)
    python benchmarks/attention_quality.py --data-dir DIR --settings aet:k=0.8 certified:eps=0.1
    python benchmarks/attention_quality.py --data-dir DIR --calibration FILE
                                                              coded softmaxes, windows of 1024

Each setting is a run of `suffice eval perplexity --against exact`, whose record is kept whole, so
that a run that was interrupted goes on where it stopped. Thresholds are those of the papers and a
few of ours; published figures, for other and larger models, stand beside ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import record

NAME = "attention_quality"
MODEL, WINDOW, LIMIT = "smollm2-135m", 2048, 4
SETTINGS = (
    "exact",
    "aet:k=2,v=0.001",
    "aet:k=0.95",
    "aet:k=0.9",
    "art",
    "art:tau=1e-3",
    "art:tau=1e-2",
    "certified:eps=0.05",
    "certified:bounded=false,eps=0.25,v=0.002",
    "certified:bounded=false,eps=0.3,v=0.002",
    "certified:bounded=false,eps=0.3,v=0.005",
    "certified:bounded=false,eps=0.4,v=0.005",
)
SOFTMAX_NAME, SOFTMAX_WINDOW = "softmax_quality", 1024
SOFTMAXES = (
    "exaq:bits=2",
    "exaq:bits=3",
    "exaq_km:bits=2",
    "exaq_km:bits=3",
    "exaq:bits=4",
    "exaq:bits=3,clip=minmax",
    "exaq:bits=2,clip=minmax",
    "exaq:bits=2,tail=flush",
    "exaq:bits=3,clip=fit",
    "exaq:bits=2,clip=fit",
)
SCROOGE = "K 0.81, V 0.23, in all 0.52 of the bytes within 0.5 % (mean of six models from 1.3B)"
PUBLISHED = {
    "aet:k=0.95": SCROOGE,
    "aet:k=0.9": SCROOGE,
    "exaq:bits=2": "mean of 7 tasks 68.2 to 66.7 (LLaMA-1-13B)",
    "exaq:bits=3": "68.2 to 67.8 (LLaMA-1-13B)",
    "exaq:bits=3,clip=minmax": "68.2 to 66.3 (LLaMA-1-13B)",
    "exaq:bits=2,clip=minmax": "68.2 to 48.5 (LLaMA-1-13B)",
    "art": "LongBench 46.29 to 45.74, 1.16x per token (Mistral-7B)",
}
HEAD = [
    "setting",
    "K read",
    "V read",
    "V per head",
    "sketch",
    "bytes read",
    "perplexity",
    "KL mean",
    "KL 99.9 %",
    "same token",
    "missing, at most",
    "published",
]


def measure(
    setting: str, data_dir: str, model: str, window: int, limit: int, calibration: str | None
) -> dict[str, Any]:
    """Return the record of one setting; its progress shows on the terminal.

    With a calibration the setting is that of a softmax, with exact attention.
    """
    command = [sys.executable, "-c", "from suffice.cli import main; main()", "eval", "perplexity"]
    command += ["--data-dir", data_dir, "--window", str(window), "--limit", str(limit)]
    command += ["--against", "exact", "-m", model, "-o", "json"]
    command += ["--attention", setting] if calibration is None else ["--softmax", setting]
    command += [] if calibration is None else ["--calibration", calibration]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(setting: str, found: dict[str, Any]) -> list[Any]:
    """Return a setting's line of the table; what is read is a fraction of what is held.

    "V per head" is what a query head alone would read of V, on average.
    """
    reads, against = found["reads"], found["result"]["against"]
    keys, values, held = (
        sum(map(sum, reads[name])) for name in ("key_rows_read", "value_rows_read", "rows_held")
    )
    change = 100 * (against["ratio"] - 1)
    error = 100 * (against["ratio_error"] or 0)
    return [
        f"`{setting}`",
        keys / held,
        values / held,
        sum(map(sum, reads["value_rows_alone"])) / (held * reads["heads_per_group"])
        if "value_rows_alone" in reads
        else "",
        reads["sketch_bytes_read"] / reads["kv_bytes_held"],
        reads["kv_bytes_read"] / reads["kv_bytes_held"],
        f"{change:+.2f} ± {error:.2f} %",
        against["divergence"],
        against["divergence_999"],
        against["agreement"],
        reads["missing"],
        PUBLISHED.get(setting, ""),
    ]


def table(records: dict[str, dict[str, Any]]) -> str:
    """Return the results as text and a table."""
    asked = next(iter(records.values()))
    about = (
        f"{asked['config']['model']}, WikiText-2, {asked['result']['windows']} windows of "
        f"{asked['asked']['window']} tokens, {asked['config']['kv_cache_dtype']} keys and values; "
        "'missing' is the largest share of any softmax, as the technique bounds or estimates it."
    )
    rows = [row(setting, found) for setting, found in records.items()]
    return f"## Attention techniques\n\n{about}\n\n{record.markdown(HEAD, rows)}"


def main() -> int:
    """Measure what has no result yet, keeping each as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", required=True, help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--settings", nargs="*")
    parser.add_argument("--calibration", help="of the model: measure softmaxes, not attentions")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--window", type=int)
    parser.add_argument("--limit", type=int, default=LIMIT)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    flags = parser.parse_args()
    softmaxes = flags.calibration is not None
    name = SOFTMAX_NAME if softmaxes else NAME
    window = flags.window or (SOFTMAX_WINDOW if softmaxes else WINDOW)
    path = flags.out / f"{name}.json"
    records = json.loads(path.read_text())["records"] if path.exists() else {}
    for setting in flags.settings or (SOFTMAXES if softmaxes else SETTINGS):
        if setting in records:
            continue
        print(setting, file=sys.stderr, flush=True)
        records[setting] = measure(
            setting, flags.data_dir, flags.model, window, flags.limit, flags.calibration
        )
        record.write(flags.out, name, record.facts() | {"records": records}, table(records))
    print(table(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
