"""Stop strings: the result does not depend on how the text comes in."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from suffice.engine.stops import StopText

TEXT = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Look at the text character by character, as if each were a token."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            hit = max(hits, key=len)
            return text[: end if include else end - len(hit)], hit
    return text, None


@example(pieces=["a", "b"], stops=["ab"], include=False)  # which chance finds seldom
@given(st.lists(TEXT, max_size=6), STOPS, st.booleans())
def test_any_cut_of_the_text_gives_the_same(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    watch, shown = StopText(stops, include=include), ""
    for piece in pieces:
        shown += watch.push(piece)
        assert shown == watch.text
        if watch.hit is not None:
            break
    shown += watch.flush()
    assert (shown, watch.hit) == expected("".join(pieces), stops, include)


@given(TEXT, STOPS)
def test_only_what_may_become_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    watch = StopText(stops)
    shown = watch.push(text)
    if watch.hit is None:
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
        assert not any(
            text[begin:] and stop.startswith(text[begin:])
            for begin in range(len(shown))
            for stop in stops
        )


@given(TEXT, TEXT, STOPS)
def test_no_stop_begins_where_it_is_not_looked_for(
    first: str, second: str, stops: list[str]
) -> None:
    watch = StopText(stops)
    shown = watch.push(first, search=False) + watch.push(second) + watch.flush()
    text, hit = expected(second, stops, False)
    assert (shown, watch.hit) == (first + text, hit)


@pytest.mark.parametrize(
    ("stops", "text", "hit"),
    [(["b", "ab"], "x", "ab"), (["abc", "b"], "xa", "b"), (["ab", "ab"], "x", "ab")],
)
def test_the_first_complete_stop_wins_then_the_longest(
    stops: list[str], text: str, hit: str
) -> None:
    watch = StopText(stops)
    watch.push("xabc")
    assert (watch.text, watch.hit) == (text, hit)
