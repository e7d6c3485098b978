"""Fixtures of tests with techniques from outside."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import outside as package
from suffice.attention import ATTENTIONS, SOFTMAXES
from suffice.cache import GROWTHS
from suffice.outside import Outside
from suffice.policy import POLICIES
from suffice.speculate import SPECULATORS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package.write(tmp_path_factory.mktemp("outside"))


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in the folder, whose modules are then found, as if nothing of it had been loaded."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for table in (ATTENTIONS, SOFTMAXES, POLICIES, GROWTHS, SPECULATORS):
        assert table.outside is not None
        own = table.outside
        seam = own.group.removeprefix("suffice.")
        fresh = Outside(own.kind, seam, own.protocol, own.needs)
        monkeypatch.setattr(table, "outside", fresh)
    yield
    for name in ("my_rule", "parts", *package.MODULES):
        sys.modules.pop(name, None)


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the folder is installed."""
    monkeypatch.syspath_prepend(str(folder))
