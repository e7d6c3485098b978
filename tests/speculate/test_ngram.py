"""Tests of ngram.py and proposers.py."""

from __future__ import annotations

import random

import pytest

from suffice.errors import InputError
from suffice.speculate.ngram import LastPlaces, NGram
from suffice.speculate.tree import NO_DRAFTS


def drafted(text: list[int], most: int = 4, least: int = 1, longest: int = 3) -> tuple[int, ...]:
    index = LastPlaces(least, longest)
    index.extend(text)
    return index.propose(most).tokens


def searched(text: list[int], most: int, least: int, longest: int) -> tuple[int, ...]:
    """The definition: for each length from the longest, look back from the end."""
    for size in range(longest, least - 1, -1):
        for place in range(len(text) - size - 1, -1, -1):
            if text[place : place + size] == text[len(text) - size :]:
                copied = list(text)
                for at in range(most):
                    copied.append(copied[place + size + at])
                return tuple(copied[len(text) :])
    return ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([1, 2, 3, 4, 9, 2, 3], (4, 9, 2, 3)),
        ([1, 2, 5, 2, 6, 2], (6, 2, 6, 2)),  # the last place, and then the copy itself
        ([7, 7], (7, 7, 7, 7)),
        ([1, 2, 3], ()),
        ([1], ()),
        ([], ()),
    ],
)
def test_what_followed_is_copied(text: list[int], expected: tuple[int, ...]) -> None:
    assert drafted(text) == expected


def test_it_is_the_definition() -> None:
    rng = random.Random(0)
    for _ in range(300):
        text = rng.choices(range(4), k=rng.randrange(30))
        least = rng.randint(1, 3)
        longest, most = rng.randint(least, 4), rng.randint(1, 9)
        assert drafted(text, most, least, longest) == searched(text, most, least, longest)


def test_a_text_may_come_in_pieces() -> None:
    index = LastPlaces(1, 3)
    for token in [1, 2, 3, 4, 9, 2, 3]:
        index.extend([token])
    assert index.propose(2).tokens == (4, 9)
    assert index.length == 7


def test_too_short_a_match_is_none() -> None:
    index = LastPlaces(2, 3)
    index.extend([1, 2, 5, 2])
    assert index.propose(4) is NO_DRAFTS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_speculative_tokens": 0},
            "speculator 'ngram': num_speculative_tokens=0: must be between 1 and 31",
        ),
        (
            {"num_speculative_tokens": 32},
            "speculator 'ngram': num_speculative_tokens=32: must be between 1 and 31",
        ),
        (
            {"prompt_lookup_min": 3, "prompt_lookup_max": 2},
            "speculator 'ngram': prompt_lookup_min=3 and prompt_lookup_max=2: must be at least 1, "
            "and the maximum not below the minimum",
        ),
    ],
)
def test_bad_options(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        NGram(**options)
    assert str(caught.value) == message
