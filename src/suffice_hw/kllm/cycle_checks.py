"""Checks of KLLM's units cycle by cycle: against the closed formulas, and with a model's codes."""

from __future__ import annotations

import dataclasses

import numpy as np

from suffice_hw.checks import Check, within
from suffice_hw.kllm import cycles
from suffice_hw.kllm.codes import RealCodes, mean, step, uniform
from suffice_hw.kllm.design import Design

SIZE = 4096
LENGTH = 2048  # of the step with a model's codes
DERIVED = "derived"


def _against(what: str, closed: float, found: int, most: float, why: str = "") -> Check:
    holds = within(found, closed, most)
    shown = f"{closed:.0f} +- {100 * most:g} %"
    return Check("kllm cycle by cycle", what, shown, f"{found}", holds, DERIVED, why)


def formulas() -> list[Check]:
    """Products, outliers and clustering cycle by cycle, against the closed formulas."""
    design, found = Design.load(), []
    for bits in (4, 3):
        own = dataclasses.replace(design, activation_bits=bits)
        for inputs in (SIZE, 11008):
            bins = [1 << (bits + own.weight_bits)] * (SIZE // own.lanes)
            closed = own.product_cycles(SIZE, inputs) + own.fill_cycles
            what = f"A{bits}: {SIZE} x {inputs} product with its first wave (cycles)"
            ours = cycles.product(own, inputs, bins, own.outliers(inputs))
            found.append(_against(what, closed, ours, 0.0125))
    skipping = dataclasses.replace(design, skip_empty_bins=True)
    for inputs in (128, SIZE):
        bins = uniform(inputs, skipping.lanes, SIZE // skipping.lanes, 8)
        closed = skipping.product_cycles(SIZE, inputs) + skipping.fill_cycles
        what = f"A4: {SIZE} x {inputs} product of equally likely codes, without empty bins (cycles)"
        ours = cycles.product(skipping, inputs, bins, skipping.outliers(inputs))
        found.append(_against(what, closed, ours, 0.05))
    for inputs in (SIZE, 11008):
        what = f"outliers of {inputs} (cycles)"
        why = "the formula pops as many from the last, shorter part of a vector as from a whole one"
        closed = design.orizuru_cycles(inputs)
        found.append(_against(what, closed, cycles.found(design, inputs), 0.001, why))
    return [*found, *_units(design)]


def _units(design: Design) -> list[Check]:
    """The MACs with their tree, and the clustering unit: results and cycles."""
    random = np.random.default_rng(3)
    terms, counts = random.normal(size=256), random.integers(0, 3, 256)
    total, used = cycles.summed(terms, counts, design.macs)
    waves, levels = -(-int((counts > 0).sum()) // design.macs), cycles.tree_levels(design.macs)
    right = abs(total - float(terms @ counts)) < 1e-9 and used == waves + levels
    what = f"sum of {(counts > 0).sum()} bins of 256: cycles, the tree's {levels} levels included"
    group = "kllm cycle by cycle"
    found = [Check(group, what, f"{waves + levels}", f"{used}", right, DERIVED)]
    values, centroids = random.normal(size=SIZE), np.sort(random.normal(size=16))
    codes, used = cycles.clustered(values, centroids, design.cluster_inputs)
    nearest = np.abs(values[:, None] - centroids).argmin(1)
    closed = SIZE // design.cluster_inputs + design.activation_bits
    what = f"clustering of {SIZE} values: cycles, one stage a bit"
    right = bool((codes == nearest).all()) and used == closed
    return [*found, Check(group, what, f"{closed}", f"{used}", right, DERIVED)]


def real_codes() -> list[Check]:
    """Bins, outliers and scores of a real model, next to codes that are all equally likely."""
    codes, group = RealCodes.load(), "kllm real codes"
    design = dataclasses.replace(Design.load(), skip_empty_bins=True)
    found = []
    for kind in codes.matrices:
        most, ours = design.bins(kind["inputs"]), mean(kind["columns"])
        what = f"{codes.model}, {kind['name']}: filled bins of 256 with {kind['inputs']} inputs"
        uneven = ours <= most  # no distribution fills more than the even one
        found.append(Check(group, what, f"at most {most:.1f}", f"{ours:.1f}", uneven, DERIVED))
    for each in codes.thresholds:
        counts = each["outliers"]
        nominal = design.outlier_share * each["inputs"]
        shown = f"{mean(counts):.1f}, up to {max(value for value, _ in counts)}"
        what = f"{codes.model}: outliers of {each['inputs']} inputs by thresholds (KLLM-S)"
        holds = within(mean(counts), nominal, 0.25)
        why = "thresholds of some tokens do not fit others, as the paper's Fig. 2 says"
        found.append(Check(group, what, f"{nominal:.1f}", shown, holds, "KLLM, II-A2", why))
    what = f"{codes.model}: scores that are counted, the others being 0 of 255 (%)"
    share = 100 * codes.scores_counted
    found.append(Check(group, what, "at most 100", f"{share:.1f}", share <= 100, DERIVED))
    for skip in (False, True):
        own = dataclasses.replace(design, skip_empty_bins=skip)
        even, real = (step(own, codes, LENGTH, real) for real in (False, True))
        bins = "without" if skip else "with"
        for name in ("products", "attention"):
            what = f"{codes.model}, {name} of a step at {LENGTH}, {bins} empty bins (cycles)"
            holds = real[name] <= even[name]
            shown = f"at most {even[name]:.0f}"
            found.append(Check(group, what, shown, f"{real[name]:.0f}", holds, DERIVED))
    what = f"{codes.model}: clustering, of the cycles of a step at {LENGTH} (%)"
    share = 100 * even["clustering"] / sum(even.values())
    found.append(Check(group, what, "at most 5", f"{share:.2f}", share <= 5, DERIVED))
    return found


GROUPS = [formulas, real_codes]
