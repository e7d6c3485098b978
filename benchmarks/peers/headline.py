"""The README's table of speeds: suffice and its peers, each row with its perplexity.

python -m benchmarks.peers.headline    from results of peers.speed, peers.quality, quant.files
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.peers.report import HUGGING_FACE, VLLM, ratios

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
)
# Files that suffice and llama.cpp run as they are, and suffice's setting.
FILES = (
    ("Q4_1", "default"),
    ("Q4_K_M", "default"),
    ("Q4_1", "fast"),
)
SETTINGS = {"default": "the file", "fast": "the file, 8-bit inputs and cache"}
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


def file_rows(files: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each file and setting that both engines ran."""
    found = []
    for kind, setting in FILES:
        rounds = files[kind]["speed"][setting]
        cases = {}
        for case in CASES:
            ours, theirs = (
                statistics.median(each[who]["tokens_per_second"] for each in rounds[case])
                for who in ("ours", "peer")
            )
            cases[case] = (ours, theirs, statistics.median(ratios({"cases": rounds}, case)))
        ratio = files[kind]["quality"][setting]["against"]["ratio"]
        shown = f"{SETTINGS[setting]} ({kind})"
        found.append(
            {"suffice": shown, "perplexity": ratio, "against": "llama.cpp", "cases": cases}
        )
    return found


def table(data: dict[str, Any]) -> str:
    """Return the table and a line below it that explains the figures."""
    body = [
        [
            row["suffice"],
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
        f"({data['windows']} windows of WikiText-2). llama.cpp and suffice run the same file, "
        "suffice without flags unless the row says so (`--quant file:act_bits=8 -ctk int8`); "
        "transformers and vLLM have its weights in bfloat16. vLLM is compared with "
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
    files = json.loads((folder / "../../quant/results/files.json").read_text(encoding="utf-8"))
    data = {name: files[name] for name in same} | {"model": "SmolLM2 135M"}
    data |= {"threads": files["threads"], "windows": quality["windows"]}
    data |= {"speed_command": speed["command"], "quality_command": quality["command"]}
    data["rows"] = [*file_rows(files["files"]), *rows(speed, quality)]
    record.write(folder, NAME, data, table(data))
    print(table(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
