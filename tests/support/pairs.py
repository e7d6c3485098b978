"""Parameters of tests by pairs: few combinations in which every pair of values is met."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allpairspy import AllPairs


def pairwise(*parameters: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of one value of each parameter, in a fixed order.

    A fault that shows for certain values of one parameter or of two together is met, as the full
    product would. Use the product where three together are a case of their own.
    """
    return [tuple(each) for each in AllPairs([list(values) for values in parameters])]
