"""A batch that is killed again and again: what is run twice, and whether the results are the same.

    python -m benchmarks.serve.batch                          5,000 requests, ten kills
    python -m benchmarks.serve.batch --requests 300 --kills 3

`suffice batch` answers requests that share a beginning; kill -9 ends it, and its engine, at random
times, and the same command goes on. Before each start it is noted which requests have a result: one
of them that ran again would have another line in the file. The results are compared with those of a
run that nobody disturbed. Results go to benchmarks/serve/results/batch.json and batch.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.tables import markdown

MODEL = "smollm2-135m"
PARALLEL = 32
SHARED = "You answer in one short sentence, without any greeting. " * 12
WORDS = [
    "river",
    "stone",
    "cloud",
    "engine",
    "market",
    "garden",
    "winter",
    "number",
    "letter",
    "signal",
]
COUNT = (8, 24)  # new tokens
FIRST_SECONDS = 4.0  # a run that is killed answers for this long at least


def requests(count: int) -> list[dict[str, Any]]:
    """Return requests that share a system prompt; a third of them is drawn."""
    found = []
    for number in range(count):
        chance = random.Random(number)
        asked = " ".join(chance.choices(WORDS, k=chance.randint(4, 40)))
        talk = [{"role": "system", "content": SHARED}, {"role": "user", "content": asked}]
        body = {
            "messages": talk,
            "max_tokens": chance.randint(*COUNT),
            "temperature": 0.8 if number % 3 == 0 else 0.0,
        }
        url = "/v1/chat/completions"
        found.append({"custom_id": f"{number}", "method": "POST", "url": url, "body": body})
    return found


def started(source: Path, target: Path) -> subprocess.Popen[bytes]:
    """Start a run in a group of processes of its own."""
    program = [sys.executable, "-c", "from suffice.cli import main; main()"]
    command = [*program, "batch", "-m", MODEL, "-np", str(PARALLEL)]
    files = ["-i", str(source), "-o", str(target)]
    return subprocess.Popen([*command, *files], start_new_session=True)


def lines(path: Path) -> set[bytes]:
    """Return the whole lines of a file of results."""
    whole = path.read_bytes() if path.exists() else b""
    return {line for line in whole.splitlines(keepends=True) if line.endswith(b"\n")}


def disturbed(source: Path, target: Path, kills: int, seconds: float, total: int) -> dict[str, Any]:
    """Run a batch that is killed; `seconds`: how long it takes undisturbed."""
    chance, killed, again = random.Random(0), 0, 0
    while killed < kills and len(lines(target)) < total:
        before = lines(target)
        process = started(source, target)
        pause = max(FIRST_SECONDS, seconds / (kills + 1) * chance.uniform(0.7, 1.1))
        try:
            process.wait(pause)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
        again += len(before - lines(target))
    before = lines(target)
    process = started(source, target)
    if process.wait():
        raise SystemExit(f"the last run ended with {process.returncode}")
    return {"kills": killed, "results_run_again": again + len(before - lines(target))}


def run(count: int, kills: int) -> dict[str, Any]:
    """Run a batch undisturbed and one that is killed, and compare them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, alone, killed = (folder / each for each in ("in.jsonl", "alone.jsonl", "out.jsonl"))
        asked = requests(count)
        source.write_text("".join(json.dumps(each) + "\n" for each in asked), encoding="utf-8")
        began = time.monotonic()
        if code := started(source, alone).wait():
            raise SystemExit(f"the undisturbed run ended with {code}")
        seconds = time.monotonic() - began
        found = disturbed(source, killed, kills, seconds, count)
        pairs = zip(alone.read_bytes().splitlines(), killed.read_bytes().splitlines(), strict=True)
        bodies = [json.loads(line)["response"]["body"] for line in alone.read_bytes().splitlines()]
        tokens = sum(body["usage"]["completion_tokens"] for body in bodies)
        prompts = sum(body["usage"]["prompt_tokens"] for body in bodies)
        return found | {
            "requests": count,
            "seconds": seconds,
            "tokens": tokens,
            "prompt_tokens": prompts,
            "different": sum(one != other for one, other in pairs),
            "under_way": 2 * PARALLEL,
        }


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    found = data["found"]
    per_second = found["tokens"] / found["seconds"]
    rows = [
        ["requests", found["requests"], ""],
        ["prompt tokens, most of them shared", found["prompt_tokens"], ""],
        ["seconds undisturbed, the start included", round(found["seconds"]), ""],
        ["new tokens per second", round(per_second), ""],
        ["times killed", found["kills"], ""],
        ["requests under way at a kill, at most", found["under_way"], ""],
        ["requests with a result that were run again", found["results_run_again"], "0"],
        ["results that differ from the undisturbed run's", found["different"], "0"],
    ]
    return f"## A batch that is killed\n\n{markdown(['what', 'found', 'at most'], rows)}"


def main() -> int:
    """Run, print the table and store it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--output", type=Path, default=record.results(__file__))
    options = parser.parse_args()
    found = run(options.requests, options.kills)
    data = record.facts() | {"model": MODEL, "found": found}
    record.write(options.output, "batch", data, table(data))
    print(table(data))
    return 1 if found["different"] or found["results_run_again"] else 0


if __name__ == "__main__":
    sys.exit(main())
