"""LongBench's metrics have the values of their definitions, and of the packages it uses."""

from __future__ import annotations

import itertools

import pytest

from suffice.eval.longbench_scores import (
    characters,
    common_subsequence,
    edit_similarity,
    f1,
    plain_words,
    rouge_l,
    share_of_classes,
    share_of_numbers,
)


@pytest.mark.parametrize(
    ("said", "right", "score"),
    [
        ("The Eiffel Tower.", "Eiffel tower", 1),
        ("in Paris, France", "Paris", 0.5),  # P = 1/3, R = 1
        ("an old old man", "old man", 0.8),  # P = 2/3, R = 1: a word counts as often as it is right
        ("Rome", "Paris", 0),
        ("", "Paris", 0),
    ],
)
def test_f1(said: str, right: str, score: float) -> None:
    assert f1(plain_words(said), plain_words(right)) == pytest.approx(score)


def test_chinese_is_compared_by_characters() -> None:
    assert characters("答案: 北京。2008 A") == [*"答案北京2008a"]
    assert f1(characters("在北京。"), characters("北京")) == pytest.approx(0.8)
    assert rouge_l("在北京。", "北京", characters) == pytest.approx(0.8)
    assert rouge_l("在北京。", "北京") == 0


@pytest.mark.parametrize(
    ("said", "right", "score"),
    [  # of the package rouge 1.0.1, which adds 1e-8 to a denominator
        ("the cat sat on the mat", "the cat is on the mat", 0.8),
        ("A storm hit the coast. Two ships sank.", "Two ships sank. The storm left.", 0.57142857),
        ("a b c. d e", "d e. a c b", 0.8),
        ("one two three", "three two one", 1 / 3),
        ("x y x y x", "x y", 1),
        ("nothing", "in common", 0),
        ("", "a b", 0),
        ("...", "a b", 0),
    ],
)
def test_rouge_l(said: str, right: str, score: float) -> None:
    assert rouge_l(said, right) == pytest.approx(score, abs=1e-6)


def subsequences(text: str) -> set[str]:
    kept = itertools.product((False, True), repeat=len(text))
    return {"".join(itertools.compress(text, each)) for each in kept}


def test_no_common_subsequence_is_longer() -> None:
    texts = ["".join(each) for size in range(5) for each in itertools.product("ab", repeat=size)]
    for one, other in itertools.product(texts, repeat=2):
        both = subsequences(one) & subsequences(other)
        found = "".join(common_subsequence(one, other))
        assert found in both and len(found) == max(map(len, both)), (one, other)


def test_the_longest_common_subsequence() -> None:
    assert common_subsequence("abcbdab", "bdcaba") == [*"bdab"]
    assert common_subsequence("", "ab") == common_subsequence("ab", "") == []
    assert common_subsequence("ab", "cd") == []


def test_numbers() -> None:
    assert share_of_numbers("It is Paragraph 12.", "Paragraph 12") == 1
    assert share_of_numbers("12, or 7", "Paragraph 12") == 0.5
    assert share_of_numbers("1 2", "12") == 0, "a part of a number is another number"
    assert share_of_numbers("none", "12") == share_of_numbers("12", "none") == 0


def test_classes() -> None:
    classes = ["City", "Other location", "location", "Date"]
    assert share_of_classes("Type: City", "City", classes) == 1
    assert share_of_classes("City or Date", "City", classes) == 0.5
    assert share_of_classes("Other location", "Other location", classes) == 1
    assert share_of_classes("Other location", "location", classes) == 0.5
    assert share_of_classes("Date", "City", classes) == share_of_classes("", "City", classes) == 0


def test_code() -> None:
    assert edit_similarity("\n\n    return x\nother", "    return x") == 1
    assert edit_similarity("```python\n# comment\n// another\nab", "abcd") == pytest.approx(2 / 3)
    assert edit_similarity("kitten", "sitting") == pytest.approx(8 / 13)
    assert edit_similarity("", "abc") == 0 and edit_similarity("", "") == 1
    assert edit_similarity("# all comment", "x") == 0
