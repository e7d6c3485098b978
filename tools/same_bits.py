"""Compare two builds of suffice bit for bit: `record OUT.json` with each, then `compare A B`.

    python tools/same_bits.py record before.json            tiny checkpoints of every family
    python tools/same_bits.py record before.json --real     smollm2-135m as well, once pulled
    python tools/same_bits.py compare before.json after.json

`record` runs the suffice that the interpreter imports, which may be outside this repository. For
every setting it stores the greedy tokens, a hash of their log probabilities, the perplexity of
given tokens through the decode step with a hash of its logits, and the counts of the trace.
`compare` prints differences, and exits with 1 if there are any. Options are spelled as both builds
understand them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import bits_settings

ROOT = Path(__file__).parent.parent
SHOWN = 6  # first tokens of each text, stored as they are

LENGTHS, ROWS, CHAIN = (300, 45, 620), 24, 5  # of prompts; tokens generated; tokens of a step
REAL_LENGTHS = (400, 60, 45)
WORDS = "the quick brown fox jumps over lazy dog to be or not that is question a b c"


def numbers(count: int, below: int, seed: int) -> list[int]:
    """Return pseudorandom numbers below `below`, the same everywhere, with some repetition."""
    state, found = seed * 2654435761 % 2**32, []
    for i in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        found.append(found[i - 37] if i > 40 and (state >> 29) < 4 else (state >> 8) % below)
    return found


def text(words: int) -> str:
    """Return words in a fixed pseudorandom order."""
    known = WORDS.split()
    return " ".join(known[i] for i in numbers(words, len(known), 5))


def digest(parts: Iterable[bytes]) -> str:
    """Return a short hash."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def first_of(owner: Any, *names: str) -> Any:
    """Return the first of these attributes that exists: counts may have been renamed."""
    for name in names:
        if hasattr(owner, name):
            return getattr(owner, name)
    raise AttributeError(f"{type(owner).__name__} has none of {', '.join(names)}")


def counts(trace: Any) -> dict[str, Any]:
    """Return the counts of a trace: the rows [4, L, G] as sums and as a hash."""
    rows = first_of(trace, "rows", "kv_rows")
    sums = rows.sum((1, 2)).tolist()
    return {
        "rows": dict(zip(("keys", "values", "dense", "per_head"), sums, strict=True)),
        "rows_hash": digest([rows.tobytes()]),
        "steps": trace.steps,
        "kv_bytes": trace.kv_bytes_read,
        "metadata_bytes": first_of(trace, "sketch_bytes_read", "metadata_bytes_read"),
        "dense_bytes": first_of(trace, "kv_bytes_held", "kv_bytes_dense"),
        "weight_bytes": trace.weight_bytes_read,
        "missing": repr(float(trace.missing)),
    }


def generated(llm: Any, prompts: list[list[int]], sampled: bool = False) -> dict[str, Any]:
    """Return the tokens that follow the prompts, with a hash of their log probabilities."""
    from suffice import SamplingParams

    how: dict[str, Any] = {"temperature": 0.8, "seed": 7} if sampled else {"temperature": 0}
    params = SamplingParams(max_tokens=ROWS, ignore_eos=True, logprobs=0, **how)
    outputs = [output.outputs[0] for output in llm.generate(prompts, params, False)]
    chances = [
        each[token].logprob.hex()
        for output in outputs
        for each, token in zip(output.logprobs, output.token_ids, strict=True)
    ]
    return {
        "tokens": [list(output.token_ids[:SHOWN]) for output in outputs],
        "tokens_hash": digest(bytes(str(list(o.token_ids)), "ascii") for o in outputs),
        "logprobs_hash": digest(bytes(each, "ascii") for each in chances),
    }


def perplexity(llm: Any, window: list[int]) -> dict[str, Any]:
    """Return the perplexity of the last half of a window, decoded a few tokens a step."""
    import numpy
    import torch

    runner, half = llm.runner, len(window) // 2
    sequence = runner.open("same bits", len(window))
    logits = [runner.prefill(sequence, window[:half])[None]]
    for start in range(half, len(window) - 1, CHAIN):
        chain = window[start : min(start + CHAIN, len(window) - 1)]
        runner.reserve(sequence, len(chain))
        logits.append(runner.advance([sequence], [chain]).clone())
    runner.close(sequence)
    found = torch.cat(logits).numpy()
    wide = found.astype("float64")
    wide -= wide.max(-1, keepdims=True)
    targets = window[half:]
    losses = numpy.log(numpy.exp(wide).sum(-1)) - wide[range(len(targets)), targets]
    mean = math.fsum(losses.tolist()) / len(targets)
    return {"perplexity": repr(math.exp(mean)), "logits_hash": digest([found.tobytes()])}


