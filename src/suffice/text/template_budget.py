"""What a chat template may use of time and memory.

Every loop round, call, filter, test and arithmetic operation costs steps, and every value made
costs its size; both come out of one budget, so that the same template ends in the same place on
every machine. What could make much out of little (widths, `replace`, `join`, formats) is estimated
before it runs. A value that a list holds in many places counts as often as it occurs: so long does
it take to print or to compare.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, ValuesView
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

_WORK = 1 << 28  # units: a byte made, 1/256 of an operation
_VALUE = 1 << 22  # bytes of a value
_STEP, _VISIT, _READ = 256, 64, 32  # units of an operation, of a value; bytes read for a unit
_SHARE, _ROUNDS = 4, 64  # times the input's size: added to the size of a value and to the work
_SECONDS = 5.0  # of this thread's processor time; the units are spent sooner
_DEPTH = 64  # levels of lists in lists
_INTEGER_BYTES = 1 << 13
_CHARACTER = 4  # most bytes of a character
_WIDE = 1 << 16  # most characters to pad to, and parts to cut into
_PLACES = 300
_FORMAT = 1 << 12  # characters of a format
_SPECS = re.compile(r"%(?:\([^)]*\))?([^a-zA-Z%]*)[a-zA-Z%]|\{[^{}:]*:([^{}]*)\}")
_FROM_VALUE = re.compile(r"\*|\{[^{}]*\{")
_DIGITS = re.compile(r"\d+")

_Arguments = tuple[Any, ...]
_Estimate = Callable[["Budget", _Arguments, Mapping[str, Any]], _Arguments]


class Budget:
    """What a template may still do; `given` is the size of its input in bytes."""

    def __init__(self, given: int) -> None:
        self.largest = _VALUE + _SHARE * given
        self._left = _WORK + _ROUNDS * given
        self._end = time.thread_time() + _SECONDS

    def step(self, cost: int = 0) -> None:
        """Count an operation of some units more than a plain one.

        Raises:
            SecurityError: The budget is spent.
        """
        self._left -= cost + _STEP
        if self._left < 0 or time.thread_time() > self._end:
            raise SecurityError("it takes too long")

    def seen(self, value: Any) -> Any:
        """Count the looking at a whole value, and return it.

        Raises:
            SecurityError: It is too large.
        """
        size, visits = weigh(value, self.largest)
        self._left -= _VISIT * visits + size // _READ
        return value

    def made(self, value: Any) -> Any:
        """Count a value that was made, and return it.

        Raises:
            SecurityError: It is too large, or the budget is spent.
        """
        self.step(_size(value) + _VISIT * weigh(value, self.largest)[1])
        return value

    def room(self, expected: int) -> None:
        """Check a value's size in bytes before it is made.

        Raises:
            SecurityError: It would be too large.
        """
        if expected > self.largest:
            raise SecurityError("it makes too large a value")


def weigh(value: Any, most: float) -> tuple[int, int]:
    """Return the bytes of a value with all that it holds, and how many values that are.

    Raises:
        SecurityError: More than `most` bytes, nested too deeply, or a namespace in a value.
    """
    total = visits = 0
    stack = [(value, 0)]
    while stack:
        each, depth = stack.pop()
        visits += 1
        total += _size(each)
        if total > most:
            raise SecurityError("it makes too large a value")
        if isinstance(each, Mapping):
            parts: Iterable[Any] = (*each.keys(), *each.values())
        elif isinstance(each, list | tuple | set | KeysView | ValuesView | ItemsView):
            parts = each
        elif isinstance(each, Namespace) and depth:
            # Its attributes may change after this count.
            raise SecurityError("it puts a namespace into a value")
        else:
            continue
        if depth == _DEPTH:
            raise SecurityError("it nests values too deeply")
        for part in parts:
            if type(part) is str or type(part) is int:  # most of what there is
                visits += 1
                total += sys.getsizeof(part)
            else:
                stack.append((part, depth + 1))
    return total, visits


def check_product(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Check the size of `left * right`, `left ** right` or `left % right` before it is made.

    Raises:
        SecurityError: It would be too large.
    """
    if operator == "*":
        for one, times in ((left, right), (right, left)):
            if isinstance(one, str | bytes | list | tuple) and isinstance(times, int):
                budget.room((sys.getsizeof(one) - sys.getsizeof(one[:0])) * max(times, 0))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * right > 8 * _INTEGER_BYTES:
            raise SecurityError("it makes too large a number")
    elif operator == "%" and isinstance(left, str | bytes):
        _format(budget, (left, right), {})


