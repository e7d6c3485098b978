"""Estimate by LLVM's models of processors how much of a core's peak loops for ARM reach.

Takes the innermost loops that consist most of products out of the machine code of a release, and
gives them to `llvm-mca`. The peak is that of the loop's own instruction of products, as the same
model has it. Nothing is run: memory is taken to be in the first cache. What stands between loops,
as the scales of codes, is not in it. Usage, with binutils for ARM and LLVM 17 or later:

    python tools/arm_mca.py --objects FOLDER [--mca llvm-mca-19]

FOLDER: `QUICK=OFF tools/arm.sh` builds it as build/arm/quick-OFF.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

CORES = {"neon_dot": ("neoverse-n1", "apple-m1"), "neon_i8mm": ("neoverse-v1",)}


@dataclass(frozen=True)
class Loop:
    """What is measured: the loop of a part's functions that has the largest share of products."""

    name: str
    isa: str
    part: str
    function: str  # a regular expression
    product: str
    has: str = ""  # an instruction that is also in it


LOOPS = (
    Loop("bfloat16, many rows", "neon_dot", "products", r"linear", "fmla", "shl"),
    Loop("float32, many rows", "neon_dot", "products", r"linear", "fmla", "ldp"),
    Loop("int8 of a row's scale", "neon_dot", "products", r"linear", "sdot"),
    Loop("codes, 8-bit inputs", "neon_dot", "codes", r"add_found<.*LaneInputs<1>", "sdot"),
    Loop("codes, 16-bit inputs", "neon_dot", "codes", r"add_found<.*LaneInputs<2>", "sdot"),
    Loop("attention, scores", "neon_dot", "keys", r"score_unpacked", "fmla"),
    Loop("attention, values", "neon_dot", "values", r"add_unpacked", "fmla"),
    Loop("bfloat16, many rows", "neon_i8mm", "products", r"rounded_part", "bfmmla"),
    Loop("codes, 8-bit inputs", "neon_i8mm", "codes", r"add_found<.*MatrixInputs<1>", "usmmla"),
    Loop("codes, 16-bit inputs", "neon_i8mm", "codes", r"add_found<.*MatrixInputs<2>", "usmmla"),
    Loop("attention, scores", "neon_i8mm", "keys", r"score_unpacked", "bfdot"),
    Loop("attention, values", "neon_i8mm", "values", r"add_unpacked", "bfdot"),
)


Instruction = tuple[int, str, str]  # address, name, operands


def functions(code: Path) -> dict[str, list[Instruction]]:
    """Return the instructions of each function of an object file."""
    command = ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", "-C", str(code)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[Instruction]] = {}
    own: list[Instruction] = []
    for line in listing.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            own = found.setdefault(head[1], [])
        elif one := re.match(r"\s+([0-9a-f]+):\s+(\S+)\s*([^/]*)", line):
            own.append((int(one[1], 16), one[2], one[3].strip()))
    return found


def is_branch(name: str) -> bool:
    """Return whether an instruction may go on elsewhere."""
    return name == "b" or name.startswith(("b.", "cb", "tb"))


def innermost(code: list[Instruction]) -> list[list[Instruction]]:
    """Return the loops that have none in them."""
    places = {address: place for place, (address, _, _) in enumerate(code)}
    ends = []
    for place, (address, name, operands) in enumerate(code):
        to = re.search(r"([0-9a-f]+) <", operands)
        target = int(to[1], 16) if to else address + 1
        if is_branch(name) and target <= address and target in places:
            ends.append((places[target], place))
    inner = [
        (a, b) for a, b in ends if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in ends)
    ]
    return [code[a : b + 1] for a, b in inner]


def cycles(mca: str, core: str, lines: list[str]) -> float:
    """Return the cycles that a loop takes each time, by the model of a core."""
    features = "-mattr=+i8mm,+bf16,+dotprod"
    command = [mca, "-mtriple=aarch64", f"-mcpu={core}", features, "-iterations=100", "-noalias"]
    ran = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=True
    )
    return int(re.findall(r"Total Cycles:\s+(\d+)", ran.stdout)[0]) / 100


def measure(loop: Loop, objects: Path, mca: str) -> list[str]:
    """Return a row of the table for each core."""
    part = objects / f"CMakeFiles/kernels_{loop.isa}.dir/csrc/kernels/parts/{loop.part}.cpp.o"
    bodies = [
        body
        for name, code in functions(part).items()
        if re.search(loop.function, name)
        for body in innermost(code)
    ]
    bodies = [body for body in bodies if {name for _, name, _ in body} & {loop.has} or not loop.has]
    counts = [Counter(name for _, name, _ in body)[loop.product] for body in bodies]
    shares = [count / len(body) for count, body in zip(counts, bodies, strict=True)]
    if not bodies:
        return [f"| {loop.name} | {loop.isa} | no such loop | | | |"]
    best = shares.index(max(shares))
    lines = []
    for _, name, operands in bodies[best]:
        plain = re.sub(r"\s*<.*", "", operands)
        lines.append(f"{name} {re.sub('[0-9a-f]+$', '#16', plain) if is_branch(name) else plain}")
    rows = []
    for core in CORES[loop.isa]:
        products = [f"{loop.product} v{i}.4s, " + SOURCES[loop.product] for i in range(24)]
        peak = 24 / cycles(mca, core, products)
        rate = counts[best] / cycles(mca, core, lines)
        rows.append(
            f"| {loop.name} | {loop.isa} | {core} | {counts[best]} of {len(lines)} {loop.product} "
            f"| {peak:.1f} | {rate / peak:.2f} |"
        )
    return rows


SOURCES = {
    "fmla": "v30.4s, v31.s[0]",
    "sdot": "v30.16b, v31.4b[0]",
    "usdot": "v30.16b, v31.4b[0]",
    "bfdot": "v30.8h, v31.2h[0]",
    "bfmmla": "v30.8h, v31.8h",
    "usmmla": "v30.16b, v31.16b",
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=Path, required=True)
    parser.add_argument("--mca", default="llvm-mca-19")
    given = parser.parse_args()
    print("| loop | set | core | products of instructions | products a cycle at best | of that |")
    print("|---|---|---|---|---:|---:|")
    for loop in LOOPS:
        print("\n".join(measure(loop, given.objects, given.mca)))


if __name__ == "__main__":
    main()
