"""The files of a run: a summary, tables by layer, activity, energy, and provenance."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from suffice_hw import runs
from suffice_hw.cost.logic import SCROOGE, Technology
from suffice_hw.dram import energy
from suffice_hw.runs import Row
from suffice_hw.scrooge.design import Design, Shape
from suffice_hw.scrooge.simulate import Result

SCHEMA = "suffice-scrooge/1"
FIELDS = {
    "model": "text",
    "workload": "text",
    "key_share": "number",
    "value_share": "number",
    "perplexity_loss_percent": "number or nothing",
    "key_reduction": "positive",
    "value_reduction": "positive",
    "reduction": "positive",
    "reduction_with_waste": "positive",
    "speedup": "positive",
    "overlapped_speedup": "positive",
    "least_speedup": "positive",
    "scrooge_joules": "positive",
    "baseline_joules": "positive",
}
FILES = ("summary.json", "layers.csv", "activity.csv", "energy.csv", "provenance.json")


@dataclasses.dataclass(frozen=True)
class Run:
    """A result with its design, model and workload."""

    design: Design
    shape: Shape
    workload: str  # name of the workload, or of the trace's file
    source: Row  # parameters of the generator, or the trace's hash
    thresholds: tuple[float, float]
    tokens: int
    sampled_heads: int
    sampled_lengths: int
    result: Result
    perplexity_loss_percent: float | None = None  # measured elsewhere with these thresholds

    def summary(self) -> Row:
        """Return the main figures."""
        result = self.result
        spent = {row["component"]: row["pj"] for row in self.energy() if row["design"] == "scrooge"}
        base = [row["pj"] for row in self.energy() if row["design"] == "baseline"]
        return {
            "schema": SCHEMA,
            "model": self.shape.name,
            "workload": self.workload,
            "key_share": self.thresholds[0],
            "value_share": self.thresholds[1],
            "tokens": self.tokens,
            "perplexity_loss_percent": self.perplexity_loss_percent,
            "key_reduction": result.key_reduction,
            "value_reduction": result.value_reduction,
            "reduction": result.reduction,
            "reduction_with_waste": result.reduction_with_waste,
            "speedup": result.speedup,
            "overlapped_speedup": result.overlapped_speedup,
            "least_speedup": result.least_speedup,
            "scrooge_seconds": float(result.serial_cycles.sum()) / 1e9,
            "baseline_seconds": result.baseline_serial_cycles / 1e9,
            "baseline_bytes": result.baseline_bytes,
            "scrooge_joules": sum(spent.values()) / 1e12,
            "baseline_joules": sum(base) / 1e12,
        }

    def layers(self) -> list[Row]:
        """Return a row per layer."""
        result = self.result
        return [
            {
                "layer": layer,
                "keys_read": round(float(result.keys_read[layer])),
                "values_read": round(float(result.values_read[layer])),
                "rows_held": round(float(result.rows_held[layer])),
                "wasted_keys": round(float(result.wasted_keys[layer])),
                "cycles": round(float(result.serial_cycles[layer])),
            }
            for layer in range(self.shape.layers)
        ]

    def activity(self) -> list[Row]:
        """Return the operation counts of each component."""
        result, shape = self.result, self.shape
        group = shape.heads // shape.kv_heads
        read = float(result.keys_read.sum()), float(result.values_read.sum())
        held = float(result.rows_held.sum())
        rows = []
        for design, keys, values, memory, waves in (
            ("scrooge", *read, result.memory, float(result.waves.sum())),
            ("baseline", held, held, result.baseline_memory, 0.0),
        ):
            counts = {
                ("multiplier", "multiply-add"): (keys + values) * group * shape.head_size,
                ("adder tree", "token"): keys * group,
                ("exponent", "exponent"): keys * group,
                ("max and sum", "token"): keys * group if design == "scrooge" else 0.0,
                ("etu and vsu", "wave"): waves * group,
                ("softmax", "token"): keys * group,
                ("memory", "burst"): memory.reads,
                ("memory", "activation"): memory.activates,
                ("memory", "refresh"): memory.refreshes,
            }
            rows += [
                {"design": design, "component": component, "mode": mode, "count": round(count)}
                for (component, mode), count in counts.items()
            ]
        return rows

    def energy(self) -> list[Row]:
        """Return picojoules by component; idle units use leakage power only."""
        technology, buffer = Technology.load(), self.design.buffer()
        table, part = energy.load(self.design.energy_table), self.design.part()
        result, wave = self.result, self.design.wave(self.shape)
        busy = {
            (row["design"], row["component"], row["mode"]): row["count"] for row in self.activity()
        }
        rows: list[Row] = []
        for design, memory in (("scrooge", result.memory), ("baseline", result.baseline_memory)):

            def logic(unit: str, mode: str, scale: float = 1.0, design: str = design) -> float:
                spent = technology.gates(SCROOGE[unit]) * technology.fj_per_ge_cycle / 1e3
                return float(spent * busy[design, unit, mode] * scale)

            dram = table.energy(part, memory)
            accesses = 2 * memory.reads * part.burst_bytes * 8 / buffer.port_bits  # in and out
            spent = {
                "multiplier": logic("multiplier", "multiply-add"),
                "adder tree": logic("adder tree", "token", 1 / wave),
                "exponent": logic("exponent", "exponent"),
                "max and sum": logic("max and sum", "token", 1 / 15),  # 15 nodes handle 16 tokens
                "etu and vsu": logic("etu and vsu", "wave"),
                "softmax": logic("softmax", "token"),
                "buffer accesses": accesses * buffer.read_pj,
                "buffer leakage": buffer.leakage_mw * memory.ns,
                "dram activation": dram.activate_pj,
                "dram transfer": dram.transfer_pj,
                "dram refresh": dram.refresh_pj,
                "dram background": dram.background_pj,
            }
            rows += [{"design": design, "component": k, "pj": v} for k, v in spent.items()]
        return rows

    def provenance(self) -> Row:
        """Return all settings that determine the figures, with their hash."""
        return runs.provenance(
            SCHEMA,
            {
                "design": self.design,
                "memory": self.design.part(),
                "energy": energy.load(self.design.energy_table),
                "technology": Technology.load(),
                "model": self.shape,
                "source": self.source,
                "key_share": self.thresholds[0],
                "value_share": self.thresholds[1],
                "tokens": self.tokens,
                "sampled_heads": self.sampled_heads,
                "sampled_lengths": self.sampled_lengths,
            },
            not_counted="energy of the control; writes of new rows",
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
            self.provenance(),
        )
        runs.write(folder, dict(zip(FILES, made, strict=True)))