def _size(value: Any) -> int:
    """Return a value's own bytes."""
    known = isinstance(value, str | bytes | int | list | tuple | dict)
    size = sys.getsizeof(value) if known else 64
    if isinstance(value, int) and size > _INTEGER_BYTES:
        raise SecurityError("it makes too large a number")
    return size


def _numbers(args: _Arguments, named: Mapping[str, Any]) -> list[int]:
    return [abs(each) for each in (*args[1:], *named.values()) if isinstance(each, int)]


def _padded(budget: Budget, args: _Arguments, named: Mapping[str, Any]) -> _Arguments:
    """Estimate a text padded to a width, or cut into a number of parts."""
    if max(_numbers(args, named), default=0) > _WIDE:
        raise SecurityError("it pads a text too widely")
    return args


def _rounded(budget: Budget, args: _Arguments, named: Mapping[str, Any]) -> _Arguments:
    if max(_numbers(args, named), default=0) > _PLACES:
        raise SecurityError("it rounds to too many places")
    return args


def _indented(budget: Budget, args: _Arguments, named: Mapping[str, Any]) -> _Arguments:
    """Estimate a text with something put before every line, or in place of every tab."""
    text = str(args[0])
    words = [len(each) for each in (*args[1:], *named.values()) if isinstance(each, str)]
    widest = max([*_numbers(args, named), *words, 8])
    places = len(text.splitlines()) + text.count("\t") + 1
    budget.room(_CHARACTER * (len(text) + places * widest))
    return args


def _replaced(budget: Budget, args: _Arguments, named: Mapping[str, Any]) -> _Arguments:
    """Estimate a text in which all occurrences of a text are replaced."""
    text, *others = args
    old, new = (*others[:2], named.get("old", ""), named.get("new", ""))[:2]
    found = len(text) + 1 if not old else str(text).count(str(old))
    budget.room(_CHARACTER * (len(str(text)) + found * len(str(new))))
    return args


def _joined(budget: Budget, args: _Arguments, named: Mapping[str, Any]) -> _Arguments:
    """Estimate a filter's join, of values with a separator."""
    values, *others = args
    parts = budget.made(list(values))
    separators = [each for each in (*others, *named.values()) if isinstance(each, str)]
    budget.room(_CHARACTER * len(parts) * sum(map(len, separators)))
    return (parts, *others)


def _join(budget: Budget, args: _Arguments, named: Mapping[str, Any]) -> _Arguments:
    """Estimate a separator's join, of texts."""
    separator, *values = args
    return (separator, *(_joined(budget, (each, str(separator)), {})[0] for each in values))


def _format(budget: Budget, args: _Arguments, named: Mapping[str, Any]) -> _Arguments:
    """Estimate a format, in the style of `%` or of `str.format`."""
    given = args[0] if isinstance(args[0], str) else str(args[0])
    if len(given) > _FORMAT:
        raise SecurityError("it formats with too long a text")
    widths = 0
    for match in _SPECS.finditer(given):
        widths += sum(
            int(digits) for digits in _DIGITS.findall("".join(filter(None, match.groups())))
        )
        if _FROM_VALUE.search(match.group()):
            raise SecurityError("it takes the width of a text from a value")
    if re.search(r"\{[^{}]*\{", given):
        raise SecurityError("it takes the width of a text from a value")
    shown = sum(weigh(each, budget.largest)[0] for each in (*args[1:], *named.values()))
    fields = given.count("%") + given.count("{")
    budget.room(_CHARACTER * (len(given) + widths + fields * shown))
    return args


def _refused(budget: Budget, args: _Arguments, named: Mapping[str, Any]) -> _Arguments:
    raise SecurityError("it uses a method that is not supported here")


METHODS: Mapping[str, _Estimate] = {
    "center": _padded,
    "decode": _refused,
    "encode": _refused,
    "expandtabs": _indented,
    "format": _format,
    "format_map": _format,
    "join": _join,
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "striptags": _refused,
    "to_bytes": _refused,
    "translate": _refused,
    "zfill": _padded,
}
"""Estimates for methods of texts and numbers: from (object, *arguments) to what to call with."""

FILTERS: Mapping[str, _Estimate] = {
    "batch": _padded,
    "center": _padded,
    "format": _format,
    "indent": _indented,
    "join": _joined,
    "replace": _replaced,
    "round": _rounded,
    "slice": _padded,
}
"""Estimates for filters: from (value, *arguments) to what to call with."""
