"""RULER's needles are where they should be, prompts fill their length, scores are what was read."""

from __future__ import annotations

import random
import re

import pytest

from ruler_reader import NEEDLE, Letters
from suffice.eval.ruler import (
    NEW_TOKENS,
    TASKS,
    Answer,
    Draft,
    RulerPlan,
    RulerTally,
    contained,
    largest,
)
from suffice.eval.ruler_text import (
    ADJECTIVES,
    DEPTHS,
    NOISE,
    NOUNS,
    Needles,
    drawn_beside,
    essay_words,
    listed,
)

WORDS, NUMBERS = r"[a-z]+-[a-z]+", r"[1-9]\d{6}"
UUIDS = r"[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}"
# task: (haystack, key, value, kind of value, needles, keys, asked for, answers)
RULER = {
    "niah_single_1": ("noise", WORDS, NUMBERS, "numbers", 1, 1, 1, 1),
    "niah_single_2": ("essay", WORDS, NUMBERS, "numbers", 1, 1, 1, 1),
    "niah_single_3": ("essay", WORDS, UUIDS, "uuids", 1, 1, 1, 1),
    "niah_multikey_1": ("essay", WORDS, NUMBERS, "numbers", 4, 4, 1, 1),
    "niah_multikey_2": ("needles", WORDS, NUMBERS, "numbers", 1, 1, 1, 1),
    "niah_multikey_3": ("needles", UUIDS, UUIDS, "uuids", 1, 1, 1, 1),
    "niah_multivalue": ("essay", WORDS, NUMBERS, "numbers", 4, 1, 1, 4),
    "niah_multiquery": ("essay", WORDS, NUMBERS, "numbers", 4, 4, 4, 4),
}


def context_of(text: str) -> str:
    """Return what stands between the instruction and the question."""
    _, _, rest = text.partition("\n")
    return rest.rpartition("\n")[0]


def sentences(text: str) -> list[str]:
    """Return sentences and needles; a needle may follow a sentence that is broken off."""
    return re.split(r"(?<=[.?!]) | (?=One of the special)", text)


@pytest.mark.parametrize("length", [1500, 4000])
@pytest.mark.parametrize("name", RULER)
def test_needles_are_where_they_should_be(name: str, length: int) -> None:
    haystack, key, value, kind, count, keys, asked, answers = RULER[name]
    for index in range(5):
        draft = Draft(name, length, index, seed=3)
        tokenizer = Letters(template=False)
        text = tokenizer.decode(draft.fitted(tokenizer)[1:])
        found = NEEDLE.findall(text)
        ours = [each for each in found if each[1] in {n.key for n in draft.needles}]
        assert len(ours) == len(draft.needles) == count
        assert len({n.key for n in draft.needles}) == keys
        assert len({n.value for n in draft.needles}) == count
        assert len(found) == count if haystack != "needles" else len(found) > 5
        for what, each_key, each_value in found:
            assert what == kind and re.fullmatch(key, each_key)
            assert re.fullmatch(value, each_value)
        assert len({n.key for n in draft.expected}) == asked and len(draft.expected) == answers
        context = context_of(text)
        lines = context.split("\n") if haystack != "essay" else sentences(context)
        hidden = [line for line in lines if any(n.value in line for n in draft.needles)]
        straw = len(lines) - count
        for needle in draft.needles:
            (at,) = (at for at, line in enumerate(lines) if needle.value in line)
            before = sum(line not in hidden for line in lines[:at])
            assert before == int(straw * needle.depth / 100)
            assert needle.depth in DEPTHS or haystack != "essay"
        if haystack == "noise":
            assert set(lines) - {NOISE} == {lines[at]}
        if haystack == "essay":
            rest = [line for line in lines if not NEEDLE.fullmatch(line)]
            assert " ".join(rest).split() == essay_words()[: len(" ".join(rest).split())]


@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize("name", RULER)
def test_prompts_fill_their_length(name: str, template: bool) -> None:
    tokenizer = Letters(template)
    unit = {"noise": len(NOISE), "essay": max(map(len, essay_words())), "needles": 120}
    for length in (1500, 1501, 1502, 2048):
        tokens = Draft(name, length, 0, seed=0).fitted(tokenizer)
        free = length - NEW_TOKENS - len(tokens)
        assert 0 <= free <= unit[RULER[name][0]]


def test_a_haystack_can_be_longer_than_the_essay() -> None:
    length = 2 * len(" ".join(essay_words())) + 1000
    tokenizer = Letters(template=False)
    text = tokenizer.decode(Draft("niah_single_2", length, 0, seed=0).fitted(tokenizer)[1:])
    assert text.count(" ".join(essay_words()[:9])) == 3


