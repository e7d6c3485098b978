"""What the front and the router cost: CPU time by request, token, engine and block of a prompt.

    python -m benchmarks.serve.front            (about 2 minutes)
    python -m benchmarks.serve.front --quick

The front is the server's, the engine answers at once. A client of its own process keeps some
connections busy; the front's CPU time, not the time that passes, says how many requests a second
one front can handle, since the client and the engine need the same cores. The router is called with
the tickets of 64 and 1,024 simulated engines. Results go to benchmarks/serve/results/front.json and
front.md.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness import script
from benchmarks.harness.tables import markdown
from benchmarks.serve.servers import Kind, Place, Server, cpu_seconds
from suffice import pull
from suffice.serve.processes import wire
from suffice.serve.processes.fleet import load_of
from suffice.serve.processes.pending import Mailbox, Ticket, Tickets
from suffice.serve.processes.router import BLOCK, Router

MODEL = "smollm2-135m"
BAR = 2000.0  # short requests a second of one front
ENGINES = (64, 1024)
TICKETS = 4  # of each engine
CONNECTIONS = 16
ROUNDS = 5
PAUSE = 0.005  # seconds between the tokens of a stream; without one, tokens would be merged
LONG, SHORT = 33, 1  # tokens of streamed answers


def request(prompt: int, output: int, stream: bool) -> bytes:
    """Return a completion request of token ids, on a connection that stays open."""
    body: dict[str, Any] = {"prompt": [1000] * prompt, "max_tokens": output, "temperature": 0}
    return _posted("/v1/completions", body | ({"stream": True} if stream else {}))


def talk(output: int) -> bytes:
    """Return a chat request for a stream whose model may think and call a tool."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    body = {"messages": [{"role": "user", "content": "Hello"}], "tools": [tool], "stream": True}
    return _posted("/v1/chat/completions", {**body, "max_tokens": output, "temperature": 0})


