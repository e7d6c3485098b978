"""Engines of benchmarks in this process, where `benchmarks.peers.client.Worker` starts one."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


class Inside:
    """An engine that is built and asked in this process."""

    def __init__(self, python: Path, module: str, options: dict[str, Any], *_: object) -> None:
        self._engine = self.built(module, options)
        self.about = self._engine.about()

    def built(self, module: str, options: dict[str, Any]) -> Any:
        return importlib.import_module(module).build(options)

    def ask(self, do: str, **arguments: Any) -> Any:
        return getattr(self._engine, do)(**arguments)

    def close(self) -> None: ...
