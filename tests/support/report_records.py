"""Small results of every kind, for the tests of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from suffice import __version__

RESULTS = Path(__file__).parents[2] / "benchmarks"
PEERS = RESULTS / "peers" / "results" / "speed.json"
LAYERS, HEADS, HELD = 4, 2, 1000
CONFIG = {
    "model": "tiny",
    "attention": "Exact()",
    "policy": "Full()",
    "quant": "NoQuant(dtype='bfloat16')",
    "speculate": "NoDrafts()",
    "dtype": "bfloat16",
    "kv_cache_dtype": "bfloat16",
    "hash": "0123456789abcdef",
}


def evaluated(kind: str, result: dict[str, Any], share: float = 1.0, **config: str) -> Any:
    """Return a record of an evaluation that read this share of its rows, fewer of the values."""
    keys = [[int(HELD * share) - layer - head for head in range(HEADS)] for layer in range(LAYERS)]
    values = [[rows // 2 for rows in layer] for layer in keys]
    return {
        "schema": 1,
        "date": "2026-01-02 03:04 UTC",
        "command": f"suffice eval {kind}",
        "commit": "abc123",
        "modified": False,
        "machine": {"cpu": "a CPU", "flags": ["avx2"], "memory_bytes": 8 << 30},
        "versions": {"python": "3.10", "suffice": __version__},
        "kind": kind,
        "config": CONFIG | config,
        "asked": {"limit": 4, "output": "json", "data_dir": "here", "nothing": None},
        "interrupted": False,
        "result": result,
        "reads": {
            "steps": 7,
            "kv_bytes_read": int(share * 51_200_000),
            "kv_bytes_held": 51_200_000,
            "weight_bytes_read": 12_345_678,
            "key_rows_read": keys,
            "value_rows_read": values,
            "rows_held": [[HELD] * HEADS] * LAYERS,
        },
    }


def perplexity(ratio: float, share: float = 1.0, **config: str) -> Any:
    against = {"ratio": ratio, "ratio_error": 0.00123, "divergence": ratio / 7}
    return evaluated("perplexity", {"perplexity": 31.4159265, "against": against}, share, **config)


def benched(depth: int, speed: float, **more: Any) -> dict[str, Any]:
    record = {
        "version": __version__, "cpu": "a CPU", "isa": "v3", "threads": 2, "model": "tiny",
        "weights": "int8", "kv": "int8", "batch": 1, "test": f"tg16 @ d{depth}",
        "n_depth": depth, "tokens_per_second": speed, "deviation": 0.5, "seconds": [1.25, 2.5],
    }  # fmt: skip
    return record | more


def write(path: Path, record: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record if isinstance(record, str) else json.dumps(record), encoding="utf-8")
    return path


def folder_of_all(folder: Path) -> Path:
    """Write results of every kind, one of them in a folder within."""
    task = {"task": "piqa", "acc": 0.625, "acc_stderr": 0.03125, "acc_norm": None}
    score = {"task": None, "score": 0.875, "error": 0.0625, "samples": 8}
    made = {
        "a": perplexity(1.0),
        "b": perplexity(1.0625, 0.25, attention="TopK(k=64)"),
        "c": perplexity(1.125, 0.5, attention="TopK(k=128)"),
        "deep/d": evaluated("tasks", {"tasks": [task]}, 0.75),
        "e": evaluated("ruler", {"scores": [score], "mean": score}, 0.75),
        "f": evaluated("speed", {"results": [{"case": "x", "ttft_seconds": {"mean": 0.75}}]}),
        "g": [benched(0, 64.5), benched(1024, 32.25)],
    }
    for name, record in made.items():
        write(folder / f"{name}.json", record)
    return folder
