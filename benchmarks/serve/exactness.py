"""Whether every text is the one that its request has alone, whatever happens to the server.

    python -m benchmarks.serve.exactness               1,000 requests (about 15 minutes)
    python -m benchmarks.serve.exactness --requests 50
    python -m benchmarks.serve.exactness --instances 2 --requests 200 --kill-seconds 5

First, each request runs alone, cold: on an idle server without drafts and without a limit of
memory. Then all are sent at random times to a server with drafts and little memory, whose engine,
or one of several, is killed (SIGKILL) again and again; some clients leave early. Requests have
several samples, are drawn or greedy, follow schemas, and share beginnings. Results go to
benchmarks/serve/results: exactness.json and exactness.md, and exactness-instances.json and .md of
several engines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.serve.asking import Answer, Ask, Sizes, differs, draw, send
from benchmarks.serve.servers import Kind, Place, Server, children, suffice
from suffice import native, pull

MODEL = "smollm2-135m"
QUEUE = ("--max-queue", "5000")
ALONE = Kind("alone", suffice, ("--prefix-cache-bytes", "0"))
TOGETHER = Kind("together", suffice, (*QUEUE, "--speculate", "ngram", "--kv-cache-bytes", "48MiB"))
SECONDS = 600.0


@dataclass(frozen=True)
class Plan:
    """What is sent, and when the engine is killed: after some seconds, or some answers.

    `together` are requests under way at most; `pause` is the mean time between arrivals.
    """

    requests: int
    seed: int = 0
    sizes: Sizes = field(default_factory=Sizes)
    together: int = 32
    pause: float = 0.05
    kill_seconds: float = 30.0
    kill_answers: int = 10**9


@dataclass
class Counts:
    """What happened."""

    ended: int = 0
    left: int = 0
    kills: int = 0
    errors: list[str] = field(default_factory=list)
    different: list[int] = field(default_factory=list)


def client(server: Server, most: int) -> httpx2.AsyncClient:
    """Return a client of a server."""
    limits = httpx2.Limits(max_connections=most, max_keepalive_connections=most)
    url = f"http://127.0.0.1:{server.port}"
    return httpx2.AsyncClient(base_url=url, timeout=SECONDS, limits=limits)


async def run_alone(server: Server, asks: Sequence[Ask]) -> list[Answer]:
    """Return each request's answer while nothing else runs."""
    known: dict[str, Answer] = {}
    found = []
    async with client(server, 1) as link:
        for ask in asks:
            alone = ask.alone()
            key = repr(alone)
            if key not in known:
                known[key] = await send(link, alone)
            found.append(known[key])
    return found


async def run_together(
    server: Server, plan: Plan, asks: Sequence[Ask], alone: Sequence[Answer]
) -> Counts:
    """Send all requests at random times while the engine is killed; compare their answers."""
    counts = Counts()
    room = asyncio.Semaphore(plan.together)
    rng = random.Random(plan.seed)
    async with client(server, plan.together) as link:

        async def one(at: int) -> None:
            async with room:
                try:
                    found = await send(link, asks[at])
                except (httpx2.HTTPError, ValueError) as error:
                    counts.errors.append(f"{at}: {type(error).__name__}: {error}")
                    return
                finally:
                    counts.ended += 1
            left = asks[at].leave is not None
            counts.left += left
            if found.error is not None:
                counts.errors.append(f"{at}: {found.error}")
            elif differs(found, alone[at], left):
                counts.different.append(at)

        killer = asyncio.create_task(_kill(server, plan, counts))
        tasks = []
        for at in range(len(asks)):
            async with room:
                await asyncio.sleep(rng.expovariate(1 / plan.pause))
            tasks.append(asyncio.create_task(one(at)))
        await asyncio.gather(*tasks)
        killer.cancel()
    return counts


async def _kill(server: Server, plan: Plan, counts: Counts) -> None:
    since, answered = time.monotonic(), 0
    rng = random.Random(plan.seed)
    while True:
        await asyncio.sleep(0.01)
        late = time.monotonic() - since > plan.kill_seconds
        if not late and counts.ended - answered < plan.kill_answers:
            continue
        if engines := children(server.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(engines), signal.SIGKILL)
            counts.kills += 1
        since, answered = time.monotonic(), counts.ended


def run(plan: Plan, place: Place, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Run a plan and return what happened; `flags` are added to the loaded server's."""
    asks = [draw(plan.seed, number, plan.sizes) for number in range(plan.requests)]
    server = Server("alone", place, ALONE)
    try:
        alone = asyncio.run(run_alone(server, asks))
    finally:
        server.close()
    bad = [f"alone: {answer.error}" for answer in alone if answer.error is not None]
    kind = Kind(TOGETHER.label, suffice, (*TOGETHER.flags, *flags))
    server = Server("together", place, kind)
    began = time.monotonic()
    try:
        counts = asyncio.run(run_together(server, plan, asks, alone))
        seconds = time.monotonic() - began
        time.sleep(1.2)  # the counts of the last step
        metrics = server.metrics()
    finally:
        server.close()
    return {
        "requests": len(asks),
        "equal": len(asks) - len(counts.different) - len(counts.errors),
        "different": counts.different,
        "errors": bad + counts.errors,
        "clients_left": counts.left,
        "structured": sum(ask.structured for ask in asks),
        "drawn": sum(ask.body["temperature"] > 0 for ask in asks),
        "kills": counts.kills,
        "failovers": metrics["failovers_total"],
        "parked": metrics["num_preemptions_total"],
        "prefix_tokens_found": metrics["prefix_cache_hits_total"],
        "drafts_accepted": metrics["spec_decode_num_accepted_tokens_total"],
        "bytes_left": metrics["kv_cache_bytes_used"],
        "seconds": seconds,
    }


_WORDS = {
    "requests": "requests",
    "equal": "texts equal to those alone",
    "clients_left": "... whose client left; what came by then is equal",
    "errors": "errors that a client saw",
    "structured": "with a grammar",
    "drawn": "drawn, not greedy",
    "kills": "engines killed",
    "failovers": "requests that went on in the next engine",
    "parked": "requests parked for lack of memory",
    "prefix_tokens_found": "prompt tokens found in kept prefixes",
    "drafts_accepted": "drafted tokens accepted",
    "bytes_left": "bytes of keys and values left at the end, beyond kept prefixes",
    "seconds": "seconds",
}


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    found = data["found"] | {"errors": len(data["found"]["errors"])}
    body = [[text, round(found[name])] for name, text in _WORDS.items()]
    several = data.get("instances", 1)
    where = f", in {several} engines" if several > 1 else ""
    return f"## Texts under faults{where}\n\n{markdown(['what', 'count'], body)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=native.cores())
    parser.add_argument("--kill-seconds", type=float, default=30.0)
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--output", type=Path, default=record.results(__file__))
    options = parser.parse_args()
    gguf = pull.pull(MODEL)
    plan = Plan(options.requests, options.seed, kill_seconds=options.kill_seconds)
    many = options.instances
    flags = ("--instances", str(many)) if many > 1 else ()
    found = run(plan, Place(gguf, gguf.parent, options.threads), flags)
    data = record.facts() | {"model": MODEL, "threads": options.threads, "found": found}
    data["instances"] = many
    name = "exactness-instances" if many > 1 else "exactness"
    record.write(options.output, name, data, table(data))
    print(table(data))
    for each in found["errors"][:20]:
        print(each, file=sys.stderr)
    return 0 if found["equal"] == found["requests"] else 1


if __name__ == "__main__":
    sys.exit(main())
