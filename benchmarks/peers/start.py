"""Measure starts: seconds and memory up to a first token, imports, and sizes of environments.

    python -m benchmarks.peers.start                       everything; makes environments (minutes)
    python -m benchmarks.peers.start --only start imports  some parts; the other results stay
    python -m benchmarks.peers.start --quick               a trial run of a tiny model

Parts: `start`, a first token by suffice and by llama-cpp-python of the same GGUF file, with the
model's chat template and as llama-cpp-python has it, without; `imports`; `size`, of two fresh
environments; `file`, the first token of GGUF files of a 7B shape with random codes, of a prompt of
one token, over the time of reading the file: of a start that packs weights, of a second one that
finds them packed, and of llama-cpp-python's. Every figure is of a fresh process with its files in
the page cache. Environments are made below build/peers/, those given are used as they are. The big
files need some disk; they are deleted after use unless `--keep` is given. The results go to
benchmarks/peers/results/start.json and start.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import record, script, shaped_file
from benchmarks.peers import environments, fresh
from benchmarks.peers.client import EngineError
from benchmarks.peers.install import InstallError
from benchmarks.peers.start_report import IMPORTS, PEER, RAW, report
from suffice import native, pull
from suffice.checkpoints import packed_store
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError, unknown
from suffice_hw.kllm.design import Shape

MODEL = "smollm2-135m"
NAME = "start"
FILES = record.BUILD / "shaped"
QUICK = record.BUILD / "start-quick"
PARTS = ("start", "imports", "size", "file")
WEIGHTS = {"default": (), "int8": ("--quant", "int8", "-ctk", "int8")}
PACKED = {"default": 2.0, "int8": 1.1}  # bytes of a weight, at most
SPARE_BYTES = 1 << 30  # of memory, for others
READ_BYTES = 512 << 20  # beyond any cache level
KEPT_SECONDS = 600  # that a slow disk may need for packed weights
LLAMA = Path(__file__).with_name("engines") / "llamacpp_start.py"
CODE = {"suffice": "from suffice import LLM", "numpy": "import numpy", "python": "pass"}


@dataclass(frozen=True)
class Plan:
    """What to run: Python of each engine's environment, the model, and how often."""

    own: Path
    peer: Path | None
    given: tuple[str, ...]  # engines whose environment existed
    model: Path
    threads: int
    rounds: int

    def answer(self, model: Path, weights: str, prompt: str, raw: bool = False) -> list[str]:
        """Return the command that makes one token with suffice; `raw`: without a chat template."""
        return [
            *(str(self.own.with_name("suffice")), "run", prompt, *["--raw"] * raw, "-n", "1"),
            *("-m", str(model), "-t", str(self.threads), *WEIGHTS[weights]),
        ]

    def peers_answer(self, model: Path, prompt: str) -> list[str]:
        """Return the command that makes one token with llama-cpp-python."""
        context = open_checkpoint(model).config.max_positions  # suffice's, unless asked
        return [str(self.peer), str(LLAMA), str(model), str(self.threads), str(context), prompt]


def first_tokens(plan: Plan) -> dict[str, Any]:
    """Measure a first token by suffice with each kind of weights and by llama-cpp-python.

    llama-cpp-python has no chat template around the prompt, and in one case suffice has none.

    Raises:
        EngineError: An engine fails.
        InputError: The model cannot be read.
    """
    commands = {name: plan.answer(plan.model, name, "Hi") for name in WEIGHTS}
    commands[RAW] = plan.answer(plan.model, "default", "Hi", raw=True)
    if plan.peer is not None:
        commands[PEER] = plan.peers_answer(plan.model, "Hi")
    return {"cases": fresh.in_turn(commands, plan.rounds, partial(fresh.read_seconds, plan.model))}


def imports(plan: Plan) -> dict[str, Any]:
    """Measure imports, each by a new interpreter."""
    commands = {name: [str(plan.own), "-c", CODE[name]] for name in IMPORTS}
    return {"cases": fresh.in_turn(commands, plan.rounds, lambda: None)}


