"""Prints the engine's warnings as lines on standard error, each once."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from suffice.errors import SufficeWarning


@contextlib.contextmanager
def as_lines() -> Iterator[None]:
    """Print a `SufficeWarning` as `suffice: warning: ...`; other warnings are shown as usual."""
    seen: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", SufficeWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, SufficeWarning):
                usual(message, category, *place, **more)
            elif str(message) not in seen:
                seen.add(str(message))
                print(f"suffice: warning: {message}", file=sys.stderr)

        warnings.showwarning = show
        yield


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold warnings back until the end, so that no line falls into a text being printed."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", SufficeWarning)
        try:
            yield
        finally:
            waiting = list(found)
    for each in waiting:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
