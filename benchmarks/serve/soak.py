"""A server under mixed load for a long time: what is lost, and how its memory grows.

    python -m benchmarks.serve.soak                an hour
    python -m benchmarks.serve.soak --minutes 15

32 clients send requests of all kinds, one after the other: chats and completions, whole and
streamed, with schemas and several samples; some leave early, some send what must be refused.

The memory of the front and of the engine is that which each process alone has, in RAM and swap.
Under load the engine's follows the keys and values of whatever runs, so growth is measured at rest:
the time has five equal parts, and after each the clients wait until nothing is under way. Growth is
from the rest after the first part, the warm-up, to the last. Results go to
benchmarks/serve/results/soak.json and soak.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
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
PARTS = 5
REST_SECONDS = 1.2  # the counts of the last step
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
    """What happened.

    Attributes:
        statuses: Answers by status.
        sent: Requests.
        left: Those whose client left.
        lost: Why a request has no whole answer.
        numbers: How many requests each client has sent.
        memory: Bytes of the front and of the engine under load, sample after sample.
        rests: Bytes of both, and of kept prefixes, after each part of the time.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    sent: int = 0
    left: int = 0
    lost: list[str] = field(default_factory=list)
    numbers: Counter[int] = field(default_factory=Counter)
    memory: dict[str, list[int]] = field(default_factory=lambda: {"front": [], "engine": []})
    rests: list[dict[str, int]] = field(default_factory=list)

    @property
    def unplanned(self) -> int:
        """Answers that the server should never give."""
        return sum(
            n for status, n in self.statuses.items() if status >= 500 and status not in PLANNED
        )


async def load(
    server: Server, counts: Counts, seconds: float, sizes: Sizes, clients: int, limit: int
) -> None:
    """Send requests for some seconds, until `limit` of them were sent at most."""
    end = time.monotonic() + seconds
    async with client(server.port, clients) as link:

        async def one(seed: int) -> None:
            while time.monotonic() < end and counts.sent < limit:
                counts.numbers[seed] += 1
                number = counts.numbers[seed]
                counts.sent += 1
                if number % 9 == 0:
                    path, body = BAD[(seed + number) % len(BAD)]
                    counts.statuses[(await link.post(path, json=body)).status_code] += 1
                else:
                    await _ask(link, draw(seed, number, sizes), counts)

        watcher = asyncio.create_task(_watch(server, counts, seconds / 40))
        await asyncio.gather(*(one(seed) for seed in range(clients)))
        watcher.cancel()


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


def rest(server: Server) -> dict[str, int]:
    """Return the memory of a server that has nothing to do."""
    time.sleep(REST_SECONDS)
    engine = server.engine()
    return {
        "front": memory_bytes(server.process.pid),
        "engine": 0 if engine is None else memory_bytes(engine),
        "prefixes": round(server.metrics()["retained_bytes"]),
    }


def growth(rests: Sequence[Mapping[str, int]], name: str) -> float:
    """Return by which share the memory of a process grew from the first rest to the last."""
    return rests[-1][name] / rests[0][name] - 1


def run(
    place: Place, seconds: float, sizes: Sizes, clients: int = CLIENTS, limit: int = 10**9
) -> dict[str, Any]:
    """Soak a server, and return what happened."""
    server, counts = Server("soak", place, SERVER), Counts()
    try:
        engine = server.engine()
        for part in range(1, PARTS + 1):
            most = limit * part // PARTS
            asyncio.run(load(server, counts, seconds / PARTS, sizes, clients, most))
            counts.rests.append(rest(server))
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
        "rests": counts.rests,
        "growth": {name: growth(counts.rests, name) for name in ("front", "engine")},
        "parked": metrics["num_preemptions_total"],
        "generated_tokens": metrics["generation_tokens_total"],
        "engine_lived": same,
        "under_way": metrics["num_requests_running"] + metrics["num_requests_waiting"],
        "bytes_left": metrics["kv_cache_bytes_used"],
    }


def percent(share: float) -> str:
    """Return a share as text."""
    return f"{100 * share:.2f} %"


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    found = data["found"]
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
    for name, grown in found["growth"].items():
        sizes = ", ".join(f"{each[name] / 2**20:.1f}" for each in found["rests"])
        under = [each / 2**20 for each in found["memory"][name]]
        rows += [
            [f"MiB of the {name} at each rest", sizes, ""],
            [
                f"... growth after the first, {100 / PARTS:.0f} % of the time",
                percent(grown),
                percent(MOST_GROWTH),
            ],
            ["... under load, MiB", f"{min(under):.0f} to {max(under):.0f}", ""],
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
