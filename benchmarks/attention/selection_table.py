"""The table of `selection`: selectors, and techniques of the engine, by bytes read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.attention import quality_table, ruler
from benchmarks.harness import torch_device
from benchmarks.harness.tables import CellStore, markdown

COLUMN = "decode"
ENGINES = "quality_policies.json"  # the engine's techniques on such windows
NEEDLES = ("selector_ruler.json", "ruler_50.json")  # needles by selectors, and by techniques


def table(store: CellStore) -> str:
    """Return the table of a result, by bytes read."""
    evaluated, model = store.config["evaluated"], store.config["model"]["name"]
    of_selectors, of_techniques = (
        needles(store.folder / name, model, evaluated["window"]) for name in NEEDLES
    )
    rows = [
        shown(f"`{setting}`", cells[COLUMN]["bytes"], cells[COLUMN], of_selectors.get(setting))
        for setting, cells in store.cells.items()
    ]
    rows += of_engine(store.folder, evaluated, of_techniques)
    rows.sort(key=lambda row: row[1])
    head = ["setting", "bytes read", "perplexity", "KL mean", "KL 99.9 %", "same token"]
    about = (
        f"{model}, WikiText-2, {evaluated['windows']} windows of "
        f"{evaluated['window']} tokens; the first {evaluated['prompt']} are a prompt run by "
        "exact attention; keys and values in bfloat16. Bytes are over those that exact attention "
        "reads in layers without a window; what finds the rows is included. `oracle` finds them "
        "for nothing; `looks` is `tiers` as the reference of `key_looks`, of a cache in "
        f"planes.{torch_device.sentence(store.cells)}"
    )
    if of_selectors:
        head.append("RULER")
        about += (
            " RULER: per cent of the needles of `selector_ruler` or `ruler` that are found in "
            f"prompts of {evaluated['window']} tokens, with standard errors; empty where not "
            "measured."
        )
    else:
        rows = [row[:-1] for row in rows]
    return f"## Selecting rows\n\n{about}\n\n{markdown(head, rows)}"


def of_engine(folder: Path, evaluated: dict[str, Any], scores: dict[str, str]) -> list[list[Any]]:
    """Return the rows of the engine's techniques on the same windows; none without results.

    `scores` are those of RULER, by setting.
    """
    path = folder / ENGINES
    if not path.exists():
        return []
    data = json.loads(path.read_text(encoding="utf-8"))
    common = data["common"]
    if (common["window"], common["prompt"]) != (evaluated["window"], evaluated["prompt"]):
        return []
    rows = []
    for setting, found in data["records"].items():
        same = found["asked"]["text_sha256"] == evaluated["sha256"]
        if same and common["limit"] == evaluated["windows"]:
            against, share = found["result"]["against"], quality_table.share(found)
            score = scores.get(setting)
            rows.append(shown(f"`{setting}` (engine)", share, against, score))
    return rows


def shown(name: str, share: float, against: dict[str, Any], score: str | None) -> list[Any]:
    """Return a row of the table."""
    return [
        name,
        share,
        quality_table.change_with_error(against),
        against["divergence"],
        against["divergence_999"],
        against["agreement"],
        score or "",
    ]


def needles(path: Path, model: str, length: int) -> dict[str, str]:
    """Return a result's mean scores by setting, over the tasks of a length that count."""
    if not path.exists():
        return {}
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["engine"]["model"] != model:
        return {}
    places = [
        cells
        for place, cells in data["cells"].items()
        if place.endswith(f" at {length}") and cells["exact"]["score"] >= ruler.COUNTS
    ]
    settings = {setting for cells in places for setting in cells}
    found = {each: [ruler.same_samples(cells, each) for cells in places] for each in settings}
    return {
        setting: ruler.mean_score([cell for cell in cells if cell])
        for setting, cells in found.items()
        if all(cells)
    }