class Case:
    """A model with some options, and the instruction set and threads that it runs on."""

    def __init__(self, model: str, options: dict[str, Any], isa: str, threads: int) -> None:
        self.model, self.options, self.isa, self.threads = model, options, isa, threads

    @property
    def name(self) -> str:
        """The name of the case in the record."""
        shown = " ".join(f"{key}={value}" for key, value in self.options.items()) or "default"
        shown = shown.replace(f"{Path(self.model).parent}/", "")
        return f"{Path(self.model).name} {self.isa} threads={self.threads} {shown}"

    def run(self, lengths: tuple[int, ...]) -> dict[str, Any]:
        """Return the results for prompts of these lengths, alone and together."""
        from suffice import LLM, native

        native.use_isa(self.isa)
        options = {"dtype": "float32", "max_model_len": 1024, **self.options}
        llm = LLM(self.model, threads=self.threads, **options)
        vocabulary = llm.runner.vocabulary
        prompts = [numbers(length, vocabulary, seed) for seed, length in enumerate(lengths)]
        found = {"alone": generated(llm, prompts[:1])}
        found["alone"] |= counts(llm.runner.trace)
        found["batch"] = generated(llm, prompts) | counts(llm.runner.trace)
        if "speculative_config" in options:
            found["sampled"] = generated(llm, prompts, sampled=True)
        found["decoded"] = perplexity(llm, numbers(lengths[0], vocabulary, 9))
        found["decoded"] |= counts(llm.runner.trace)
        return found


def command(*arguments: str) -> None:
    """Run the command line of suffice in this process."""
    from suffice.cli import main

    before, sys.argv = sys.argv, ["suffice", *arguments]
    try:
        with redirect_stdout(io.StringIO()):
            main()
    except SystemExit as left:
        if left.code:
            raise RuntimeError(f"suffice {' '.join(arguments)}: exit code {left.code}") from None
    finally:
        sys.argv = before


def calibrated(model: Path, book: Path, folder: Path) -> Path:
    """Calibrate a tiny model on a text, for softmaxes and for two techniques with thresholds."""
    made = folder / f"{model.name}.calibration.json"
    flags = ["--text", str(book), "-m", str(model), "-o", str(made), "--threads", "1"]
    flags += ["--window", "256", "--limit", "4"]
    command("calibrate", *flags)
    if model.name == "llama":
        for attention in ("certified:bounded=false", "aet:v=0.01"):
            command("calibrate", *flags, "--attention", attention, "--budget", "20%")
    return made


def quantized(model: Path, book: Path, folder: Path, method: str) -> Path:
    """Quantize a tiny model by a method that calibrates on a text."""
    name = method.replace(":", "_").replace(",", "_").replace("=", "")
    made = folder / f"{name}.safetensors"
    flags = ["--calibrate", str(book), "-m", str(model), "-o", str(made), "--method", method]
    command("quantize", *flags, "--window", "128", "--limit", "4", "--threads", "1")
    return made


def failed(error: RuntimeError) -> dict[str, Any]:
    """Raise the error that came before a case could be run."""
    raise error


def hashes(path: Path) -> dict[str, Any]:
    """Return hashes of a calibration's or weight file's content, without its origin and date."""
    if path.suffix == ".json":
        stored = json.loads(path.read_text())
        parts = {"softmax": stored["softmax"], **stored.get("attention", {})}
        for part in parts.values():
            part.pop("made", None)
        return {
            name: digest([json.dumps(part, sort_keys=True).encode()])
            for name, part in parts.items()
        }
    from safetensors.numpy import load_file

    arrays = sorted(load_file(path).items())
    return {"weights": digest(bytes(name, "ascii") + a.tobytes() for name, a in arrays)}


