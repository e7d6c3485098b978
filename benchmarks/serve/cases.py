"""What is measured on a server: each case returns its figures of one round."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.serve.servers import Server, cpu_seconds
from suffice.errors import InputError
from suffice.eval import serving_load, serving_report
from suffice.eval.serving_client import Exchange, exchange
from suffice.eval.serving_load import Load

SECONDS = 600.0  # longest time of a request
SETTLE_SECONDS = 1.2  # until a server's counts are those of its last step
SCHEMA = {
    "type": "array",
    "minItems": 40,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
}
Figures = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """Tokens of the cases; a quick run has tiny ones."""

    prompt: int = 128
    output: int = 256
    fresh: int = 1024
    long: int = 4096
    longer: int = 6000
    short: int = 100
    shared: int = 1024
    own: int = 64
    turn: int = 2048
    depth: int = 8000
    deep_output: int = 96


QUICK = Sizes(8, 12, 32, 96, 120, 10, 128, 8, 64, 100, 8)


@dataclass(frozen=True)
class Round:
    """A case's turn at a server; the same number gives the same prompts to all servers."""

    server: Server
    sizes: Sizes
    number: int

    def load(self, requests: int, **sizes: Any) -> Load:
        """Return requests that are sent together."""
        return Load(requests=requests, concurrency=requests, seed=1000 * self.number, **sizes)

    async def send(self, load: Load) -> list[Exchange]:
        """Send a load and return the exchanges.

        Raises:
            InputError: A request failed.
        """
        found = await serving_load.run(self.server.target, self.server.model, load, SECONDS)
        check(found)
        return found

    async def one(self, prompt: int, output: int, seed: int, into: Exchange | None = None) -> float:
        """Send a prompt of random tokens alone; return its TTFT in milliseconds."""
        load = Load(requests=1, input_len=prompt, output_len=output, seed=1000 * self.number + seed)
        (talk,) = serving_load.conversations(load)
        path, body = serving_load.body_of(load, self.server.model, talk, 0, [])
        found = await exchange(self.server.target, path, body, SECONDS, into)
        check([found])
        return serving_report.times(found)["ttft"]


def check(found: Sequence[Exchange]) -> None:
    """Raise if a request failed.

    Raises:
        InputError: With its error.
    """
    for each in found:
        if each.error is not None:
            raise InputError(f"a request failed: {each.error}")


def streams(count: int) -> Callable[[Round], Awaitable[Figures]]:
    """Return the case of `count` streams that arrive together."""

    async def run(turn: Round) -> Figures:
        sizes = turn.sizes
        load = turn.load(count, input_len=sizes.prompt, output_len=sizes.output)
        before = cpu_seconds(turn.server.process.pid)
        found = await turn.send(load)
        spent = cpu_seconds(turn.server.process.pid) - before
        figures = serving_report.summary(found, {})
        front = {"front_us": 1e6 * spent / figures["total_output_tokens"]}
        return {
            "tokens_per_second": figures["output_throughput"],
            "ttft_ms": figures["p50_ttft_ms"],
            "tpot_ms": figures["p50_tpot_ms"],
            **(front if turn.server.ours else {}),
        }

    return run


async def first_token(turn: Round) -> Figures:
    """A prompt while the server is idle."""
    return {"ttft_ms": await turn.one(turn.sizes.fresh, 2, 1)}


