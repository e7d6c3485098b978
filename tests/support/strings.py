"""Seeded texts of mixed scripts, as nobody would write them and somebody will send them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

_RANGES = (
    (0x20, 0x7E),  # ASCII, most often
    (0x20, 0x7E),
    (0x61, 0x7A),
    (0xA0, 0x17F),  # Latin
    (0x300, 0x36F),  # combining marks
    (0x370, 0x3FF),  # Greek
    (0x400, 0x4FF),  # Cyrillic
    (0x590, 0x6FF),  # Hebrew, Arabic
    (0x900, 0x97F),  # Devanagari
    (0xE00, 0xE7F),  # Thai
    (0x1100, 0x11FF),  # Hangul letters
    (0x2000, 0x206F),  # spaces, joiners, marks of direction
    (0x2580, 0x259F),  # with sentencepiece's space
    (0x3040, 0x30FF),  # Japanese
    (0x4E00, 0x9FFF),  # Chinese
    (0xAC00, 0xD7A3),  # Hangul
    (0xE000, 0xE0FF),  # private use
    (0xFB00, 0xFB4F),  # ligatures
    (0xFF00, 0xFFEF),  # full width
    (0x1F300, 0x1FAFF),  # emoji
    (0x20000, 0x2A6DF),
    (0x00, 0x1F),  # control characters
)
_WORDS = (
    *("the", "The", " quick", "don't", "I'LL", "fox's", "1234567", "3.14", "-17", "x=1;", "=="),
    *(
        "café",
        "cafe\u0301",
        "naïve",
        "日本語",
        "안녕",
        "👩‍👩‍👧",
        "🇩🇪",
        "ﬁne",
        "Ǆ",
        "ß",
        "İ",
        "½",
        "²",
    ),
    *(
        "  ",
        "    ",
        "\t",
        "\n",
        "\n\n",
        "\r\n",
        " \n ",
        "\u00a0",
        "\u3000",
        "\u200b",
        "\ufeff",
        "▁",
    ),
    *("<0x0A>", "<|", "|>", "https://a.b/c?d=e&f", "for i in range(10):\n    pass", "\0"),
)


def texts(seed: int, count: int, special: Sequence[str] = ()) -> Iterator[str]:
    """Yield texts; `special` are put into some of them."""
    rng = random.Random(seed)
    for index in range(count):
        if index % 50 == 49:
            yield _run(rng) * rng.randint(50, 400)  # a very long word
            continue
        parts = []
        for _ in range(rng.randint(0, 12)):
            kind = rng.random()
            if kind < 0.45:
                parts.append(rng.choice(_WORDS))
            elif kind < 0.55 and special:
                parts.append(rng.choice(special))
            else:
                parts.append(_run(rng))
            parts.append(rng.choice(("", " ", " ", "  ", "\n")))
        yield "".join(parts)


def _run(rng: random.Random) -> str:
    """Return some characters of one script."""
    first, last = rng.choice(_RANGES)
    return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 10)))
