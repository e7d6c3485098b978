"""Run `suffice run` on damaged models: each run must end in text, or in one line and exit code 2.

    python tools/fuzz.py                   10,000 cases: minutes
    python tools/fuzz.py --count 40        the small form, which the tests run
    python tools/fuzz.py --only 4711       one case again; its files stay, its output is shown

Cases are numbered; a number and the seed give the same damage everywhere. Each damages one file
of a tiny model (GGUF, safetensors, configuration, tokenizer or chat template) and runs in a process
of its own, with limits of memory and time. Violations are a signal, a traceback, more than a line
of error (warnings may come before it), another exit code, and a case that runs out of time. If
there are any, the script exits with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support")]

import gguf_files  # noqa: E402
import json_mutations  # noqa: E402
import mutations  # noqa: E402

SECONDS = 20.0
MEMORY = 3 << 30  # bytes of address space
FLAGS = ("-q", "-n", "3", "--threads", "1")  # -q: no notices, which are no errors
LONGEST = 1000  # characters of an error's line
TEMPLATE_PARTS = (
    "{% for a in range(10**9) %}x{% endfor %}",
    "{% set x = 'a' * 10**10 %}{{ x }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ raise_exception('no') }}",
    "{{ ''.__class__.__mro__ }}",
    "{% if",
    "{{ messages[99].content.x.y }}",
    "{{ 1 / 0 }}",
)
# The models are made by another process, because PyTorch makes them.
_MAKE = """
import json
import sys
from pathlib import Path

import gguf
import gguf_files
import numpy as np
import tiny

folder = Path(sys.argv[1])
tiny.make(folder / "folder", "llama", tokenizer=True, num_hidden_layers=1)
stored = json.loads((folder / "folder" / "tokenizer.json").read_text())
added = {each["content"]: each["id"] for each in stored["added_tokens"]}
vocabulary = stored["model"]["vocab"] | added
tokens = sorted(vocabulary, key=vocabulary.get)
merges = stored["model"]["merges"]
merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
template = (folder / "folder" / "chat_template.jinja").read_text()
named = {
    "model": "gpt2",
    "pre": "gpt-2",
    "tokens": tokens,
    "token_type": [3 if token in added else 1 for token in tokens],
    "merges": merges,
    "bos_token_id": vocabulary["<bos>"],
    "eos_token_id": vocabulary["<eos>"],
}
keys = {f"tokenizer.ggml.{key}": value for key, value in named.items()}
keys = gguf_files.llama_keys(**keys, **{"tokenizer.chat_template": template})
rows = np.random.default_rng(0).standard_normal((len(tokens), 32)).astype(np.float32)
embedding = gguf.quantize(rows, gguf.GGMLQuantizationType.Q8_0), "Q8_0"
tensors = gguf_files.llama_tensors() | {"token_embd.weight": embedding}
gguf_files.write(folder / "model.gguf", keys, tensors)
"""


@dataclass(frozen=True)
class Case:
    """A numbered case: the damaged model, the file that was damaged, and flags of `run`."""

    number: int
    model: Path
    damaged: Path
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How a case ended; `violation` is None if it ended as it should."""

    case: Case
    kind: str
    violation: str | None
    output: str