def sizes(plan: Plan) -> dict[str, Any]:
    """Measure the size of each environment."""
    found = {"suffice": plan.own} | ({} if plan.peer is None else {PEER: plan.peer})
    return {
        "given": list(plan.given),
        "bytes": {name: environments.size_bytes(python) for name, python in found.items()},
    }


def shaped_files(plan: Plan, shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a first token of files of a shape, one file after the other.

    A file that cannot be written or run has the reason in its place.
    """
    cases: dict[str, Any] = {}
    for kind in options.kinds:
        path = FILES / f"{shape.name}-{kind}.gguf"
        for weights in options.weights:
            try:
                if not path.exists():
                    shaped_file.write(path, shape, kind)
                found = file_rounds(plan, path, shape, weights)
            except (EngineError, InputError) as error:
                found = {"error": str(error)}
            about = {"shape": shape.name, "kind": kind, "weights": weights}
            cases[f"{kind} {weights}"] = about | found
        if not options.keep:
            path.unlink(missing_ok=True)
    return {"cases": cases}


def file_rounds(plan: Plan, path: Path, shape: Shape, weights: str) -> dict[str, Any]:
    """Measure the reading of a file and a first token of it, in turn.

    Raises:
        InputError: File and weights do not fit into memory together.
        EngineError: The engine fails.
    """
    check_memory(path.stat().st_size, shape, weights, available_bytes())
    command = plan.answer(path, weights, shaped_file.PROMPT, raw=True)
    packed = packed_bytes(plan, path, weights)
    commands = {"run": [*command, "--no-packed"]}
    if kept(path, packed):
        commands["again"] = command
    if plan.peer is not None:
        commands["peer"] = plan.peers_answer(path, shaped_file.PROMPT)
    rounds = []
    for number in range(plan.rounds + 1):
        fresh.read_seconds(path)  # into the page cache
        turn: dict[str, Any] = {
            "read_seconds": fresh.read_seconds(path),
            "roof": native.read_bandwidth(READ_BYTES, plan.threads),
        }
        turn |= {name: fresh.started(each) for name, each in commands.items()}
        if number:
            rounds.append(turn)
    for each in packed_store.files_of(path):
        each.unlink()
    return {"file_bytes": path.stat().st_size, "packed_bytes": packed, "rounds": rounds}


def kept(path: Path, size: int) -> bool:
    """Wait until packed weights of `size` bytes, of an earlier start, are whole; are there any?

    Raises:
        EngineError: They are not in time.
    """
    if size < packed_store.LEAST:
        return False
    last = time.monotonic() + KEPT_SECONDS
    while not packed_store.files_of(path):
        if time.monotonic() > last:
            raise EngineError(f"no packed weights were kept within {KEPT_SECONDS} s")
        time.sleep(1)
    return True


def packed_bytes(plan: Plan, path: Path, weights: str) -> int:
    """Return the bytes of the weights in the engine's memory, as `suffice bench` says."""
    command = [str(plan.own.with_name("suffice")), "bench", "-m", str(path)]
    command += ["-p", "0", "-n", "1", "-r", "1", "-o", "json", *WEIGHTS[weights]]
    (found,) = json.loads(fresh.started(command)["said"])
    return int(found["model_bytes"])


def available_bytes() -> int:
    """Return the memory that new processes can have; the page cache counts as available."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found) * 1024


def check_memory(file_bytes: int, shape: Shape, weights: str, available: int) -> None:
    """Refuse a file that would leave the page cache while it runs.

    Raises:
        InputError: File and packed weights together need more memory than is available.
    """
    packed = PACKED[weights] * shaped_file.weight_count(shape)
    needed = (file_bytes + packed + SPARE_BYTES) / 2**30
    if needed > available / 2**30:
        raise InputError(
            f"needs {needed:.1f} GiB of memory for file and weights, some to spare included; "
            f"{available / 2**30:.1f} GiB are available"
        )


def made_plan(options: argparse.Namespace) -> Plan:
    """Return the plan, after installing what is needed.

    Raises:
        InstallError: An environment cannot be made.
        InputError: A given environment is none.
    """
    given = {"suffice": options.python, PEER: options.peer_python}
    if options.quick:
        model = shaped_file.write(FILES / "tiny.gguf", shaped_file.TINY, "Q8_0")
        given["suffice"] = options.python or Path(sys.executable)
    else:
        model = pull.pull(MODEL)
    own, peer = given["suffice"], given[PEER]
    if own is None:
        own = environments.own(options.wheel, options.jobs)
    if peer is None and not options.quick and {"start", "size", "file"} & set(options.only):
        peer = environments.peer(options.jobs)
    return Plan(
        own=environments.existing("--python", own),
        peer=peer and environments.existing("--peer-python", peer),
        given=tuple(name for name, python in given.items() if python is not None),
        model=model,
        threads=options.threads,
        rounds=options.rounds,
    )


def run(options: argparse.Namespace, shape: Shape, folder: Path) -> bool:
    """Measure the parts, write results after each, and return whether all could be measured.

    Raises:
        InstallError: An environment cannot be made.
        InputError: A model, a shape or an environment cannot be used.
    """
    plan = made_plan(options)
    measures = {
        "start": first_tokens,
        "imports": imports,
        "size": sizes,
        "file": partial(shaped_files, shape=shape, options=options),
    }
    sections = known(folder)
    for part in options.only:
        print(f"{part}:", end=" ", file=sys.stderr, flush=True)
        try:
            found = measures[part](plan)
        except (EngineError, InputError) as error:
            found = {"error": str(error)}
        facts = record.facts()
        sections[part] = found | {"date": facts["date"], "commit": facts["commit"]}
        write(folder, options, plan, sections)
        print(", ".join(errors(found)) or "done", file=sys.stderr)
    return not any(errors(sections[part]) for part in options.only)


def errors(section: dict[str, Any]) -> list[str]:
    """Return why a part, or cases of it, could not be measured."""
    parts = [section, *section.get("cases", {}).values()]
    return [part["error"] for part in parts if isinstance(part, dict) and "error" in part]


def known(folder: Path) -> dict[str, Any]:
    """Return the parts of an earlier run's results."""
    path = folder / f"{NAME}.json"
    found = json.loads(path.read_text(encoding="utf-8"))["sections"] if path.exists() else {}
    return {part: found[part] for part in PARTS if part in found}


def write(folder: Path, options: argparse.Namespace, plan: Plan, sections: dict[str, Any]) -> None:
    """Write the results so far."""
    data = record.facts() | {
        "model": plan.model.name,
        "threads": plan.threads,
        "rounds": plan.rounds,
        "quick": options.quick,
        "sections": {part: sections[part] for part in PARTS if part in sections},
    }
    record.write(folder, NAME, data, report(data))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--python", type=Path, help="of an environment that has suffice")
    parser.add_argument("--peer-python", type=Path, help=f"of an environment that has {PEER}")
    parser.add_argument("--wheel", type=Path, help="to install; default: made of this tree")
    parser.add_argument("--shape", default="llama-2-7b", help=", ".join(shaped_file.SHAPES))
    parser.add_argument("--kinds", nargs="+", choices=shaped_file.TYPES, default=["Q4_0", "Q8_0"])
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=list(WEIGHTS))
    parser.add_argument("--keep", action="store_true", help="keep the files of the shape")
    parser.add_argument("--quick", action="store_true", help="a tiny model, results in build/")
    return script.with_peers(parser)


def main() -> int:
    options = arguments()
    folder = options.output or (QUICK if options.quick else record.results(__file__))
    try:
        if options.shape not in shaped_file.SHAPES:
            raise unknown("shape", options.shape, shaped_file.SHAPES)
        shape = shaped_file.TINY if options.quick else shaped_file.SHAPES[options.shape]
        done = run(options, shape, folder)
    except (InputError, InstallError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 2
    print((folder / f"{NAME}.md").read_text(encoding="utf-8"))
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
