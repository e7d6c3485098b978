"""The README's tables of speeds: shapes of models that people run, then suffice and its peers.

python -m benchmarks.peers.headline    from results of peers.sizes, .speed, .quality, quant.files
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.shaped_models import MODELS
from benchmarks.harness.tables import Cells, markdown
from benchmarks.peers import sizes_report
from benchmarks.peers.report import HUGGING_FACE, VLLM, middle_round

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
# Shapes and the type of their files, against llama.cpp.
SIZES = ("llama-3.2-1b", "qwen3-4b", "llama-3.1-8b", "mistral-7b")
SIZES_TYPE = "Q4_K_M"
NOT_MEASURED = "not measured"
# What the table is drawn from: the script, and what it measured.
SOURCES = {
    "files": ("benchmarks.quant.files", "the rows against llama.cpp"),
    "speed": ("benchmarks.peers.speed", "the speeds of the other rows"),
    "quality": ("benchmarks.peers.quality", "their perplexity"),
}
SIZES_SOURCE = ("benchmarks.peers.sizes", "shapes of models")
FACTS = ("schema", "date", "command", "commit", "modified", "machine", "versions")
HEAD = ["suffice", "perplexity / float", "against", *CASES.values()]


def fastest(
    sections: dict[str, Any], names: tuple[str, ...], case: str
) -> tuple[float, float, float]:
    """Return suffice's tokens per second, those of the fastest peer, and the ratio of both."""
    cases = (sections.get(name, {}).get("cases", {}).get(case) for name in names)
    return min((middle_round(rounds) for rounds in cases if rounds), key=lambda found: found[2])


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
        cases = {case: middle_round(rounds[case]) for case in CASES}
        ratio = files[kind]["quality"][setting]["against"]["ratio"]
        shown = f"{SETTINGS[setting]} ({kind})"
        found.append(
            {"suffice": shown, "perplexity": ratio, "against": "llama.cpp", "cases": cases}
        )
    return found


def size_rows(stored: list[Cells]) -> list[dict[str, Any]]:
    """Return a row for each shape and setting: the lowest and the highest ratio of each case.

    Shapes without a result have one row together.
    """
    found, missing = [], []
    for name in SIZES:
        row, title = sizes_report.row_of(name, SIZES_TYPE), MODELS[name].title
        rows = [
            {"model": f"{title} ({SIZES_TYPE})", "suffice": shown, "cases": cases}
            for setting, shown in sizes_report.SETTINGS.items()
            if any((cases := _spans(stored, row, setting)).values())
        ]
        found += rows
        missing += [] if rows else [title]
    if missing:
        title = f"{', '.join(missing)} ({SIZES_TYPE})"
        found.append({"model": title, "suffice": "-", "cases": _spans([], "", "")})
    return found


def _spans(stored: list[Cells], row: str, setting: str) -> dict[str, list[float]]:
    ratios = {case: sizes_report.ratios(stored, row, case, setting) for case in sizes_report.CASES}
    return {case: each[:1] + each[1:][-1:] for case, each in ratios.items()}


def size_table(found: list[dict[str, Any]]) -> str:
    """Return the table of shapes, and a line below it that explains the figures.

    A case that no shape has a result of has no column.
    """
    shown = {
        case: title
        for case, title in sizes_report.CASES.items()
        if any(row["cases"][case] for row in found)
    }
    body = [
        [
            *(row["model"], row["suffice"]),
            *(
                " / ".join(f"{ratio:.2f}x" for ratio in row["cases"][case]) or NOT_MEASURED
                for case in shown
            ),
        ]
        for row in found
    ]
    note = (
        "Speed of suffice over llama.cpp's on the same file, on the machine and instruction set "
        "where it is lowest / where it is highest; a single figure is of the only one. llama.cpp "
        "has flash attention and the faster of two types of cache; suffice has no flags, or "
        "`--quant file:act_bits=8 -ctk int8`. Files have random codes in the shapes of these "
        "models."
    )
    head = ["model", "suffice", *shown.values()]
    return f"{markdown(head, body)}\n\n{note}"


def table(data: dict[str, Any]) -> str:
    """Return both tables."""
    return f"{size_table(data['sizes'])}\n\n{peers_table(data)}"


def peers_table(data: dict[str, Any]) -> str:
    """Return the table of peers and a line below it that explains the figures."""
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
        "Tokens per second of suffice / of the other, and their ratio, in the round whose ratio is "
        f"the median. {data['model']}, {data['threads']} threads. 'perplexity / float': "
        "perplexity of suffice's setting, divided by that of the file's own weights in float "
        f"({data['windows']} windows of WikiText-2). llama.cpp and suffice run the same file, "
        "suffice without flags unless the row says so (`--quant file:act_bits=8 -ctk int8`); "
        "transformers and vLLM have its weights in bfloat16. vLLM is compared with "
        "`LLM.generate`, the others with suffice's bare decode loop, which is faster. "
        f"Drawn from stored results: {sources(data['sources'])}."
    )
    return f"{markdown(HEAD, body)}\n\n{note}"


def sources(found: dict[str, Any]) -> str:
    """Return in words which scripts measured what, when and on which processors."""
    parts: dict[str, list[str]] = {}
    for name, facts in found.items():
        script, what = SOURCES.get(name, SIZES_SOURCE)
        machine, day = facts["machine"], facts["date"].partition(" ")[0]
        family = machine["cpu_family_model"].partition("/")[0]
        where = f"{day}, {machine['cpu']} of family {family}, {machine['isa']}"
        parts.setdefault(f"{what} from `python -m {script}`", []).append(where)
    return ", ".join(f"{what} ({'; '.join(where)})" for what, where in parts.items())


def collected(results: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the tables' data, and the facts of the results that they are drawn from, by name.

    `sizes` are those of peers.sizes, by name, which may be of other machines. Machine, commit and
    versions are those of the speeds, the date is that of the newest other result.
    """
    files, speed, quality = (results[name] for name in SOURCES)
    return {
        **{fact: speed[fact] for fact in FACTS},
        "date": max(each["date"] for each in results.values()),
        "command": record.program(),
        "model": "SmolLM2 135M",
        "threads": files["threads"],
        "windows": quality["windows"],
        "sources": {
            name: {fact: found[fact] for fact in FACTS} for name, found in (results | sizes).items()
        },
        "sizes": size_rows([each["cells"] for each in sizes.values()]),
        "rows": [*file_rows(files["files"]), *rows(speed, quality)],
    }


def read(paths: dict[str, Path]) -> dict[str, Any]:
    """Return results by name."""
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items()}


def main() -> int:
    """Write the tables, from the results that are stored; measures nothing."""
    folder = record.results(__file__)
    paths = {"files": folder / "../../quant/results/files.json"}
    paths |= {name: folder / f"{name}.json" for name in ("speed", "quality")}
    sizes = {path.stem: path for path in sorted(folder.glob("sizes_*.json"))}
    data = collected(read(paths), read(sizes))
    record.write(folder, NAME, data, table(data))
    print(table(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