def make_models(folder: Path) -> Path:
    """Make the models that cases damage."""
    support = os.pathsep.join([str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-c", _MAKE, str(folder)],
        check=True,
        env=os.environ | {"PYTHONPATH": support},
        stdout=subprocess.DEVNULL,
    )
    return folder


def damaged(models: Path, folder: Path, seed: int, number: int) -> Case:
    """Write the damaged model of a case into an empty folder."""
    rng = random.Random(f"{seed}:{number}")
    sources = sorted(path for path in models.rglob("*") if path.is_file())
    source = rng.choice(sources)
    whole = source.parent != models
    target = folder / source.relative_to(models)
    if whole:
        shutil.copytree(source.parent, target.parent)
    _damage(source, target, rng)
    flags = ("--raw",) if rng.random() < 0.3 else ()  # without the chat template
    return Case(number, target.parent if whole else target, target, flags)


def _damage(source: Path, target: Path, rng: random.Random) -> None:
    seed = rng.randrange(2**32)
    if source.suffix == ".json" and rng.random() < 0.8:
        document = json.loads(source.read_text(encoding="utf-8"))
        text = json_mutations.mutated(document, seed)
    elif source.suffix == ".safetensors" and rng.random() < 0.5:
        target.write_bytes(_with_other_header(source.read_bytes(), seed))
        return
    elif source.suffix == ".jinja":
        text = json_mutations.mutated_text(source.read_text(encoding="utf-8"), seed, TEMPLATE_PARTS)
    else:
        target.write_bytes(_with_other_bytes(source.read_bytes(), random.Random(seed)))
        return
    target.write_text(text, encoding="utf-8", errors="surrogatepass")


def _with_other_header(data: bytes, seed: int) -> bytes:
    """Return a safetensors file with its header's values changed."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json_mutations.mutated(json.loads(data[8:end]), seed)
    changed = header.encode(errors="surrogatepass")
    return struct.pack("<Q", len(changed)) + changed + data[end:]


def _with_other_bytes(data: bytes, rng: random.Random) -> bytes:
    mutators = list(mutations.BYTES.values())
    if data[:4] == b"GGUF":
        numbers, names = gguf_files.spots(data)
        mutators += [mutations.numbers_at(numbers), mutations.names_at(names)] * 3
    for _ in range(rng.choice((1, 1, 2))):
        data = rng.choice(mutators)(data, rng) if data else data
    return data


def run(case: Case, folder: Path) -> Outcome:
    """Run a case in a process of its own and judge how it ends."""
    out, err = folder / "stdout", folder / "stderr"
    child = os.fork()
    if child == 0:
        _run_here(case, out, err)
    deadline = time.monotonic() + SECONDS
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Outcome(case, "hang", f"ran for more than {SECONDS:g} s", "")
        time.sleep(0.002)
    return judged(case, os.waitstatus_to_exitcode(status), _text(out), _text(err))


def judged(case: Case, code: int, out: str, err: str) -> Outcome:
    """Return the outcome of a run that ended with an exit code (a signal: below 0) and output."""
    said = [line for line in err.splitlines() if line.strip()]
    lines = [line for line in said if not line.startswith("suffice: warning: ")]
    violation = None
    if code < 0:
        violation = f"ended by {signal.Signals(-code).name}"
    elif "Traceback (most recent call last)" in err:
        violation = f"a traceback: {lines[-1]}"
    elif code not in (0, 2):
        violation = f"exit code {code}"
    elif code == 2 and (len(lines) != 1 or "error: " not in lines[0]):
        violation = f"{len(lines)} lines of error"
    elif code == 2 and len(lines[0]) > LONGEST:
        violation = f"an error of {len(lines[0])} characters"
    kind = "violation" if violation else "text" if code == 0 else "refused"
    return Outcome(case, kind, violation, out + err)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _run_here(case: Case, out: Path, err: Path) -> None:
    """Become the case's process: never returns."""
    code = 70
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        code = _exit_code(["run", "-m", str(case.model), *FLAGS, *case.flags, "hi"])
    finally:
        os._exit(code)


def _exit_code(arguments: list[str]) -> int:
    import traceback

    from suffice.cli import main

    sys.argv = ["suffice", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def outcomes(models: Path, seed: int, numbers: range) -> Iterator[Outcome]:
    """Run cases one after the other; yield how each ended."""
    for number in numbers:
        with tempfile.TemporaryDirectory(prefix="suffice-fuzz-") as folder:
            case = damaged(models, Path(folder), seed, number)
            yield run(case, Path(folder))


def report(found: Iterator[Outcome], count: int) -> list[Outcome]:
    """Print violations as they are found, and the numbers at the end; return the violations."""
    counts: Counter[str] = Counter()
    bad = []
    for done, outcome in enumerate(found, start=1):
        counts[f"{outcome.case.damaged.name}: {outcome.kind}"] += 1
        if outcome.violation:
            bad.append(outcome)
            print(f"case {outcome.case.number}, {outcome.case.damaged.name}: {outcome.violation}")
        if sys.stderr.isatty():
            print(f"\r{done} of {count}, {len(bad)} violations", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    for kind in sorted(counts):
        print(f"{counts[kind]:6} {kind}")
    print(f"{count} cases, {len(bad)} violations")
    return bad


def preload(models: Path) -> None:
    """Run an undamaged model, so that cases fork with all modules loaded; no thread may stay."""
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
        code = _exit_code(["run", "-m", str(models / "folder"), *FLAGS, "hi"])
    assert code == 0, "the undamaged model does not run"


def main() -> int:
    """Run the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000, help="number of cases")
    parser.add_argument("--seed", type=int, default=0, help="of all damage")
    parser.add_argument("--part", default="0/1", help="which cases: 0/2 even numbers, 1/2 odd ones")
    parser.add_argument("--only", type=int, help="run one case, and keep its files")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    models = make_models(Path(tempfile.mkdtemp(prefix="suffice-fuzz-models-")))
    try:
        preload(models)
        if options.only is not None:
            kept = Path(tempfile.mkdtemp(prefix=f"suffice-fuzz-{options.only}-"))
            outcome = run(damaged(models, kept, options.seed, options.only), kept)
            print(f"{kept}\n{outcome.output}\n{outcome.violation or outcome.kind}")
            return int(outcome.violation is not None)
        first, step = map(int, options.part.split("/"))
        numbers = range(first, options.count, step)
        return int(bool(report(outcomes(models, options.seed, numbers), len(numbers))))
    finally:
        shutil.rmtree(models)


if __name__ == "__main__":
    sys.exit(main())
