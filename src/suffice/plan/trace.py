"""Loads: who arrives when, and with how many tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from suffice.errors import InputError, OptionError, nearest, one_line

PATTERNS = ("poisson", "bursts")
MOST_TOKENS = 10_000_000  # of a prompt or an answer, which a simulation has as a list
MOST_REQUESTS = 10_000_000
MOST_SECONDS = 1e8  # between arrivals: beyond, times are no longer exact to the microsecond


class Arrival(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request; also a line of a trace's file.

    Attributes:
        arrival: Seconds, since any time that all requests share.
        prompt_tokens: Of the whole prompt.
        output_tokens: That are generated; no answer ends before.
        prefix: Whose first `prefix_tokens` tokens are equal in all requests of the same prefix.
        priority: A smaller number comes first.
        key: Whose API key it has: keys share alike.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    prefix: str | int | None = None
    prefix_tokens: int = 0
    priority: int = 0
    key: str = ""

    def fault(self) -> str | None:
        """Return what is wrong, in a few words; None if nothing is."""
        if not 0 <= self.arrival < float("inf"):
            return f"arrival={self.arrival}: must be seconds, at least 0"
        for name in ("prompt_tokens", "output_tokens"):
            if not 1 <= getattr(self, name) <= MOST_TOKENS:
                return f"{name}={getattr(self, name)}: must be in [1, {MOST_TOKENS}]"
        if self.prefix is None and self.prefix_tokens:
            return "prefix_tokens without prefix: name whose beginning it is"
        if self.prefix is not None and not self.prefix_tokens:
            return "prefix without prefix_tokens: say how many tokens requests share"
        if not 0 <= self.prefix_tokens <= self.prompt_tokens:
            most = self.prompt_tokens
            return f"prefix_tokens={self.prefix_tokens}: must be at most prompt_tokens={most}"
        return None


@dataclass(frozen=True)
class Lengths:
    """Tokens of requests: drawn from [(1 - r) * tokens, (1 + r) * tokens]; see `bench serve`.

    The first `prefix_len` tokens of a prompt, besides its `input_len`, are those of one of
    `prefixes`.
    """

    input_len: int = 128
    output_len: int = 128
    range_ratio: float = 0.0
    prefix_len: int = 0
    prefixes: int = 1

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len", "prefix_len", "prefixes"):
            least = 0 if name == "prefix_len" else 1
            if not least <= getattr(self, name) <= MOST_TOKENS:
                must = f"must be a whole number in [{least}, {MOST_TOKENS}]"
                raise OptionError(name, getattr(self, name), must)
        if not 0 <= self.range_ratio < 1:
            raise OptionError("range_ratio", self.range_ratio, "must be in [0, 1)")

    def at(self, arrival: float, number: int, draw: random.Random) -> Arrival:
        """Return request `number` of a load."""

        def length(of: int) -> int:
            spread = of * self.range_ratio
            return max(1, round(draw.uniform(of - spread, of + spread)))

        prefix = number % self.prefixes if self.prefix_len else None
        prompt, output = length(self.input_len), length(self.output_len)
        return Arrival(arrival, self.prefix_len + prompt, output, prefix, self.prefix_len)


def made(
    arrivals: str, rate: float, requests: int, lengths: Lengths, seed: int = 0, burst: int = 16
) -> list[Arrival]:
    """Return a load of `rate` requests a second on average; the same seed gives the same.

    "poisson" has independent arrivals, "bursts" `burst` requests at a time, at random times.

    Raises:
        InputError: Unknown `arrivals`, or a number out of range.
    """
    if arrivals not in PATTERNS:
        raise OptionError(
            "arrivals", arrivals, f"must be {' or '.join(PATTERNS)}.{nearest(arrivals, PATTERNS)}"
        )
    if not 0 < rate < float("inf"):
        raise OptionError("rate", rate, "must be a number of requests per second above 0")
    for name, value in (("requests", requests), ("burst", burst)):
        if not 1 <= value <= MOST_REQUESTS:
            raise OptionError(name, value, f"must be a whole number in [1, {MOST_REQUESTS}]")
    together = burst if arrivals == "bursts" else 1
    draw, times = random.Random(seed), random.Random(seed + 1)
    found, now = [], 0.0
    for number in range(requests):
        if number and number % together == 0:
            now += times.expovariate(rate / together)
        found.append(lengths.at(now, number, draw))
    return found


def read(path: Path) -> list[Arrival]:
    """Return the load of a file: a JSON object per line, in any order of time.

    The first request arrives at 0 seconds.

    Raises:
        InputError: It cannot be read or is empty, a line is no request, or years lie between them.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    decoder = msgspec.json.Decoder(Arrival)
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            arrival = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path}, line {number}: {one_line(error)}; a line is like "
                '{"arrival": 0.5, "prompt_tokens": 100, "output_tokens": 50}'
            ) from None
        if (fault := arrival.fault()) is not None:
            raise InputError(f"{path}, line {number}: {fault}")
        found.append(arrival)
    if not found:
        raise InputError(f"{path}: has no requests")
    found.sort(key=lambda each: each.arrival)
    first, last = found[0].arrival, found[-1].arrival
    if last - first > MOST_SECONDS:
        raise InputError(
            f"{path}: {last - first:g} seconds lie between its arrivals: at most {MOST_SECONDS:g} "
            "can be simulated; are they in seconds?"
        )
    return [msgspec.structs.replace(each, arrival=each.arrival - first) for each in found]


def write(path: Path, arrivals: Sequence[Arrival]) -> None:
    """Write a load as a file that `read` reads."""
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in arrivals))
