"""The README's table of speeds: suffice and its peers, each row with its perplexity.

python -m benchmarks.peers.headline    from results/speed.json and results/quality.json; at once
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.peers.report import HUGGING_FACE, LLAMA, LLAMA_4_BIT, VLLM, ratios

NAME = "headline"
CASES = {
    "decode-0": "decode",
    "decode-1024": "decode after 1024",
    "decode-3000": "decode after 3000",
    "prefill-1024": "prompt of 1024",
}
# suffice's setting, its name in quality.json, and the peers, of whom the fastest counts.
ROWS = (
    ("bf16", "bf16", "transformers bf16", HUGGING_FACE),
    ("bf16", "bf16", "vLLM bf16", VLLM),
    ("int8", "int8", "llama.cpp Q4_1", LLAMA),
    ("kmeans:act_bits=8", "4-bit", "llama.cpp Q4_1", LLAMA_4_BIT),
)
HEAD = ["suffice", "perplexity / float", "against", *CASES.values()]


def fastest(
    sections: dict[str, Any], names: tuple[str, ...], case: str
) -> tuple[float, float, float]:
    """Return suffice's tokens per second, those of the fastest peer, and the ratio of both.

    Each is a median of rounds, so that the ratio is not the quotient of the two speeds.
    """
    found = {name: ratios(sections.get(name, {}), case) for name in names}
    name = min((n for n in found if found[n]), key=lambda n: statistics.median(found[n]))
    rounds = sections[name]["cases"][case]
    ours, theirs = (
        statistics.median(each[who]["tokens_per_second"] for each in rounds)
        for who in ("ours", "peer")
    )
    return ours, theirs, statistics.median(found[name])


def rows(speed: dict[str, Any], quality: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each setting of suffice and peer: the perplexity ratio, and each case."""
    found = []
    for shown, form, peer, names in ROWS:
        cases = {case: fastest(speed["peers"], names, case) for case in CASES}
        ratio = quality["settings"][form]["against"]["ratio"]
        found.append({"suffice": shown, "perplexity": ratio, "against": peer, "cases": cases})
    return found


def table(data: dict[str, Any]) -> str:
    """Return the table and a line below it that explains the figures."""
    body = [
        [
            f"`{row['suffice']}`",
            f"{row['perplexity']:.3f}",
            row["against"],
            *(
                f"{ours:.0f} / {theirs:.0f} ({ratio:.2f}x)"
                for ours, theirs, ratio in row["cases"].values()
            ),
        ]
        for row in data["rows"]
    ]
    note = (
        "Tokens per second of suffice / of the other (median of the ratios of each round). "
        f"{data['model']}, {data['threads']} threads. 'perplexity / float': perplexity of "
        "suffice's setting, divided by that of the file's own weights in float "
        f"({data['windows']} windows of WikiText-2). int8 and 4-bit weights (kmeans) have an int8 "
        "cache and no calibration. The 4-bit codes are chosen while the model loads, which takes "
        "minutes of CPU time; a file of `suffice quantize` has them ready. The others run the "
        "file's own weights, transformers and vLLM in bfloat16. vLLM is compared with "
        "`LLM.generate`, the others with suffice's bare decode loop, which is faster."
    )
    return f"{markdown(HEAD, body)}\n\n{note}"


def main() -> int:
    """Write the result, with the machine, date and command of the speeds."""
    folder = record.results(__file__)
    speed, quality = (
        json.loads(Path(folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("speed", "quality")
    )
    same = ("schema", "date", "command", "commit", "modified", "machine", "versions")
    data = {name: speed[name] for name in (*same, "model", "threads")}
    data |= {"windows": quality["windows"], "quality_command": quality["command"]}
    data["rows"] = rows(speed, quality)
    record.write(folder, NAME, data, table(data))
    print(table(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
