"""Whether every text is the one that its request has undisturbed, whatever happens to the server.

    python -m benchmarks.serve.exactness                   2,000 requests, one engine
    python -m benchmarks.serve.exactness --instances 2     two engines
    python -m benchmarks.serve.exactness --ray             a Ray cluster of two nodes, one is killed
    ... --requests 200 --kill-seconds 5

First, the requests run undisturbed, cold: on a server without drafts, without kept prefixes and
without a limit of memory, some at a time; a part of them then once more, each while nothing else
runs. Then all are sent at random times to a server with drafts and little memory, whose engine,
or one of several, is killed (SIGKILL) again and again; some clients leave early. Requests have
several samples, are drawn or greedy, follow schemas, and share beginnings.

With --ray, all processes of a node are killed at once, in the middle of the run, and a new node
comes. Results go to benchmarks/serve/results: exactness.json and exactness.md, of several engines
exactness-instances, of Ray exactness-ray.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.serve.asking import Answer, Ask, Sizes, differs, draw, send
from benchmarks.serve.servers import Kind, Place, Server, children, metrics, suffice
from suffice import native, pull
from suffice.eval.serving_client import Target

MODEL = "smollm2-135m"
QUEUE = ("--max-queue", "5000")
MEMORY = "48MiB"  # of keys and values: too little for all requests that have a place
ALONE = Kind("alone", suffice, ("--prefix-cache-bytes", "0"))
TOGETHER = Kind("together", suffice, (*QUEUE, "--speculate", "ngram", "--kv-cache-bytes", MEMORY))
SECONDS = 600.0
SIZES = Sizes(shared=60, own=12, output=24)


@dataclass(frozen=True)
class Plan:
    """What is sent, and when the engine is killed: after some seconds, or some answers.

    `together` are requests under way at most; `pause` is the mean time between arrivals. Of the
    undisturbed requests, every `alone`-th runs again while nothing else does. `instances` are the
    engines, among which the threads are divided.
    """

    requests: int
    seed: int = 0
    sizes: Sizes = SIZES
    together: int = 32
    pause: float = 0.05
    alone: int = 20
    kill_seconds: float = 20.0
    kill_answers: int = 10**9
    most_kills: int = 10**9
    instances: int = 1


@dataclass
class Counts:
    """What happened."""

    ended: int = 0
    left: int = 0
    kills: int = 0
    errors: list[str] = field(default_factory=list)
    different: list[int] = field(default_factory=list)


def client(port: int, most: int) -> httpx2.AsyncClient:
    """Return a client of a server."""
    limits = httpx2.Limits(max_connections=most, max_keepalive_connections=most)
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS, limits=limits)


async def answered(port: int, asks: Iterable[Ask], together: int) -> list[Answer]:
    """Return the answers of requests that nothing disturbs, some at a time."""
    room = asyncio.Semaphore(together)
    async with client(port, together) as link:

        async def one(ask: Ask) -> Answer:
            async with room:
                return await send(link, ask)

        return await asyncio.gather(*map(one, asks))


def undisturbed(port: int, plan: Plan, asks: Sequence[Ask]) -> tuple[list[Answer], int, list[str]]:
    """Return each request's answer on a quiet server, how many also ran alone, and what was wrong.

    Wrong is an error, and an answer that differs once its request runs alone.
    """
    cold = {repr(alone): alone for alone in (ask.alone() for ask in asks)}  # each once
    found = dict(zip(cold, asyncio.run(answered(port, cold.values(), plan.together)), strict=True))
    wrong = [f"undisturbed: {each.error}" for each in found.values() if each.error is not None]
    some = dict(list(cold.items())[:: plan.alone])
    again = asyncio.run(answered(port, some.values(), 1))
    wrong += [
        f"another text alone: {name}"
        for name, answer in zip(some, again, strict=True)
        if differs(answer, found[name], left=False)
    ]
    return [found[repr(ask.alone())] for ask in asks], len(some), wrong


async def run_together(
    port: int,
    plan: Plan,
    asks: Sequence[Ask],
    alone: Sequence[Answer],
    kill: Callable[[random.Random], bool],
) -> Counts:
    """Send all requests at random times, call `kill` now and then; compare their answers."""
    counts = Counts()
    room = asyncio.Semaphore(plan.together)
    rng = random.Random(plan.seed)
    async with client(port, plan.together) as link:

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

        killer = asyncio.create_task(_killing(kill, plan, counts))
        tasks = []
        for at in range(len(asks)):
            async with room:
                await asyncio.sleep(rng.expovariate(1 / plan.pause))
            tasks.append(asyncio.create_task(one(at)))
        await asyncio.gather(*tasks)
        killer.cancel()
    return counts


async def _killing(kill: Callable[[random.Random], bool], plan: Plan, counts: Counts) -> None:
    since, answered = time.monotonic(), 0
    rng = random.Random(plan.seed)
    while counts.kills < plan.most_kills:
        await asyncio.sleep(0.01)
        late = time.monotonic() - since > plan.kill_seconds
        if not late and counts.ended - answered < plan.kill_answers:
            continue
        since, answered = time.monotonic(), counts.ended
        counts.kills += await asyncio.to_thread(kill, rng)


def killer_of(server: Server) -> Callable[[random.Random], bool]:
    """Return what kills one of a server's engines, and says whether there was one."""

    def kill(rng: random.Random) -> bool:
        engines = children(server.process.pid)
        if engines:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(engines), signal.SIGKILL)
        return bool(engines)

    return kill


