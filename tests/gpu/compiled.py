"""Compile the kernels for GPUs that are not here, and print what each needs, one JSON line each.

Run as a process of its own, without Triton's interpreter: TARGET SIZE, a head's size.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from suffice.backends.triton.aet import always_read, learn_masses
from suffice.backends.triton.call import shape_of, unit_of
from suffice.backends.triton.codes import begin_sums, move_sums, score_units, sum_codes
from suffice.backends.triton.encode import encode, encode_fitted
from suffice.backends.triton.heavy_tiles import score_tiles, sum_heavy_tiles
from suffice.backends.triton.sketch import estimate, sketch_chunks
from suffice.backends.triton.stopping import AET, ART, read_until_stop
from suffice.backends.triton.tier_rows import (
    bound_units,
    estimate_units,
    score_heavy,
    sum_tiers,
    turn_queries,
)
from suffice.backends.triton.whole import join_units, sum_units

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
FLOATS = ("peaks", "totals", "sums", "peak_to", "total_to", "sum_to", "kepts")
FLOATS += ("bounds", "peak_run", "total_run", "sum_run", "probe_run", "top")
FLOATS += ("limits", "floors", "masses", "local_masses", "last_peaks", "last_totals")
INTS = ("table", "counts", "owner", "first", "length", "keys", "values", "shared", "steady_run")
INTS += ("known_before", "begins", "ends", "made", "lengths", "kept")
FLOATS += ("scores", "unit_peaks", "borders", "weights", "largest", "factors")
INTS += ("moves", "reads", "light_reads")
# Of `tiers`
FLOATS += ("channels", "means", "passed", "inverses", "steps", "of_means", "turned", "losses")
FLOATS += ("lost_means", "query_lengths", "tops", "used_weights", "more", "less", "lost", "exact")
FLOATS += ("value_scales", "residuals")
BYTES = ("codes", "key_codes", "value_codes", "errors", "key_errors", "value_errors")
HALVES = ("q", "k", "v", "x", "out", "scales", "lows", "shares", "key_scales", "key_shares")
NUMBERS = ("scale", "two")


def kernels(size: int) -> list[tuple[str, Any, dict[str, Any]]]:
    """Return the name, the kernel and the compile-time values of what is compiled."""
    part = shape_of(size, 4)
    paged = {"PAGE": 16, "LISTED": False}
    rows = {**unit_of(size, 4, 256), **paged}
    stops = {**unit_of(size, 4, 64), **paged, "MARKED": False, "FILTERS": False}
    tiles = {**part, "UNIT": 256, "TILE": 64, "PAGE": 16}
    half = {"D": size, "HALF": triton.next_power_of_2(size // 2)}
    of_aet = {**unit_of(size, 4, 16), "RULE": AET, "MARKED": True, "FILTERS": True}
    of_sets = {"MOST": 4, "LOCALS": 2, "LISTED": 8}
    turns = {"PART": size & -size, "STEPS": (size & -size).bit_length() - 1}
    bases = {**turns, "D": size, "DIM": part["DIM"], "PAGE": 16, "RUN": 256 // part["DIM"]}
    bases["num_warps"] = 8
    of_tiers = {name: x for name, x in tiles.items() if name != "PAGE"}
    summed = {"PAGE": 16, "LISTED": False, "SUMMED": True, "CODES": 16}
    return [
        ("exact", sum_units, rows),
        ("joined", join_units, {**part, "UNIT": 256, "LISTED": False}),
        ("art", read_until_stop, {**stops, "RULE": ART, "PROBE": 32}),
        ("aet", read_until_stop, {**stops, **of_aet, "PROBE": 32}),
        ("always", always_read, {**of_sets, "num_warps": 4}),
        ("learn", learn_masses, {**of_sets, "GROUP": 4, "ROWS": 16, "num_warps": 4}),
        ("scores", score_units, {**rows, "TILE": min(rows["TILE"], 32), "num_warps": 4}),
        ("moved", move_sums, {"D": size, "DIM": part["DIM"], "PAGE": 16, "num_warps": 4}),
        ("begun", begin_sums, {**part, "UNIT": 256, **summed}),
        ("coded", sum_codes, {**rows, **summed, "TAILED": True}),
        ("skip_softmax: keys", score_tiles, tiles),
        ("skip_softmax: values", sum_heavy_tiles, {**tiles, "TILES": 256, "num_warps": 4}),
        ("encode", encode, {**bases, "KEYS": True}),
        ("encode: fitted", encode_fitted, bases),
        ("tiers: queries", turn_queries, {**part, **turns, "FITTED": True, "BOUNDED": True}),
        ("tiers: bases", estimate_units, {**of_tiers, "HALF": half["HALF"], "FITTED": True}),
        ("tiers: bounds", bound_units, {**of_tiers, "FITTED": True}),
        ("tiers: heavy", score_heavy, {**stops, "BOUNDED": True}),
        ("tiers: sums", sum_tiers, {**rows, **turns}),
        ("sketch", sketch_chunks, {**half, "PAGE": 16, "num_warps": 4}),
        ("estimate", estimate, {**half, "GROUP": 4, "ROWS": 16, "BOUNDED": True, "num_warps": 4}),
    ]


def type_of(name: str, values: dict[str, Any]) -> str:
    """Return the type of a kernel's argument."""
    if name in values:
        return "constexpr"
    if name in FLOATS:
        return "*fp32"
    if name in INTS:
        return "*i32"
    if name in BYTES:
        return "*u8"
    if name in ("marks", "rounded", "heavy_blocks") or (name == "blocks" and values.get("MARKED")):
        return "*i8"
    if name == "own_sums":
        return "*fp64"
    if name == "blocks":
        return "*i32"
    return "fp32" if name in NUMBERS else "*bf16" if name in HALVES else "i32"


def spilled(made: Any, target: str) -> int:
    """Return how many bytes of registers are kept in memory, as the assembler says."""
    if target.startswith("gfx"):
        return sum(map(int, re.findall(r"\.vgpr_spill_count:\s+(\d+)", made.asm["amdgcn"])))
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    assembler = sorted(tools.glob("ptxas*"))[-1]  # the newest
    named = re.search(r"\.target (\w+)", made.asm["ptx"])
    assert named
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(made.asm["ptx"])
        command = [str(assembler), "-v", f"--gpu-name={named[1]}", str(source)]
        command += ["-o", str(source.with_suffix(".cubin"))]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill", said)))


def main(target: str, size: int) -> None:
    """Compile everything for a target and a size of heads."""
    for name, kernel, values in kernels(size):
        options = {"num_warps": values.pop("num_warps")}
        signature = {arg: type_of(arg, values) for arg in kernel.arg_names}
        own = [(key, value) for key, value in values.items() if key in signature]
        places = {(kernel.arg_names.index(key),): value for key, value in own}
        source = ASTSource(kernel, signature, places)
        made = triton.compile(source, target=TARGETS[target], options=options)
        found = {"kernel": name, "shared": made.metadata.shared, "spilled": spilled(made, target)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
