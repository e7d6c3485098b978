"""docs/grafana.json asks for metrics that metrics.py has."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import Served

BOARD = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


def queries() -> list[str]:
    own = [variable.get("query", "") for variable in BOARD["templating"]["list"]]
    return own + [target["expr"] for panel in PANELS for target in panel["targets"]]


def names(texts: list[str], prefix: str) -> set[str]:
    """Return the metrics that queries ask for."""
    found: set[str] = set()
    for text in texts:
        found |= set(re.findall(rf"{prefix}:\w+", text.replace("${prefix}", prefix)))
    return found


def offered(server: Served) -> set[str]:
    """Return the metrics that the server has, also those that have not been counted yet."""
    page = server.client.get("/metrics").text
    kinds = re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE)
    return {name + suffix for name, kind in kinds for suffix in SUFFIXES[kind]}


@pytest.mark.parametrize("prefix", ["suffice", "vllm"])
def test_every_metric_is_there(serving: Callable[..., Any], prefix: str) -> None:
    with serving(metrics_prefix=prefix) as server:
        asked = names(queries(), prefix)
        assert len(asked) > 25
        assert asked - offered(server) == set()


def test_every_query_names_a_metric_and_labels_that_there_are(server: Served) -> None:
    assert server.chat().status_code == 200
    assert server.chat(temperature=-1).status_code == 400
    page = server.client.get("/metrics").text
    labels = set(re.findall(r'[{,](\w+)="', page))
    for query in queries():
        used = re.findall(r"by \((\w+)\)", query) + re.findall(r"[{ ](\w+)=~?\"", query)
        assert set(used) <= labels, query
    assert all(
        names([target["expr"]], "suffice") for panel in PANELS for target in panel["targets"]
    )


def boxes() -> Iterator[set[tuple[int, int]]]:
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        columns, rows = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        yield set(itertools.product(columns, rows))


def test_panels_do_not_overlap() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    for one, other in itertools.combinations(boxes(), 2):
        assert not one & other
