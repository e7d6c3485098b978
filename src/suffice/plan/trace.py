"""Loads: who arrives when, and with how many tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from suffice.errors import InputError, OptionError, one_line, unknown

PATTERNS = ("poisson", "bursts")


class Arrival(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request; also a line of a trace's file.

    Attributes:
        arrival: Seconds since the trace began.
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
            if getattr(self, name) < 1:
                return f"{name}={getattr(self, name)}: must be at least 1"
        if self.prefix is None and self.prefix_tokens:
            return "prefix_tokens without prefix: name whose beginning it is"
        if not 0 <= self.prefix_tokens <= self.prompt_tokens:
            most = self.prompt_tokens
            return f"prefix_tokens={self.prefix_tokens}: must be at most prompt_tokens={most}"
        return None


@dataclass(frozen=True)
class Lengths:
    """Tokens of requests: drawn from [(1 - r) * tokens, (1 + r) * tokens]; see `bench serve`.

    The first `prefix` tokens of a prompt, besides its `prompt`, are those of one of `prefixes`.
    """

    prompt: int = 128
    output: int = 128
    ratio: float = 0.0
    prefix: int = 0
    prefixes: int = 1

    def __post_init__(self) -> None:
        for name in ("prompt", "output", "prefixes"):
            if getattr(self, name) < 1:
                raise OptionError(name, getattr(self, name), "must be at least 1")
        if self.prefix < 0:
            raise OptionError("prefix", self.prefix, "must be at least 0")
        if not 0 <= self.ratio < 1:
            raise OptionError("ratio", self.ratio, "must be in [0, 1)")

    def at(self, arrival: float, number: int, draw: random.Random) -> Arrival:
        """Return request `number` of a load."""

        def length(of: int) -> int:
            return max(1, round(draw.uniform(of * (1 - self.ratio), of * (1 + self.ratio))))

        prefix = number % self.prefixes if self.prefix else None
        prompt, output = length(self.prompt), length(self.output)
        return Arrival(arrival, self.prefix + prompt, output, prefix, self.prefix)


def made(
    pattern: str, rate: float, requests: int, lengths: Lengths, seed: int = 0, burst: int = 16
) -> list[Arrival]:
    """Return a load of `rate` requests a second on average; the same seed gives the same.

    "poisson" has independent arrivals, "bursts" `burst` requests at a time, at random times.

    Raises:
        InputError: An unknown pattern, or a number out of range.
    """
    if pattern not in PATTERNS:
        raise unknown("pattern", pattern, PATTERNS)
    if not 0 < rate < float("inf"):
        raise OptionError("rate", rate, "must be more than 0")
    for name, value in (("requests", requests), ("burst", burst)):
        if value < 1:
            raise OptionError(name, value, "must be at least 1")
    together = burst if pattern == "bursts" else 1
    draw, times = random.Random(seed), random.Random(seed + 1)
    found, now = [], 0.0
    for number in range(requests):
        if number and number % together == 0:
            now += times.expovariate(rate / together)
        found.append(lengths.at(now, number, draw))
    return found


def read(path: Path) -> list[Arrival]:
    """Return the load of a file: a JSON object per line, in any order of time.

    Raises:
        InputError: It cannot be read or is empty, or a line is no request.
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
    return sorted(found, key=lambda each: each.arrival)


def write(path: Path, arrivals: Sequence[Arrival]) -> None:
    """Write a load as a file that `read` reads."""
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in arrivals))