def run(
    plan: Plan, place: Place, flags: Sequence[str] = (), ray: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Run a plan and return what happened.

    `flags` are added to the loaded server's; `ray`, if given, are arguments of the application on
    a Ray cluster, which is then the loaded server.
    """
    asks = [draw(plan.seed, number, plan.sizes) for number in range(plan.requests)]
    began = time.monotonic()
    server = Server("alone", place, ALONE)
    try:
        alone, some, wrong = undisturbed(server.port, plan, asks)
    finally:
        server.close()
    quiet = time.monotonic() - began
    began = time.monotonic()
    with loaded(plan, place, flags) if ray is None else on_ray(ray) as (port, kill):
        counts = asyncio.run(run_together(port, plan, asks, alone, kill))
        seconds = time.monotonic() - began
        time.sleep(1.2)  # the counts of the last step
        seen = metrics(Target.of(f"http://127.0.0.1:{port}"))
    found = {
        "requests": len(asks),
        "equal": len(asks) - len(counts.different) - len(counts.errors),
        "different": counts.different,
        "errors": wrong + counts.errors,
        "alone": some,
        "clients_left": counts.left,
        "structured": sum(ask.structured for ask in asks),
        "drawn": sum(ask.body["temperature"] > 0 for ask in asks),
        "kills": counts.kills,
        "failovers": seen["failovers_total"],
        "parked": seen["num_preemptions_total"],
        "prefix_tokens_found": seen["prefix_cache_hits_total"],
        "drafts_accepted": seen["spec_decode_num_accepted_tokens_total"],
        "bytes_left": seen["kv_cache_bytes_used"],
        "quiet_seconds": quiet,
        "seconds": seconds,
    }
    if ray is not None:  # its counts are as of an engine's last message
        del found["bytes_left"]
    return found


Killable = tuple[int, Callable[[random.Random], bool]]  # a server's port, and what kills in it


@contextlib.contextmanager
def loaded(plan: Plan, place: Place, flags: Sequence[str]) -> Iterator[Killable]:
    """Run the server whose engines are killed."""
    place = dataclasses.replace(place, threads=max(place.threads // plan.instances, 1))
    flags = (*TOGETHER.flags, "--instances", str(plan.instances), *flags)
    server = Server("together", place, Kind(TOGETHER.label, suffice, flags))
    try:
        yield server.port, killer_of(server)
    finally:
        server.close()


@contextlib.contextmanager
def on_ray(arguments: dict[str, Any]) -> Iterator[Killable]:
    """Run the application on a Ray cluster whose nodes are killed."""
    from benchmarks.serve.raylets import Application

    with Application(arguments) as application:
        yield application.port, application.kill


_WORDS = {
    "requests": "requests",
    "equal": "texts equal to those undisturbed",
    "clients_left": "... whose client left; what came by then is equal",
    "alone": "undisturbed requests that also ran alone, and gave the same",
    "errors": "errors that a client saw",
    "structured": "with a grammar",
    "drawn": "drawn, not greedy",
    "kills": "engines killed",
    "failovers": "requests that went on in the next engine",
    "parked": "requests parked for lack of memory",
    "prefix_tokens_found": "prompt tokens found in kept prefixes",
    "drafts_accepted": "drafted tokens accepted",
    "bytes_left": "bytes of keys and values left at the end, beyond kept prefixes",
    "quiet_seconds": "seconds undisturbed",
    "seconds": "seconds under faults",
}


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    found = data["found"] | {"errors": len(data["found"]["errors"])}
    ray, several = data.get("ray", False), data.get("instances", 1)
    words = _WORDS | ({"kills": "nodes killed"} if ray else {})
    body = [[text, round(found[name])] for name, text in words.items() if name in found]
    where = (" on Ray" if ray else "") + (f", in {several} engines" if several > 1 else "")
    return f"## Texts under faults{where}\n\n{markdown(['what', 'count'], body)}"


def read() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=native.cores())
    parser.add_argument("--kill-seconds", type=float, default=20.0, help="without --ray")
    parser.add_argument("--instances", type=int, help="default: 1; with --ray 2")
    parser.add_argument("--ray", action="store_true", help="on a Ray cluster")
    parser.add_argument("--output", type=Path, default=record.results(__file__))
    options = parser.parse_args()
    options.instances = options.instances or (2 if options.ray else 1)
    return options


def main() -> int:
    options = read()
    gguf = pull.pull(MODEL)
    many, ray = options.instances, None
    plan = Plan(options.requests, options.seed, kill_seconds=options.kill_seconds, instances=many)
    if options.ray:
        middle = max(options.requests // 3, 1)
        plan = dataclasses.replace(plan, kill_seconds=10**9, kill_answers=middle, most_kills=1)
        ray = {"model": str(gguf), "instances": many, "threads": max(options.threads // many, 1)}
        ray |= {"max_queue": 5000, "speculate": "ngram", "kv_cache_bytes": MEMORY}
    found = run(plan, Place(gguf, gguf.parent, options.threads), ray=ray)
    data = record.facts() | {"model": MODEL, "threads": options.threads, "found": found}
    data |= {"instances": many, "ray": options.ray}
    name = "exactness-ray" if options.ray else "exactness-instances" if many > 1 else "exactness"
    record.write(options.output, name, data, table(data))
    print(table(data))
    for each in found["errors"][:20]:
        print(each, file=sys.stderr)
    return 0 if found["equal"] == found["requests"] and not found["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())
