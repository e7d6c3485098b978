"""Own counts against those of Prometheus's client."""

from __future__ import annotations

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from suffice.serve.processes.tally import Counter, Histogram

LABELS = {"model_name": "m"}
BOUNDS = (0.001, 0.5, 1.0, 20.0)


class Shown:
    """A collector of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]


def page(metric: Metric) -> str:
    registry = CollectorRegistry()
    registry.register(Shown(metric))  # type: ignore[arg-type]
    return generate_latest(registry).decode()


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if "_created" not in line]


@given(st.lists(st.sampled_from([0.0, 0.001, 0.0011, 0.5, 0.7, 1.0, 20.0, 21.0, 1e9])))
def test_a_histogram_has_the_lines_of_the_clients(values: list[float]) -> None:
    registry = CollectorRegistry()
    theirs = prometheus_client.Histogram("a:b", "B.", LABELS, buckets=BOUNDS, registry=registry)
    ours = Histogram(BOUNDS)
    for value in values:
        theirs.labels(**LABELS).observe(value)
        ours.observe(value)
    theirs.labels(**LABELS)  # it shows nothing before
    expected = generate_latest(registry).decode()
    assert lines(page(ours.family("a:b", "B.", LABELS))) == lines(expected)


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 1 << 40))))
def test_a_counter_has_the_lines_of_the_clients(steps: list[tuple[str, int]]) -> None:
    registry = CollectorRegistry()
    theirs = prometheus_client.Counter("a:b", "B.", [*LABELS, "what"], registry=registry)
    ours = Counter(["what"])
    for what, by in steps:
        theirs.labels(**LABELS, what=what).inc(by)
        ours.add(by, what)
    expected = generate_latest(registry).decode()
    assert lines(page(ours.family("a:b", "B.", LABELS))) == lines(expected)


def test_a_counter_without_labels_begins_at_0() -> None:
    assert 'a:b_total{model_name="m"} 0.0' in page(Counter().family("a:b", "B.", LABELS))