async def long_prompt(turn: Round) -> Figures:
    """A long prompt arrives while one stream decodes."""
    sizes = turn.sizes
    alone = await turn.one(sizes.long, 2, 1)
    stream, other = Exchange(time.perf_counter()), Exchange(0.0)
    decoding = asyncio.create_task(turn.one(sizes.prompt, 12 * sizes.output, 2, stream))
    await _until(lambda: len(stream.chunks) >= sizes.output // 8)
    other.sent = time.perf_counter()
    meanwhile = await turn.one(sizes.long, 2, 3, other)
    count = len(stream.chunks)
    await _until(lambda: len(stream.chunks) > count or decoding.done())
    if decoding.done():
        raise InputError("the stream ended before the long prompt did")
    decoding.cancel()
    await asyncio.sleep(SETTLE_SECONDS)
    return {
        "gap_ms": longest_gap(stream.chunks, other.sent, other.chunks[0]),
        "alone_ms": alone,
        "meanwhile_ms": meanwhile,
    }


def longest_gap(chunks: Sequence[float], since: float, until: float) -> float:
    """Return the longest time, in milliseconds, between parts of a stream that touches a span."""
    return 1e3 * max(
        then - first for first, then in pairwise(chunks) if then > since and first < until
    )


async def _until(condition: Callable[[], bool]) -> None:
    end = time.perf_counter() + SECONDS
    while not condition():
        if time.perf_counter() > end:
            raise InputError("the server gave no tokens")
        await asyncio.sleep(0.001)


async def behind_long(turn: Round) -> Figures:
    """A short prompt arrives behind two that are longer."""
    sizes = turn.sizes
    alone = statistics.median([await turn.one(sizes.short, 2, seed) for seed in (1, 2, 3)])
    long = [asyncio.create_task(turn.one(sizes.longer, 2, seed)) for seed in (4, 5)]
    await asyncio.sleep(0.3)
    meanwhile = await turn.one(sizes.short, 2, 6)
    still = sum(not each.done() for each in long)
    await asyncio.gather(*long)
    return {"alone_ms": alone, "meanwhile_ms": meanwhile, "long_prompts_left": still}


async def shared_prefix(turn: Round) -> Figures:
    """Clients that begin alike arrive together; `run_share` is prompt tokens run over sent."""
    sizes = turn.sizes
    load = turn.load(8, dataset="shared-prefix", prefix_len=sizes.shared, input_len=sizes.own,
                     output_len=4)  # fmt: skip
    before = await asyncio.to_thread(turn.server.metrics)
    found = await turn.send(load)
    await asyncio.sleep(SETTLE_SECONDS)
    after = await asyncio.to_thread(turn.server.metrics)
    sent, cached = (
        after[name] - before[name] for name in ("prompt_tokens_total", "prompt_tokens_cached_total")
    )
    ttft = [serving_report.times(each)["ttft"] for each in found]
    return {"run_share": (sent - cached) / sent, "ttft_ms": statistics.median(ttft)}


async def second_turn(turn: Round) -> Figures:
    """A conversation's second message, after a long first one."""
    sizes = turn.sizes
    load = Load(dataset="multi-turn", requests=1, turns=2, input_len=sizes.turn, output_len=32,
                seed=turn.number)  # fmt: skip
    (talk,) = serving_load.conversations(load)
    first, then = (str(each) for each in talk.turns)
    talk = serving_load.Conversation((first, " ".join(then.split()[:16])), (32, 32))
    found: list[Exchange] = []
    history: list[dict[str, str]] = []
    for at in range(2):
        path, body = serving_load.body_of(load, turn.server.model, talk, at, history)
        found.append(await exchange(turn.server.target, path, body, SECONDS))
        check(found)
        history = [
            {"role": "user", "content": first},
            {"role": "assistant", "content": found[0].text},
        ]
    one, two = (serving_report.times(each)["ttft"] for each in found)
    return {"first_ms": one, "second_ms": two, "first_tokens": found[0].prompt_tokens}


async def schema(turn: Round) -> Figures:
    """The same chats with a JSON schema and without."""
    sizes = turn.sizes
    form = {"type": "json_schema", "json_schema": {"name": "people", "schema": SCHEMA}}
    found = {}
    cold = ("cache_prompt", False)  # or the second of both would find the prompts of the first
    order = [("on", (("response_format", form), cold)), ("off", (cold,))]
    for name, extra in order if turn.number % 2 else order[::-1]:
        load = turn.load(8, dataset="multi-turn", turns=1, input_len=sizes.prompt,
                         output_len=sizes.output, extra=extra)  # fmt: skip
        figures = serving_report.summary(await turn.send(load), {})
        found[name] = figures["output_throughput"]
        found[f"tokens_{name}"] = figures["total_output_tokens"]
        await asyncio.sleep(SETTLE_SECONDS)
    return found


async def deep(turn: Round) -> Figures:
    """Streams that decode after long prompts, which all rounds share: only the first runs them.

    `rows_differ` is how many rows the requests' counts differ by from the engine's own.
    """
    sizes = turn.sizes
    load = Load(requests=8, concurrency=8, input_len=sizes.depth, output_len=sizes.deep_output)
    before = await asyncio.to_thread(turn.server.metrics)
    found = await turn.send(load)
    await asyncio.sleep(SETTLE_SECONDS)
    after = await asyncio.to_thread(turn.server.metrics)
    rows = {name: after[name] - before.get(name, 0.0) for name in after if "rows_read" in name}
    engine = rows["engine_key_rows_read_total"] + rows["engine_value_rows_read_total"]
    held = after["kv_rows_held_total"] - before.get("kv_rows_held_total", 0.0)
    return {
        "tokens_per_second": sum(1e3 / serving_report.times(each)["tpot"] for each in found),
        "rows_differ": abs(rows["kv_rows_read_total"] - engine),
        "rows_share": rows["kv_rows_read_total"] / (2 * held),
    }
