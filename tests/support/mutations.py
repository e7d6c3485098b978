"""Seeded damage to files of any format, for tests that a reader refuses it in one line.

`mutants` damages bytes; `json_mutations` damages values of a JSON text. What is special to a format
is a mutator of its own: a function from bytes and a random generator to bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

Mutator = Callable[[bytes, Random], bytes]

EXTREMES = [0, 1, 2**7, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**64 - 1]


class Spot(NamedTuple):
    """Where a number, or the bytes of a text, lies in a file."""

    at: int
    size: int


def put(data: bytes, at: int, new: bytes) -> bytes:
    """Return bytes with some of them replaced."""
    return data[:at] + new + data[at + len(new) :]


def place(data: bytes, random: Random) -> int:
    """Return a place in a file, more often near its start, where headers are."""
    return int(len(data) * random.random() ** random.choice([1, 4]))


def flip_bits(data: bytes, random: Random) -> bytes:
    """Flip one to eight bits."""
    found = bytearray(data)
    for _ in range(random.randint(1, 8)):
        found[place(data, random)] ^= 1 << random.randrange(8)
    return bytes(found)


def truncate(data: bytes, random: Random) -> bytes:
    """Leave out the end."""
    return data[: place(data, random)]


def overwrite_number(data: bytes, random: Random) -> bytes:
    """Put an extreme number anywhere."""
    size = random.choice([1, 2, 4, 8])
    return extreme_at([Spot(place(data, random), size)], data, random)


def repeat_bytes(data: bytes, random: Random) -> bytes:
    """Copy some bytes over others, or between others."""
    start, size = place(data, random), random.choice([1, 4, 8, 32, 300])
    copied, to = data[start : start + size], place(data, random)
    return put(data, to, copied) if random.random() < 0.5 else data[:to] + copied + data[to:]


def remove_bytes(data: bytes, random: Random) -> bytes:
    """Leave out some bytes."""
    at = place(data, random)
    return data[:at] + data[at + random.choice([1, 4, 8, 32, 300]) :]


def not_a_number(data: bytes, random: Random) -> bytes:
    """Put a NaN or an infinity of float16, bfloat16 or float32 among the last half."""
    new = random.choice(
        [b"\x00\x7e", b"\x00\x7c", b"\xc0\x7f", b"\x00\x00\xc0\x7f", b"\0\0\x80\xff"]
    )
    at = len(data) // 2 + random.randrange(max(len(data) // 2 - 4, 1))
    return put(data, at - at % 2, new)


BYTES: dict[str, Mutator] = {
    each.__name__: each
    for each in (
        flip_bits,
        truncate,
        overwrite_number,
        repeat_bytes,
        remove_bytes,
        not_a_number,
    )
}


def extreme_at(spots: Sequence[Spot], data: bytes, random: Random) -> bytes:
    """Put an extreme number, or one next to the number that is there, at one of some places."""
    at, size = random.choice(spots)
    old = int.from_bytes(data[at : at + size], "little")
    new = random.choice([*EXTREMES, old + 1, old - 1]) % 2 ** (8 * size)
    return put(data, at, new.to_bytes(size, "little"))[: len(data)]


def numbers_at(spots: Sequence[Spot]) -> Mutator:
    """Return a mutator that overwrites one of the numbers at known places."""
    return lambda data, random: extreme_at(spots, data, random)


def names_at(spots: Sequence[Spot]) -> Mutator:
    """Return a mutator of texts at known places: one of them twice, or not UTF-8."""

    def mutate(data: bytes, random: Random) -> bytes:
        one, other = random.choice(spots), random.choice(spots)
        copied = data[one.at : one.at + min(one.size, other.size)]
        broken = bytes(random.choice([b"\xff", b"\xc0", b"\n", b"\0"]) * min(other.size, 2))
        return put(data, other.at, copied if random.random() < 0.7 else broken)

    return mutate


def mutants(
    data: bytes, count: int, seed: int = 0, extra: Mapping[str, Mutator] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield damaged copies of a file, each with the number and the name of its mutator.

    Each mutator gets its turn, those in `extra` too; one in four copies is damaged twice.
    """
    mutators = list((BYTES | dict(extra or {})).items())
    for number in range(count):
        random = Random(f"{seed} {number}")
        name, mutate = mutators[number % len(mutators)]
        found = mutate(data, random)
        if found and random.random() < 0.25:
            found = random.choice(mutators)[1](found, random)
        yield f"{number}: {name}", found
