"""A server under mixed load for a long time: what is lost, and how its memory grows.

    python -m benchmarks.serve.soak                an hour
    python -m benchmarks.serve.soak --minutes 15

32 clients send requests of all kinds, one after the other: chats and completions, whole and
streamed, with schemas and several samples; some leave early, some send what must be refused. The
memory of the front and of the engine is that which each process alone has, in RAM and swap. Growth
is from the tenth of the time after the warm-up, the first fifth, to the last tenth. Results go to
benchmarks/serve/results/soak.json and soak.md.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.serve.asking import CHAT, COMPLETION, Ask, Sizes, draw, send
from benchmarks.serve.exactness import client
from benchmarks.serve.servers import Kind, Place, Server, memory_bytes, suffice
from suffice import native, pull

MODEL = "smollm2-135m"
CLIENTS = 32
SERVER = Kind("soak", suffice, ("--prefix-cache-bytes", "64MiB", "--kv-cache-bytes", "384MiB"))
PLANNED = (501, 503, 504)
WARM_UP, TENTH = 0.2, 0.1
MOST_GROWTH = 0.01
BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "temperature": -1}),
    (CHAT, {"messages": "hello"}),
    (COMPLETION, {"prompt": "a", "unknown_field": 1}),
    (COMPLETION, {"prompt": [10**9]}),
    (COMPLETION, {"prompt": "a", "structured_outputs": {"regex": "("}}),
    ("/v1/embeddings", {"input": "a"}),
    ("/tokenize", {"prompt": "a b c"}),
)


@dataclass
class Counts:
    """What happened: `statuses` of answers, requests without a whole answer, and memory."""

    statuses: Counter[int] = field(default_factory=Counter)
    sent: int = 0
    left: int = 0
    lost: list[str] = field(default_factory=list)
    memory: dict[str, list[int]] = field(default_factory=lambda: {"front": [], "engine": []})

    @property
    def unplanned(self) -> int:
        """Answers that the server should never give."""
        return sum(
            n for status, n in self.statuses.items() if status >= 500 and status not in PLANNED
        )


async def load(server: Server, seconds: float, sizes: Sizes, clients: int, limit: int) -> Counts:
    """Send requests for some seconds, `limit` of them at most."""
    counts = Counts()
    end = time.monotonic() + seconds
    async with client(server, clients) as link:

        async def one(seed: int) -> None:
            number = 0
            while time.monotonic() < end and counts.sent < limit:
                number += 1
                counts.sent += 1
                if number % 9 == 0:
                    path, body = BAD[(seed + number) % len(BAD)]
                    counts.statuses[(await link.post(path, json=body)).status_code] += 1
                else:
                    await _ask(link, draw(seed, number, sizes), counts)

        watcher = asyncio.create_task(_watch(server, counts, seconds / 200))
        await asyncio.gather(*(one(seed) for seed in range(clients)))
        watcher.cancel()
    return counts


async def _ask(link: httpx2.AsyncClient, ask: Ask, counts: Counts) -> None:
    try:
        found = await send(link, ask)
    except (httpx2.HTTPError, ValueError) as error:
        counts.lost.append(f"{type(error).__name__}: {error}")
        return
    counts.statuses[found.status] += 1
    counts.left += ask.leave is not None
    if ask.leave is None and (found.error is not None or None in found.ends):
        counts.lost.append(found.error or "the stream has no end")


async def _watch(server: Server, counts: Counts, pause: float) -> None:
    while True:
        await asyncio.sleep(pause)
        engine = server.engine()
        counts.memory["front"].append(memory_bytes(server.process.pid))
        if engine is not None:
            counts.memory["engine"].append(memory_bytes(engine))


def growth(samples: Sequence[int]) -> float:
    """Return by which share memory grew after the warm-up."""
    size = max(1, round(TENTH * len(samples)))
    first = round(WARM_UP * len(samples))
    before = statistics.median(samples[first : first + size])
    return statistics.median(samples[-size:]) / before - 1


def run(
    place: Place, seconds: float, sizes: Sizes, clients: int = CLIENTS, limit: int = 10**9
) -> dict[str, Any]:
    """Soak a server, and return what happened."""
    server = Server("soak", place, SERVER)
    try:
        engine = server.engine()
        counts = asyncio.run(load(server, seconds, sizes, clients, limit))
        time.sleep(1.2)  # the counts of the last step
        metrics = server.metrics()
        same = server.engine() == engine
    finally:
        server.close()
    return {
        "seconds": seconds,
        "requests": counts.sent,
        "left": counts.left,
        "lost": counts.lost,
        "unplanned": counts.unplanned,
        "statuses": {str(status): n for status, n in sorted(counts.statuses.items())},
        "memory": counts.memory,
        "growth": {name: growth(each) for name, each in counts.memory.items() if each},
        "parked": metrics["num_preemptions_total"],
        "generated_tokens": metrics["generation_tokens_total"],
        "engine_lived": same,
        "under_way": metrics["num_requests_running"] + metrics["num_requests_waiting"],
        "bytes_left": metrics["kv_cache_bytes_used"],
    }


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    found = data["found"]
    last = {name: each[-1] / 2**20 for name, each in found["memory"].items()}
    rows: list[list[Any]] = [
        ["minutes", round(found["seconds"] / 60), ""],
        ["requests", found["requests"], ""],
        ["... whose client left", found["left"], ""],
        ["tokens generated", round(found["generated_tokens"]), ""],
        ["requests parked for lack of memory", round(found["parked"]), ""],
        ["lost requests", len(found["lost"]), "0"],
        ["unplanned 5xx", found["unplanned"], "0"],
        ["bytes of keys and values left at the end", round(found["bytes_left"]), "0"],
    ]
    rows += [
        [f"growth of the {name}'s memory, to {last[name]:.0f} MiB", f"{100 * grown:.2f} %", "1 %"]
        for name, grown in found["growth"].items()
    ]
    return f"## A soak\n\n{markdown(['what', 'found', 'at most'], rows)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=native.cores())
    parser.add_argument("--output", type=Path, default=record.results(__file__))
    options = parser.parse_args()
    gguf = pull.pull(MODEL)
    found = run(Place(gguf, gguf.parent, options.threads), 60 * options.minutes, Sizes())
    data = record.facts() | {"model": MODEL, "threads": options.threads, "found": found}
    record.write(options.output, "soak", data, table(data))
    print(table(data))
    for each in found["lost"][:20]:
        print(each, file=sys.stderr)
    grown = max(found["growth"].values()) > MOST_GROWTH
    return 1 if found["lost"] or found["unplanned"] or grown else 0


if __name__ == "__main__":
    sys.exit(main())
