"""LongBench's metrics: how well an answer agrees with the right one, from 0 to 1.

    F1         words of both, articles, case and punctuation aside: 2 P R / (P + R)
    ROUGE-L    the same of distinct words: those of the longest common subsequences of each pair of
               sentences, over all of the answer and all of the right one
    accuracy   the class or the number is named, divided by the number of those named
    edit sim.  2 LCS / (sum of lengths), of characters: 1 minus the insertions and deletions that
               turn one line of code into the other, over both lengths

Source   Bai et al., "LongBench: A Bilingual, Multitask Benchmark for Long Context Understanding".
         ROUGE-L is that of the package `rouge`, which LongBench uses.
Differs  Chinese is compared by characters; LongBench cuts it into words by the package `jieba`.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

Split = Callable[[str], list[str]]
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_COMMENTS = ("`", "#", "//")  # a line of an answer with one of these is not code


def words(text: str) -> list[str]:
    """Return the words between white space."""
    return text.split()


def plain_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without articles and ASCII punctuation."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def characters(text: str) -> list[str]:
    """Return the letters and digits of a text in lower case, one by one."""
    return [each for each in text.lower() if unicodedata.category(each)[0] in "LN"]


def f1(said: Sequence[str], right: Sequence[str]) -> float:
    """Return F1 of two bags of words."""
    return _harmonic((Counter(said) & Counter(right)).total(), len(said), len(right))


def rouge_l(said: str, right: str, split: Split = words) -> float:
    """Return F1 of ROUGE-L on whole texts; sentences end with full stops."""
    answers, truths = (
        [split(sentence) for sentence in text.split(".") if sentence] for text in (said, right)
    )
    common = {
        word for truth in truths for answer in answers for word in common_subsequence(truth, answer)
    }
    all_said, all_right = ({word for each in text for word in each} for text in (answers, truths))
    return _harmonic(len(common), len(all_said), len(all_right))


def common_subsequence(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return a longest common subsequence; of several, one whose matches lie late in `one`."""
    sizes = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, left in enumerate(one):
        above, row = sizes[i], sizes[i + 1]
        for j, right in enumerate(other):
            row[j + 1] = above[j] + 1 if left == right else max(above[j + 1], row[j])
    found, i, j = [], len(one), len(other)
    while i and j:
        if one[i - 1] == other[j - 1]:
            found.append(one[i - 1])
            i, j = i - 1, j - 1
        elif sizes[i - 1][j] > sizes[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found[::-1]


def share_of_numbers(said: str, right: str) -> float:
    """Return the share of an answer's numbers that are the right one's first number."""
    numbers, wanted = re.findall(r"\d+", said), re.search(r"\d+", right)
    return numbers.count(wanted[0]) / len(numbers) if numbers and wanted else 0.0


def share_of_classes(said: str, right: str, classes: Sequence[str]) -> float:
    """Return 1 over the number of classes that an answer names, if the right one is among them.

    A class whose name is a part of the right one's name does not count.
    """
    named = [each for each in classes if each in said and (each == right or each not in right)]
    return 1 / len(named) if right in named else 0.0


def edit_similarity(said: str, right: str) -> float:
    """Return the similarity of an answer's first line of code to the right line."""
    lines = said.lstrip("\n").split("\n")
    line = next((each for each in lines if not any(mark in each for mark in _COMMENTS)), "")
    total = len(line) + len(right)
    return 2 * len(common_subsequence(line, right)) / total if total else 1.0


def _harmonic(common: int, said: int, right: int) -> float:
    """Return the harmonic mean of common / said and common / right, 0 if nothing is common."""
    return 2 * common / (said + right) if common else 0.0