def test_questions() -> None:
    def text(name: str, template: bool) -> str:
        tokenizer = Letters(template)
        return tokenizer.decode(Draft(name, 2000, 0, seed=0).fitted(tokenizer))

    draft = Draft("niah_single_3", 2000, 0, seed=0)
    (needle,) = draft.expected
    start = "A special magic uuid is hidden within the following text. Make sure to memorize it. "
    ask = f"What is the special magic uuid for {needle.key} mentioned in the provided text?"
    begin = f"The special magic uuid for {needle.key} mentioned in the provided text is"
    assert text("niah_single_3", False).startswith("\1" + start)
    assert text("niah_single_3", False).endswith(f"\n{ask} {begin}")
    assert text("niah_single_3", True).startswith("<user>" + start)
    assert text("niah_single_3", True).endswith(f"\n{ask}<model>{begin}")
    keys = [needle.key for needle in Draft("niah_multiquery", 2000, 0, seed=0).expected]
    query = f"{keys[0]}, {keys[1]}, {keys[2]}, and {keys[3]}"
    begin = f"The special magic numbers for {query} mentioned in the provided text are"
    many = text("niah_multiquery", True)
    assert many.startswith("<user>Some special magic numbers are hidden within")
    assert f"\nWhat are all the special magic numbers for {query} mentioned" in many
    assert many.endswith(f"<model>{begin}")
    assert listed(["a"]) == "a" and listed(["a", "b"]) == "a, and b"


def test_samples_follow_from_their_number() -> None:
    tokenizer = Letters(template=True)

    def tokens(name: str, length: int, index: int, seed: int) -> list[int]:
        return Draft(name, length, index, seed).fitted(tokenizer)

    for name in TASKS:
        first = tokens(name, 1500, 0, 0)
        assert first == tokens(name, 1500, 0, 0)
        values = Draft(name, 1500, 0, 0).expected
        for length, index, seed in ((1600, 0, 0), (1500, 1, 0), (1500, 0, 1)):
            assert tokens(name, length, index, seed) != first
            assert Draft(name, length, index, seed).expected != values
    plan = RulerPlan(list(TASKS), (1500, 1600), 3)
    drafts = list(plan.drafts())
    assert len(drafts) == plan.total == 48
    assert len({(draft.name, draft.length, draft.index) for draft in drafts}) == 48
    assert [draft.length for draft in drafts] == [1500] * 24 + [1600] * 24


def test_the_words_are_enough() -> None:
    assert len(set(ADJECTIVES)) >= 100 and len(set(NOUNS)) >= 200
    assert all(word.isascii() and word.isalpha() and word.islower() for word in ADJECTIVES + NOUNS)
    words = " ".join(essay_words())
    assert len(essay_words()) > 4000 and words.isascii()
    assert not re.search(r"\d|magic|special|\{", words)


def test_nothing_is_drawn_twice() -> None:
    drawn = [drawn_beside((), "words", random.Random(5)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn_beside(drawn[:1], "words", random.Random(5)) != drawn[0]
    (line,) = Needles("words", "numbers", (), "seed").pieces(1)
    ((_, key, value),) = NEEDLE.findall(line)
    (other,) = Needles("words", "numbers", (key, value), "seed").pieces(1)
    assert key not in other and value not in other


def test_depths_are_rulers() -> None:
    assert len(DEPTHS) == 40 and DEPTHS[0] == 0 and DEPTHS[-1] == 100
    assert DEPTHS[1:4] == (3, 5, 8) and sorted(set(DEPTHS)) == list(DEPTHS)
    lines = [Draft("niah_single_1", 1500, index, 0).needles[0].depth for index in range(200)]
    assert 0 <= min(lines) < 5 and 95 < max(lines) < 100 and 40 < sum(lines) / 200 < 60


@pytest.mark.parametrize("answer", range(9))
def test_the_largest_that_fits(answer: int) -> None:
    assert largest(lambda size: size <= answer) == answer


def test_scores() -> None:
    assert contained("the numbers are 12 and 34", ["12", "34"]) == 100
    assert contained("12, 35", ["12", "34"]) == 50
    assert contained("It is ABC.", ["abc"]) == 100 and contained("", ["abc"]) == 0

    def answer(task: str, length: int, score: float) -> Answer:
        return Answer(task, length, 0, 1, (), "", score)

    given = [("a", 10, 100.0), ("a", 10, 50.0), ("b", 10, 25.0), ("b", 10, 25.0)]
    tally = RulerTally([answer(*each) for each in given])
    result = tally.result()
    assert tally.score == 50
    assert [(s.task, s.length, s.score, s.error, s.samples) for s in result.scores] == [
        ("a", 10, 75, 25, 2),
        ("b", 10, 25, 0, 2),
    ]
    assert (result.mean.score, result.mean.error, result.mean.samples) == (50, 12.5, 4)
    tally.answers.append(answer("a", 20, 80.0))
    result = tally.result()
    assert [(mean.length, mean.score, mean.error) for mean in result.means] == [
        (10, 50, 12.5),
        (20, 80, None),
    ]
    assert (result.mean.score, result.mean.error, result.mean.samples) == (60, None, 5)
