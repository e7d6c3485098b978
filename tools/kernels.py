"""List what each part of the kernels costs: instances of functions, bytes of code, compilation.

Each part is compiled again by the command of the last build, one after the other. `--functions 10`
adds the ten largest functions of each, with their number of instances. A build must exist: `make
build` first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
OBJECT = re.compile(r"kernels_(\w+)\.dir/csrc/kernels/parts/(\w+)\.cpp\.o$")
CODE = frozenset("tTwW")


@dataclass
class Part:
    """A part of a set: the processor's seconds and MiB of its compilation, and its functions.

    `functions`: the bytes of each instance, by the name without its template arguments.
    """

    isa: str
    name: str
    seconds: float = 0
    memory: float = 0
    functions: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def bytes(self) -> int:
        """Return the size of all code."""
        return sum(sum(sizes) for sizes in self.functions.values())

    def instances(self) -> int:
        """Return the number of functions, each instance of a template by itself."""
        return sum(map(len, self.functions.values()))


def commands(folder: Path) -> dict[tuple[str, str], list[str]]:
    """Return the command that compiles each part, by set and name; {} without a build."""
    ran = subprocess.run(["ninja", "-C", folder, "-t", "compdb"], capture_output=True, text=True)
    found = {}
    for each in json.loads(ran.stdout) if ran.returncode == 0 else []:
        if match := OBJECT.search(each["output"]):
            found[match[1], match[2]] = shlex.split(each["command"])
    return found


def base_name(function: str) -> str:
    """Return a demangled function's name without namespaces, template arguments and parameters."""
    flat, depth = "", 0
    for letter in function.replace("(anonymous namespace)", "").replace("operator()", "lambda"):
        depth += (letter in "<({") - (letter in ">)}")
        if depth == 0 and letter not in ">)}":
            flat += letter
        elif depth == 1 and letter in "({":
            break
    return flat.split("::")[-1].split()[-1] if flat.strip() else function


def measure(part: Part, command: list[str], folder: Path) -> Part:
    """Compile a part, and return it with what it costs."""
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "part.o"
        output = command.index("-o")
        plain = [*command[:output], "-o", str(made), *command[output + 2 :]]
        with subprocess.Popen(plain, cwd=folder) as child:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if status:
            sys.exit(f"{part.name} for {part.isa} does not compile")
        part.seconds, part.memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**10
        listed = subprocess.run(
            ["nm", "-S", "-C", "--defined-only", made], capture_output=True, text=True, check=True
        )
    for line in listed.stdout.splitlines():
        words = line.split(maxsplit=3)
        if len(words) == 4 and words[2] in CODE:
            part.functions[base_name(words[3])].append(int(words[1], 16))
    return part


def show(parts: list[Part], functions: int) -> None:
    """Print a line for each part, and for its `functions` largest functions."""
    print(f"{'set':8} {'part':10} {'instances':>9} {'KiB':>6} {'seconds':>7} {'MiB':>5}")
    for part in parts:
        print(
            f"{part.isa:8} {part.name:10} {part.instances():9} {part.bytes() / 2**10:6.0f} "
            f"{part.seconds:7.1f} {part.memory:5.0f}"
        )
        by_size = sorted(part.functions.items(), key=lambda each: -sum(each[1]))
        for name, sizes in by_size[:functions]:
            print(f"{'':12}{len(sizes):5} of {name}, {sum(sizes) / 2**10:.0f} KiB")
    instances, size = sum(p.instances() for p in parts), sum(p.bytes() for p in parts)
    seconds, memory = sum(p.seconds for p in parts), max(p.memory for p in parts)
    print(f"{'all':19} {instances:9} {size / 2**10:6.0f} {seconds:7.1f} {memory:5.0f}")


def newest_build() -> Path | None:
    """Return the folder that the last build was made in."""
    found = sorted(ROOT.glob("build/*/build.ninja"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent if found else None


def main() -> int:
    """Measure the parts that were asked for, and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, help="a folder with build.ninja; default: the newest")
    parser.add_argument("--set", action="append", help="only this set; may be repeated")
    parser.add_argument("--part", action="append", help="only this part; may be repeated")
    parser.add_argument("--functions", type=int, default=0, help="the largest functions of each")
    asked = parser.parse_args()
    folder = asked.build or newest_build()
    found = commands(folder) if folder else {}
    for option, index in (("set", 0), ("part", 1)):
        known = sorted({key[index] for key in found})
        for name in getattr(asked, option) or []:
            if name not in known:
                parser.error(
                    f"there is no {option} '{name}' in the build. Allowed: {', '.join(known)}"
                )
    if folder is None or not found:
        parser.error("there is no build to take commands from: make build")
    parts = []
    for (isa, name), command in sorted(found.items()):
        if isa in (asked.set or [isa]) and name in (asked.part or [name]):
            if sys.stderr.isatty():
                print(f"\r{isa} {name:24}", end="\r", file=sys.stderr)
            parts.append(measure(Part(isa, name), command, folder.absolute()))
    show(parts, asked.functions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