def _posted(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def _one(port: int, data: bytes, count: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        for _ in range(count):
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            if b"chunked" in head:
                await reader.readuntil(b"\r\n0\r\n\r\n")
            else:
                size = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
                await reader.readexactly(int(size))
    finally:
        writer.close()


async def send(port: int, data: bytes, count: int) -> None:
    """Send a request `count` times over some connections, and read all answers."""
    each = max(count // CONNECTIONS, 1)
    await asyncio.gather(*(_one(port, data, each) for _ in range(CONNECTIONS)))


def measured(server: Server, data: bytes, count: int) -> dict[str, float]:
    """Return the front's CPU seconds of a request, and how many a second were answered."""
    count = max(count // CONNECTIONS, 1) * CONNECTIONS
    before, began = cpu_seconds(server.process.pid), time.perf_counter()
    asyncio.run(send(server.port, data, count))
    seconds = time.perf_counter() - began
    cpu = cpu_seconds(server.process.pid) - before
    return {"cpu": cpu / count, "reached": count / seconds}


def tickets(count: int, prompt: int = 128) -> Tickets:
    """Return requests that wait for their first token."""
    found = Tickets()
    for at in range(count):
        found[str(at)] = Ticket(wire.Submit(str(at), [at] * prompt, {}), 1, 0, Mailbox())
    return found


def seconds_of(act: Callable[[int], Any], repeats: int) -> float:
    """Return the least mean seconds of a call, of some rounds."""
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for at in range(repeats):
            act(at)
        found.append((time.process_time() - began) / repeats)
    return min(found)


def routed(engines: int, each: int, prompt: int, repeats: int) -> float:
    """Return the seconds in which the router chooses among engines with `each` requests."""
    router = Router(engines)
    held = [tickets(each) for _ in range(engines)]
    works = [wire.Submit(str(at), [at] * prompt, {}) for at in range(repeats)]

    def choose(at: int) -> None:
        router.choose(works[at], [load_of(own, works[at]) for own in held])

    return seconds_of(choose, repeats)


def router_costs(repeats: int) -> dict[str, float]:
    """Return the router's seconds for an engine, a ticket and a block, by differences."""
    few, many = ENGINES
    repeats_of = {few: repeats, many: max(repeats // 10, 2)}
    idle = {count: routed(count, 0, 32, repeats_of[count]) for count in ENGINES}
    busy = {count: routed(count, TICKETS, 32, repeats_of[count]) for count in ENGINES}
    deep = routed(few, TICKETS, 32 * BLOCK, repeats)
    return {
        "instance": (idle[many] - idle[few]) / (many - few),
        "ticket": (busy[many] - idle[many]) / (TICKETS * many),
        "block": max(deep - busy[few], 0.0) / 32,
        **{f"choose_{count}": busy[count] for count in ENGINES},
    }


def cases_of(place: Place, pause: float, cases: dict[str, bytes], count: int) -> list[Any]:
    """Return the figures of some requests, round by round, of a server of its own."""

    def command(own: Place) -> list[str]:
        module = [sys.executable, "-m", "benchmarks.serve.engines.instant"]
        return [*module, str(own.gguf), str(own.port), str(pause), "0", "qwen3"]

    server = Server("instant", place, Kind("instant", command))
    try:
        for data in cases.values():
            measured(server, data, count // 4)  # the first use of everything
        return [
            {name: measured(server, data, count) for name, data in cases.items()}
            for _ in range(ROUNDS)
        ]
    finally:
        server.close()


def run(place: Place, count: int, repeats: int) -> dict[str, Any]:
    """Measure the front and the router."""
    at_once = {"short": request(16, SHORT, False)}
    paced = {
        "short_stream": request(16, SHORT, True),
        "long_stream": request(16, LONG, True),
        "short_talk": talk(SHORT),
        "long_talk": talk(LONG),
    }
    cases = at_once | paced
    rounds = [
        {**one, **other}
        for one, other in zip(
            cases_of(place, 0.0, at_once, count),
            cases_of(place, PAUSE, paced, count // 4),
            strict=True,
        )
    ]
    found = {
        name: {
            figure: statistics.median(each[name][figure] for each in rounds)
            for figure in ("cpu", "reached")
        }
        for name in cases
    }
    tokens = {
        name: (found[f"long_{kind}"]["cpu"] - found[f"short_{kind}"]["cpu"]) / (LONG - SHORT)
        for name, kind in (("token", "stream"), ("talk_token", "talk"))
    }
    return {"cases": found, **tokens, "router": router_costs(repeats)}


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    found, router = data["found"], data["found"]["router"]
    short = found["cases"]["short"]
    us = {name: f"{1e6 * each['cpu']:.0f}" for name, each in found["cases"].items()}
    rates = {count: 1 / (short["cpu"] + router[f"choose_{count}"]) for count in ENGINES}
    rows: list[list[object]] = [
        ["a short request, answered whole, us of CPU", us["short"], ""],
        ["... requests/s of one front, by its CPU time", f"{1 / short['cpu']:.0f}", f"{BAR:.0f}"],
        ["... requests/s answered, client and engine on the same cores", *_rate(short)],
        ["a stream of one token, us of CPU", us["short_stream"], ""],
        ["a streamed token, us of CPU", f"{1e6 * found['token']:.1f}", "50"],
        ["... where the model may think and call tools", f"{1e6 * found['talk_token']:.1f}", "50"],
        ["the router, for each engine, us", f"{1e6 * router['instance']:.2f}", ""],
        ["the router, for each request under way, us", f"{1e6 * router['ticket']:.2f}", ""],
        ["the router, for each 64 tokens of a prompt, us", f"{1e6 * router['block']:.2f}", ""],
    ]
    for count in ENGINES:
        own = f"{count} engines with {TICKETS} requests each"
        rows.append([f"the router, {own}, us", f"{1e6 * router[f'choose_{count}']:.0f}", ""])
        bar = f"{BAR:.0f}" if count == ENGINES[0] else ""
        rows.append(["... requests/s of front and router", f"{rates[count]:.0f}", bar])
    return f"## The front\n\n{markdown(['what', 'measured', 'asked'], rows)}"


def _rate(case: dict[str, float]) -> tuple[str, str]:
    return f"{case['reached']:.0f}", ""


def main() -> int:
    options = script.quick_or_whole(__doc__)
    gguf = pull.pull(MODEL)
    count, repeats = (64, 20) if options.quick else (4000, 400)
    found = run(Place(gguf, gguf.parent, 0), count, repeats)
    script.store(options, __file__, {"model": MODEL, "found": found}, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