def tiny_cases(folder: Path, tests: Path) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield each tiny case's name and its function."""
    from suffice import native

    sys.path.insert(0, str(next(tests.rglob("tiny.py")).parent))
    import tiny

    book = folder / "book.txt"
    book.write_text(text(4000))
    (folder / "draft").mkdir()
    sizes = {"tokenizer": True, "max_position_embeddings": 1024}
    draft = tiny.make(folder / "draft", "llama", seed=1, **sizes, num_hidden_layers=2)
    best, *others = native.isas()
    for variant in ("llama", *bits_settings.FAMILIES):
        (folder / variant).mkdir()
        model = tiny.make(folder / variant, variant, **sizes)
        yield f"{variant} checkpoint", lambda model=model: hashes(model / "model.safetensors")
        native.use_isa(best)
        calibration = calibrated(model, book, folder)
        yield f"{variant} calibration", lambda made=calibration: hashes(made)
        ways = [(best, 2), (best, 1), *((isa, 1) for isa in others)]
        chosen = list(bits_settings.settings(str(calibration), str(draft)))
        if variant != "llama":
            ways = [(best, 2), ("base", 1)]
            chosen = [
                o | ({"calibration": str(calibration)} if "softmax" in o else {})
                for o in bits_settings.FEW
            ]
        else:
            files = []
            for method in bits_settings.LEARNED:
                try:
                    made = quantized(model, book, folder, method)
                except RuntimeError as error:  # the others may be compared
                    yield f"quantize {method}", partial(failed, error)
                    continue
                files.append(made)
                yield f"quantize {made.stem}", lambda made=made: hashes(made)
        models = [(str(model), options) for options in chosen]
        models += [(str(made), {"dtype": "auto"}) for made in files] if variant == "llama" else []
        for isa, threads in ways:
            for path, options in models:
                case = Case(path, options, isa, threads)
                yield case.name, lambda case=case: case.run(LENGTHS)


def real_cases() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield the name and the function of each case of the real model."""
    from suffice import native

    best = native.isas()[0]
    for options in bits_settings.REAL_ONES:
        case = Case(bits_settings.REAL, {"max_model_len": 1024, **options}, best, 2)
        yield case.name, lambda case=case: case.run(REAL_LENGTHS)


def growths() -> dict[str, list[int]]:
    """Return the capacities that a cache goes through under each growth."""
    from suffice.cache import GROWTHS as TABLE

    found = {}
    for setting in bits_settings.CAPACITIES:
        growth, capacity, seen = TABLE.build(setting), 0, []
        for needed in range(1, 1500):
            if needed > capacity:
                capacity = growth.next_capacity(needed, capacity, 2048)
                seen.append(capacity)
        found[setting] = [len(seen), *seen[:SHOWN], int(digest([bytes(str(seen), "ascii")]), 16)]
    return found


def record(output: Path, tests: Path, real: bool) -> int:
    """Write the record; return 1 if a case failed."""
    import suffice

    for name in [name for name in os.environ if name.startswith("SUFFICE_")]:
        del os.environ[name]
    print(f"recording {Path(suffice.__file__).parent}")
    found: dict[str, Any] = {"growths": growths()}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for name, run in real_cases() if real else tiny_cases(Path(folder), tests):
            try:
                found[name] = run()
            except Exception as error:  # one failure must not hide the other cases
                found[name] = {"error": f"{type(error).__name__}: {error}"}
                print(f"{name}: {found[name]['error']}")
    output.write_text(json.dumps(found, indent=1, sort_keys=True))
    failed = sum("error" in each for each in found.values())
    print(f"{len(found)} cases, {failed} failed, {time.perf_counter() - start:.0f} s: {output}")
    return int(failed > 0)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts by their paths."""
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for key, part in value.items():
        found |= flat(part, f"{path}.{key}" if path else key)
    return found


def compare(before: Path, after: Path, most: int) -> int:
    """Print what differs between two records; return 1 if anything does."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    differing = 0
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) == new.get(name):
            continue
        differing += 1
        was, now = flat(old.get(name, {})), flat(new.get(name, {}))
        parts = [part for part in {**was, **now} if was.get(part) != now.get(part)]
        if differing <= most:
            print(name)
            for part in parts[:4]:
                print(f"    {part:28} {was.get(part)} -> {now.get(part)}")
            if len(parts) > 4:
                print(f"    ... and {len(parts) - 4} more")
    print(f"{differing} of {len(old.keys() | new.keys())} cases differ")
    return int(differing > 0)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("record", help="run every setting and write what came out")
    making.add_argument("output", type=Path)
    making.add_argument(
        "--real", action="store_true", help=f"run {bits_settings.REAL} instead of tiny models"
    )
    making.add_argument("--tests", type=Path, default=ROOT / "tests", help="folder of tiny.py")
    comparing = commands.add_parser("compare", help="print what differs between two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--most", type=int, default=20, help="cases that are shown")
    given = parser.parse_args()
    if given.command == "record":
        return record(given.output, given.tests, given.real)
    return compare(given.before, given.after, given.most)


if __name__ == "__main__":
    sys.exit(main())
