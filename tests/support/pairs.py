"""Parameters of tests by pairs: few combinations in which every pair of values is met."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from allpairspy import AllPairs


def pairwise(*parameters: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of one value of each parameter, in a fixed order.

    A fault that shows for certain values of one parameter or of two together is met, as the full
    product would. Use the product where three together are a case of their own.
    """
    given = [list(values) for values in parameters]
    sizes = tuple(len(values) for values in given)
    return [tuple(x[at] for x, at in zip(given, each, strict=True)) for each in _places(sizes)]


@functools.cache
def _places(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the combinations by the places of their values: they do not depend on these."""
    return [tuple(each) for each in AllPairs([list(range(size)) for size in sizes])]
