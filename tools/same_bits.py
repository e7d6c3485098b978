"""Compare two builds of suffice bit for bit: `record OUT.json` with each, then `compare A B`.

    python tools/same_bits.py record before.json            tiny checkpoints of every family
    python tools/same_bits.py record before.json --real     smollm2-135m instead, once pulled
    ... record some.json --only checkpoint qwen2            cases with one of these in their names
    python tools/same_bits.py compare before.json after.json

`record` runs the suffice that the interpreter imports, which may be outside this repository and
need no PyTorch; making tiny checkpoints needs PyTorch and transformers (`--python`). For every
setting it stores the greedy tokens, a hash of their log probabilities, the perplexity of given
tokens through the decode step with a hash of its logits, and the counts of the trace. `compare`
prints differences, and exits with 1 if there are any. Options are spelled as both builds understand
them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import bits_settings
from bits_models import Models, NotMadeError, digest, hashes

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


def first_of(owner: Any, *names: str) -> Any:
    """Return the first of these attributes that exists: counts may have been renamed."""
    for name in names:
        if hasattr(owner, name):
            return getattr(owner, name)
    raise AttributeError(f"{type(owner).__name__} has none of {', '.join(names)}")


def counts(trace: Any) -> dict[str, Any]:
    """Return the counts of a trace: the rows [count, L, G] as sums and as a hash."""
    rows = first_of(trace, "rows", "kv_rows")
    return {
        "rows": rows.sum((1, 2)).tolist(),
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
        float(each[token].logprob).hex()
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

    runner, half = llm.runner, len(window) // 2
    sequence = runner.open("same bits", len(window))
    # Copies, also of the tensors of builds that had PyTorch
    logits = [numpy.array(runner.prefill(sequence, window[:half]))[None]]
    for start in range(half, len(window) - 1, CHAIN):
        chain = window[start : min(start + CHAIN, len(window) - 1)]
        runner.reserve(sequence, len(chain))
        logits.append(numpy.array(runner.advance([sequence], [chain])))
    runner.close(sequence)
    found = numpy.concatenate(logits)
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

    def run(self, lengths: tuple[int, ...], models: Models | None = None) -> dict[str, Any]:
        """Return the results for prompts of these lengths, alone and together."""
        from suffice import LLM, native

        if models is not None:
            self._need(models)
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

    def _need(self, models: Models) -> None:
        models.need(Path(self.model))
        draft = self.options.get("speculative_config", {}).get("model")
        for path in (draft, self.options.get("calibration")):
            if path is not None:
                models.need(Path(path))


def tiny_cases(models: Models) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield each tiny case's name and its function."""
    from suffice import native

    best, *others = native.isas()
    first, *_ = bits_settings.VARIANTS
    for variant in bits_settings.VARIANTS:
        model, calibration = models.folder / variant, models.calibration(variant)
        yield f"{variant} checkpoint", partial(hashed, models, model, "model.safetensors")
        yield f"{variant} calibration", partial(hashed, models, calibration)
        if variant == first:
            ways = [(best, 2), (best, 1), *((isa, 1) for isa in others)]
            chosen = list(bits_settings.settings(str(calibration), str(models.draft)))
        else:
            ways = [(best, 2), ("base", 1)]
            chosen = [
                o | ({"calibration": str(calibration)} if "softmax" in o else {})
                for o in bits_settings.FEW
            ]
        for isa, threads in ways:
            for options in chosen:
                case = Case(str(model), options, isa, threads)
                yield case.name, partial(case.run, LENGTHS, models)
        for method in bits_settings.LEARNED if variant == first else ():
            made = models.quantized(method)
            yield f"quantize {made.stem}", partial(hashed, models, made)
            for isa, threads in ways:
                case = Case(str(made), {"dtype": "auto"}, isa, threads)
                yield case.name, partial(case.run, LENGTHS, models)


def hashed(models: Models, path: Path, part: str = "") -> dict[str, Any]:
    """Return the hashes of a file, or of a part of a folder, after making it."""
    return hashes(models.need(path) / part)


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


def record(given: argparse.Namespace) -> int:
    """Write the record; return 1 if a case failed."""
    import suffice

    for name in [name for name in os.environ if name.startswith("SUFFICE_")]:
        del os.environ[name]
    print(f"recording {Path(suffice.__file__).parent}")
    found: dict[str, Any] = {"growths": growths()}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        models = Models(Path(folder), given.tests, given.python, text(4000))
        for name, run in real_cases() if given.real else tiny_cases(models):
            if given.only and not any(part in name for part in given.only):
                continue
            try:
                found[name] = run()
            except NotMadeError as error:
                print(f"{name}: left out: there is no {error}")
            except Exception as error:  # one failure must not hide the other cases
                found[name] = {"error": f"{type(error).__name__}: {error}"}
                print(f"{name}: {found[name]['error']}")
    given.output.write_text(json.dumps(found, indent=1, sort_keys=True))
    failed = sum("error" in each for each in found.values())
    torch = ", PyTorch was loaded" * ("torch" in sys.modules)
    seconds = time.perf_counter() - start
    print(f"{len(found)} cases, {failed} failed, {seconds:.0f} s{torch}: {given.output}")
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
    both, either = sorted(old.keys() & new.keys()), old.keys() | new.keys()
    found = {name: differences(old[name], new[name]) for name in both if old[name] != new[name]}
    for name, parts in list(found.items())[:most]:
        print(name)
        for part, (was, now) in list(parts.items())[:4]:
            print(f"    {part:28} {was} -> {now}")
        if len(parts) > 4:
            print(f"    ... and {len(parts) - 4} more")
    for part, count in sorted(Counter(part for parts in found.values() for part in parts).items()):
        pairs = [parts[part] for parts in found.values() if part in parts]
        far = f", by {furthest(pairs):.1e} at most" if part.endswith("perplexity") else ""
        print(f"{part}: {count} cases{far}")
    for path, cases in ((before, old), (after, new)):
        if alone := len(cases.keys() - set(both)):
            print(f"{alone} cases are in {path.name} only")
    differing = len(found) + len(either) - len(both)
    print(f"{differing} of {len(either)} cases differ")
    return int(differing > 0)


def differences(was: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the parts of a case that differ, with their values in both records."""
    old, new = flat(was), flat(now)
    parts = {part: (old.get(part), new.get(part)) for part in {**old, **new}}
    return {part: (one, other) for part, (one, other) in parts.items() if one != other}


def furthest(pairs: list[tuple[Any, Any]]) -> float:
    """Return the largest relative difference of numbers that are stored as texts."""
    known = [(float(one), float(other)) for one, other in pairs if one and other]
    return max((abs(other / one - 1) for one, other in known), default=math.nan)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("record", help="run every setting and write what came out")
    making.add_argument("output", type=Path)
    making.add_argument(
        "--real", action="store_true", help=f"run {bits_settings.REAL} instead of tiny models"
    )
    making.add_argument("--only", nargs="+", metavar="TEXT", help="cases whose names have one")
    making.add_argument("--tests", type=Path, default=ROOT / "tests", help="folder of tiny.py")
    making.add_argument("--python", default=sys.executable, help="that runs tiny.py")
    comparing = commands.add_parser("compare", help="print what differs between two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--most", type=int, default=20, help="cases that are shown")
    given = parser.parse_args()
    if given.command == "record":
        return record(given)
    return compare(given.before, given.after, given.most)


if __name__ == "__main__":
    sys.exit(main())
