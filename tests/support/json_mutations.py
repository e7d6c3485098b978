"""Seeded damage to JSON documents and to texts, as a hostile or a broken program would write them.

`mutated` changes one to three places of a document: a value of another type, a number out of every
range, an entry that is missing, doubled or moved, deep nesting. `mutated_text` cuts, doubles and
swaps parts of a text. The same seed gives the same damage.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

DEEP = 5_000
_NUMBERS = (0, -1, 1, 2**31, -(2**31), 2**32, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308)
_TEXTS = ("", " ", "\0", "a" * 10_000, "\u2581", "\ud800", "\U0001f600", "<0xZZ>", "a b", "(")
_VALUES = (None, True, False, [], {}, [[]], [None], {"type": "BPE"}, {"": ""}, *_NUMBERS, *_TEXTS)


def mutated(document: Any, seed: int) -> str:
    """Return the JSON text of a document with one to three places changed."""
    rng = random.Random(seed)
    root = [copy.deepcopy(document)]
    for _ in range(rng.randint(1, 3)):
        rng.choice(_CHANGES)(rng, *_place(rng, root))
    text = json.dumps(root[0])
    return text.replace('"\\u0000deep"', "[" * DEEP + "]" * DEEP)


def mutated_text(text: str, seed: int, parts: Sequence[str] = ()) -> str:
    """Return a text cut, doubled, or with `parts` and pieces of itself put in, once to thrice."""
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        start, end = sorted(rng.randint(0, len(text)) for _ in range(2))
        end = min(end, start + rng.choice((1, 4, 40, 400)))
        piece = text[start:end]
        at = rng.randint(0, len(text))
        text = rng.choice(
            [
                text[:start] + text[end:],
                text[:end],
                text[:at] + piece + text[at:],
                text[:at] + rng.choice([*parts, piece]) + text[at:],
                text[:start] + rng.choice([*parts, piece[::-1]]) + text[end:],
            ]
        )
    return text


def _place(rng: random.Random, root: list[Any]) -> tuple[Any, Any]:
    """Return a random container inside a document and one of its keys.

    Levels are as likely as each other, so that a large vocabulary does not draw everything.
    """
    parent: Any = root
    key: Any = 0
    while isinstance(parent[key], dict | list) and parent[key] and rng.random() < 0.8:
        parent = parent[key]
        key = rng.choice(list(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
    return parent, key


def _replace(rng: random.Random, parent: Any, key: Any) -> None:
    parent[key] = copy.deepcopy(rng.choice(_VALUES))


def _deepen(rng: random.Random, parent: Any, key: Any) -> None:
    parent[key] = "\0deep"


def _remove(rng: random.Random, parent: Any, key: Any) -> None:
    if isinstance(parent, dict) or len(parent) > 1:
        del parent[key]


def _double(rng: random.Random, parent: Any, key: Any) -> None:
    if isinstance(parent, dict):
        parent[f"{key}{rng.choice(['', ' ', 'x'])}"] = copy.deepcopy(parent[key])
    else:
        parent.insert(rng.randint(0, len(parent)), copy.deepcopy(parent[key]))


def _move(rng: random.Random, parent: Any, key: Any) -> None:
    other = rng.choice(list(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
    parent[key], parent[other] = parent[other], parent[key]


def _adjust(rng: random.Random, parent: Any, key: Any) -> None:
    """Change a value within its type."""
    value = parent[key]
    if isinstance(value, bool):
        parent[key] = not value
    elif isinstance(value, int | float):
        parent[key] = value + rng.choice((-1, 1, 7, 1000))
    elif isinstance(value, str):
        parent[key] = mutated_text(value, rng.randrange(2**32), _TEXTS)
    else:
        parent[key] = [value] if rng.random() < 0.5 else {"type": value}


_CHANGES: tuple[Callable[[random.Random, Any, Any], None], ...] = (
    _replace,
    _replace,
    _deepen,
    _remove,
    _double,
    _move,
    _adjust,
    _adjust,
)
