"""What the scripts of this folder share: flags, the model, and storing the results."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import record, script, shaped_file
from suffice import native, pull
from suffice.errors import InputError

MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Plan:
    """The number of rounds, and of timed decode steps in each."""

    rounds: int
    steps: int

    def __post_init__(self) -> None:
        if min(self.rounds, self.steps) < 1:
            raise InputError(
                f"--rounds={self.rounds}, --steps={self.steps}: both must be at least 1"
            )


@dataclass(frozen=True)
class Script:
    """A script that measures a model in some settings.

    `measure(model, setting, plan)` returns the figures of a setting, `table(data)` the page of all;
    `facts` are added to the data.
    """

    name: str
    about: str | None
    settings: Iterable[str]
    plan: Plan
    measure: Callable[[Path, str, Plan], Any]
    table: Callable[[dict[str, Any]], str]
    results: Path
    facts: dict[str, Any]

    def main(self) -> int:
        """Measure, print the table and store it."""
        parser = argparse.ArgumentParser(description=(self.about or "").splitlines()[0])
        names = list(self.settings)
        parser.add_argument("--settings", nargs="+", choices=names, default=names)
        parser.add_argument("--rounds", type=int, default=self.plan.rounds)
        parser.add_argument(
            "--steps", type=int, default=self.plan.steps, help="decode steps of a round"
        )
        parser.add_argument("--quick", action="store_true", help="a tiny model, results in build/")
        parser.add_argument("--output", type=Path, help="folder for the results")
        flags = parser.parse_args()
        if flags.quick:
            flags.rounds, flags.steps = 2, 4
        return script.printed(self.name, lambda: self._run(flags))

    def _run(self, flags: argparse.Namespace) -> str:
        plan = Plan(flags.rounds, flags.steps)
        folder = flags.output or self.results
        if flags.quick:
            folder = flags.output or record.BUILD / f"{self.name}-quick"
            tiny = record.BUILD / "shaped" / "tiny.gguf"
            model = shaped_file.write(tiny, shaped_file.TINY, "Q8_0")
        else:
            model = pull.pull(MODEL)
        data = record.facts() | {
            "model": model.name,
            "threads": native.cores(),
            "quick": flags.quick,
            "plan": asdict(plan),
            "settings": {name: self.measure(model, name, plan) for name in flags.settings},
        }
        data |= self.facts
        text = self.table(data)
        if flags.quick:
            text = f"**A quick run of a tiny model: no figure means anything.**\n\n{text}"
        record.write(folder, self.name, data, text)
        return text
