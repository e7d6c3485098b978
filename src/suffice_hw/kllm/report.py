"""Decoding on KLLM: the files of a run, with baselines and the sweeps of the figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from suffice.errors import InputError
from suffice_hw import runs
from suffice_hw.kllm.baselines import Baselines
from suffice_hw.kllm.design import Design, Shape, lengths
from suffice_hw.kllm.energy import Energies, step_counts, step_pj
from suffice_hw.runs import Row

SCHEMA = "suffice-kllm/1"
FIELDS = {
    "model": "text",
    "precision": "text",
    "tokens": "positive",
    "batch": "positive",
    "ms_per_step": "positive",
    "tokens_per_second": "positive",
    "joules_per_token": "positive",
    "outliers_share": "number",
    "attention_share": "number",
    "hbm_energy_share": "number",
}
FILES = (
    "summary.json",
    "layers.csv",
    "activity.csv",
    "energy.csv",
    "baselines.csv",
    "sweeps.csv",
    "provenance.json",
)
BATCHES = (1, 2, 4, 8, 16, 32)
OUTLIER_SHARES = (0.005, 0.01, 0.02, 0.05, 0.1)  # Fig. 10(a)
LONGEST = 131072
Means = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Run:
    """Decoding `tokens` output tokens of `batch` sequences at once."""

    design: Design
    shape: Shape
    tokens: int = 2048
    batch: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= LONGEST:
            raise InputError(f"tokens={self.tokens}: must be in [1, {LONGEST}]")
        if not 1 <= self.batch <= 1024:
            raise InputError(f"batch={self.batch}: must be in [1, 1024]")
        held, room = self._held_bytes(self.batch), self.design.part.size_bytes
        if held > room:
            raise InputError(
                f"{self.shape.name}, tokens={self.tokens}, batch={self.batch}: "
                f"takes {held / 2**30:.1f} GiB of weights, keys and values: must be at most "
                f"{room / 2**30:.1f}, the size of {self.design.memory}"
            )

    def _held_bytes(self, batch: int) -> float:
        return self.design.held_bytes(self.shape, self.tokens, batch)

    def mean(self, design: Design | None = None, batch: int | None = None) -> tuple[float, float]:
        """Return mean milliseconds and joules of a step, with another design or batch if given."""
        design, batch = design or self.design, batch or self.batch
        ms = design.token_ms(self.shape, self.tokens, batch)
        spent = [sum(step_pj(design, self.shape, n, batch).values()) for n in lengths(self.tokens)]
        return ms, sum(spent) / len(spent) / 1e12

    def summary(self) -> Row:
        """Return the main figures; energies are per token."""
        ms, joules = self.mean()
        cycles = self._means(Design.step_cycles)
        pj = self._means(step_pj)
        return {
            "schema": SCHEMA,
            "model": self.shape.name,
            "precision": f"W{self.design.weight_bits}A{self.design.activation_bits}",
            "tokens": self.tokens,
            "batch": self.batch,
            "ms_per_step": ms,
            "tokens_per_second": self.batch / ms * 1e3,
            "joules_per_token": joules / self.batch,
            "outliers_share": cycles["outliers"] / sum(cycles.values()),
            "attention_share": cycles["attention"] / sum(cycles.values()),
            "hbm_energy_share": pj["hbm"] / sum(pj.values()),
        }

    def _means(self, of: Callable[[Design, Shape, int, int], dict[str, float]]) -> Means:
        found = [of(self.design, self.shape, n, self.batch) for n in lengths(self.tokens)]
        return {name: sum(each[name] for each in found) / len(found) for name in found[0]}

    def layers(self) -> list[Row]:
        """Return the cycles of a step by layer; the last row is the output head."""
        cycles = self._means(Design.step_cycles)
        head = cycles.pop("head")
        count = self.shape.layers
        own = {name: each / count for name, each in cycles.items()}
        rows: list[Row] = [{"layer": i, **own, "head": 0.0} for i in range(count)]
        return [*rows, {"layer": count, **dict.fromkeys(own, 0.0), "head": head}]

    def activity(self) -> list[Row]:
        """Return the operation counts of each component in a step."""
        return [{"component": k, "count": round(v)} for k, v in self._means(step_counts).items()]

    def energy(self) -> list[Row]:
        """Return picojoules of a step by component."""
        return [{"component": name, "pj": spent} for name, spent in self._means(step_pj).items()]

    def baselines(self) -> list[Row]:
        """Return a row per baseline: its step, and KLLM's speed-up and energy saving.

        Published ratios are means over models at batch 1 and 2048 tokens. For other runs they do
        not apply and are left empty.
        """
        table = Baselines.load()
        design = self.design
        published: dict[str, dict[str, float]] = {}
        if (self.batch, self.tokens, design.weight_bits) == (1, 2048, 4):
            published = table.published.get(f"a{design.activation_bits}", {})
        ms, joules = self.mean()
        rows = []
        for name, roofline in table.rooflines.items():
            theirs_ms, theirs_joules = roofline.mean(self.shape, self.tokens, self.batch)
            rows.append(
                {
                    "baseline": name,
                    "kind": roofline.kind,
                    "ms_per_step": theirs_ms,
                    "joules_per_token": theirs_joules / self.batch,
                    "speed": theirs_ms / ms,
                    "published_speed": published.get("speed", {}).get(name, ""),
                    "energy": theirs_joules / joules,
                    "published_energy": published.get("energy", {}).get(name, ""),
                }
            )
        return rows

    def sweeps(self) -> list[Row]:
        """Return throughput and energy by batch (Fig. 9) and by outliers (Fig. 10a).

        Batches that do not fit the memory are skipped.
        """
        designs = {
            f"A{bits}": dataclasses.replace(self.design, activation_bits=bits) for bits in (4, 3)
        }
        rows: list[Row] = []

        def row(sweep: str, value: float, name: str, ms: float, joules: float, batch: int) -> None:
            speed = batch / ms * 1e3
            own = {"tokens_per_second": speed, "joules_per_token": joules / batch}
            rows.append({"sweep": sweep, "value": value, "design": name, **own})

        room = self.design.part.size_bytes
        for batch in (each for each in BATCHES if self._held_bytes(each) <= room):
            for name, design in designs.items():
                row("batch", batch, name, *self.mean(design, batch), batch)
            for name, roofline in Baselines.load().rooflines.items():
                row("batch", batch, name, *roofline.mean(self.shape, self.tokens, batch), batch)
        for share in OUTLIER_SHARES:
            for name, design in designs.items():
                for online in (True, False):
                    changed = dataclasses.replace(
                        design, outlier_share=share, online_outliers=online
                    )
                    kind = name if online else f"S-{name}"
                    row("outliers", share, kind, *self.mean(changed, 1), 1)
        return rows

    def provenance(self) -> Row:
        """Return all settings that determine the figures, with their hash."""
        return runs.provenance(
            SCHEMA,
            {
                "design": self.design,
                "memory": self.design.part,
                "energies": Energies.load(),
                "calibrated_on": Design.load(),
                "model": self.shape,
                "tokens": self.tokens,
                "batch": self.batch,
                "baselines": dataclasses.asdict(Baselines.load()),
            },
            not_counted="writes of new keys and values; refreshes and other losses of the memory, "
            "except memory_efficiency; baselines' buffers and leakage",
        )

    def write(self, folder: Path) -> None:
        """Write all files; an interrupted write leaves no run.

        Raises:
            InputError: The folder cannot be written to.
        """
        made = (
            self.summary(),
            self.layers(),
            self.activity(),
            self.energy(),
            self.baselines(),
            self.sweeps(),
            self.provenance(),
        )
        runs.write(folder, dict(zip(FILES, made, strict=True)))
