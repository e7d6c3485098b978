"""Counts of requests and their times, cheap to add to, in Prometheus's form when it asks.

Prometheus's own counters take a lock each time, and a request that ends changes some forty of them.
Here the event loop's thread alone counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString


class Histogram:
    """Values, counted by bucket; a bucket holds those up to its bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, text: str, labels: dict[str, str]) -> Metric:
        """Return the metric."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        found = HistogramMetricFamily(name, text, labels=list(labels))
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        found.add_metric(list(labels.values()), buckets, self._sum)
        return found


class Counter:
    """Sums by the values of some labels; without labels, one sum that begins at 0."""

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self._labels = tuple(labels)
        self._sums: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, by: float, *values: str) -> None:
        """Add to the sum of these labels' values."""
        self._sums[values] = self._sums.get(values, 0.0) + by

    def family(self, name: str, text: str, labels: dict[str, str]) -> Metric:
        """Return the metric."""
        found = CounterMetricFamily(name, text, labels=[*labels, *self._labels])
        for values, value in self._sums.items():
            found.add_metric([*labels.values(), *values], value)
        return found


class _Count(Protocol):
    def family(self, name: str, text: str, labels: dict[str, str]) -> Metric: ...


def together(
    name: str, text: str, counts: Sequence[_Count], labels: Sequence[dict[str, str]]
) -> Metric:
    """Return one metric of several counts, each with its own values of the same labels."""
    families = [each.family(name, text, own) for each, own in zip(counts, labels, strict=True)]
    first = families[0]
    for other in families[1:]:
        first.samples += other.samples
    return first
