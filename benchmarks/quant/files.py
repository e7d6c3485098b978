"""Runs quantized files as they are, and llama.cpp on the same files: quality, tokens and speed.

    python -m benchmarks.quant.files --data-dir DIR              every file, about an hour
    ... --types Q4_1 Q6_K --parts quality                        some files, one of the parts
    python -m benchmarks.quant.files --data-dir DIR --quick      tiny sizes, results in build/

`quality`: perplexity of WikiText-2 windows, decoded, over that of the same file's weights as
float32 with a float32 cache; llama.cpp's perplexity of the same tokens next to it. `tokens`: greedy
answers of the default, compared with those of the file's weights as bfloat16. `speed`: tokens per
second of the default and of the fast setting, in turn with llama.cpp's default. Files that
`quantize_peers` makes are made if they are missing. "7B Q4_K_M" is a file of random codes in the
shape of LLaMA-2-7B: only its speed of decoding is measured. `facts` of a file say when and by which
command each part was measured; of some older parts that is not known.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attention.quality import compared, kept
from benchmarks.harness import record, script, shaped_file
from benchmarks.peers import install
from benchmarks.peers.client import Worker, engine_module
from benchmarks.peers.install import BUILD, PACKAGES
from benchmarks.peers.speed import ROWS, Case, duel
from benchmarks.quant.files_table import tables
from benchmarks.quant.peer_weights import LLAMA, peer_path
from suffice import LLM, SamplingParams, pull
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.eval.perplexity import PerplexityPlan, scored, windows_of
from suffice.eval.prompts import load_prompts
from suffice.eval.texts import load_text
from suffice.text.tokenizer import Tokenizer

NAME = "files"
SMOLLM, GEMMA = "smollm2-135m", "gemma3-270m"
MADE = ("Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "IQ4_NL")  # by quantize_peers
SHAPED = {"7B Q4_K_M": ("llama-2-7b", "Q4_K_M")}  # the shape, and the type of the file
TYPES = ("Q4_1", "gemma Q4_K_M", *MADE, *SHAPED)
PARTS = ("quality", "tokens", "speed")
FOLDER = record.BUILD / "quantized"
PROMPTS, ANSWER = 32, 64  # greedy answers, and tokens of each
FLOAT = {"quantization": "none:dtype=float32", "kv_cache_dtype": "float32"}
BFLOAT16 = {"quantization": "none:dtype=bfloat16", "kv_cache_dtype": "bfloat16"}
QUALITY: dict[str, dict[str, Any]] = {
    "16-bit inputs": {"quantization": "file", "kv_cache_dtype": "float32"},
    "8-bit inputs": {"quantization": "file:act_bits=8", "kv_cache_dtype": "float32"},
    "default": {"quantization": "file", "kv_cache_dtype": "bfloat16"},
    "fast": {"quantization": "file:act_bits=8", "kv_cache_dtype": "int8"},
}
SPEED = {"default": ("file", "bfloat16"), "fast": ("file:act_bits=8", "int8")}


def file_of(kind: str) -> Path:
    """Return the file of a type, made or downloaded if it is missing.

    Raises:
        InputError: It cannot be made.
    """
    if kind in SHAPED:
        shape, type_of = SHAPED[kind]
        path = FOLDER / f"{shape}-{type_of}.gguf"
        return (
            path if path.exists() else shaped_file.write(path, shaped_file.SHAPES[shape], type_of)
        )
    if kind not in MADE:
        return Path(pull.pull(GEMMA if kind.startswith("gemma") else SMOLLM))
    path = peer_path(FOLDER, SMOLLM, LLAMA + kind)
    command = [sys.executable, "-m", "benchmarks.quant.quantize_peers", "--cache", str(FOLDER)]
    if not path.exists() and subprocess.run([*command, "--types", kind], check=False).returncode:
        raise InputError(f"{path} is missing and cannot be made")
    return path


def opened(
    path: Path, threads: int, rows: int, setting: dict[str, Any]
) -> tuple[Runner, Tokenizer]:
    """Return a file's model with a setting's weights and cache."""
    config = Config.create(str(path), threads=threads, max_model_len=rows, **setting)
    _, runner, tokenizer = load(config)
    return runner, tokenizer


def llama(path: Path, flags: argparse.Namespace) -> Worker:
    """Start llama.cpp with its defaults on a file."""
    package = PACKAGES["llama-cpp-python"]
    install.install(package, flags.jobs)
    given = {"gguf": str(path), "rows": ROWS, "threads": flags.threads, "flash": "auto"}
    environment = package.environment(flags.threads)
    log = BUILD / "log" / "llama-cpp-files.log"
    return Worker(package.python, engine_module("llamacpp"), given, environment, log)


def quality(path: Path, flags: argparse.Namespace) -> dict[str, Any]:
    """Return each setting's perplexity over that of the float weights, and llama.cpp's."""
    plan = PerplexityPlan(flags.window, flags.limit, together=flags.limit)
    reference, tokenizer = opened(path, flags.threads, flags.window, FLOAT)
    text = load_text("wikitext2", flags.data_dir)
    windows = windows_of(tokenizer, text, plan, flags.window)
    expected = kept(reference, windows, plan)
    found: dict[str, Any] = {}
    for name, setting in QUALITY.items():
        runner, _ = opened(path, flags.threads, flags.window, setting)
        found[name] = compared(name, scored(runner, windows, plan), expected, len(windows))
    worker = llama(path, flags)
    try:
        losses = [worker.ask("score", tokens=window)["losses"] for window in windows]
    finally:
        worker.close()
    perplexity = float(np.exp(np.concatenate(losses).mean()))
    floats = found["default"]["against"]["perplexity"]
    found["llama.cpp"] = {"perplexity": perplexity, "against": {"ratio": perplexity / floats}}
    return found


def answers(path: Path, flags: argparse.Namespace, setting: dict[str, Any]) -> list[Any]:
    """Return greedy answers to the prompts, with the two most likely tokens of each place."""
    llm = LLM(str(path), threads=flags.threads, max_model_len=2048, **setting)
    talks = [[{"role": "user", "content": text}] for text in prompts(flags)]
    tokens = [llm.tokenizer.chat(talk, add_generation_prompt=True) for talk in talks]
    params = SamplingParams(temperature=0, max_tokens=flags.answer, ignore_eos=True, logprobs=2)
    return [output.outputs[0] for output in llm.generate(tokens, params, use_tqdm=False)]


def prompts(flags: argparse.Namespace) -> list[str]:
    """Return the first prompts of GSM8K."""
    return load_prompts("gsm8k", flags.data_dir)[: flags.prompts]


def tokens(path: Path, flags: argparse.Namespace) -> dict[str, Any]:
    """Return how many answers are the same to the last token, and the gaps where others differ.

    A gap is the difference of log probability, with bfloat16 weights, between the two tokens at the
    first place where they differ; None if the default's token is not among the two most likely.
    """
    ours = answers(path, flags, {})
    theirs = answers(path, flags, BFLOAT16)
    gaps: list[float | None] = []
    for one, other in zip(ours, theirs, strict=True):
        pairs = list(zip(one.token_ids, other.token_ids, strict=True))
        place = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        if place is not None:
            likely = other.logprobs[place]
            best, taken = likely[pairs[place][1]], likely.get(pairs[place][0])
            gaps.append(None if taken is None else best.logprob - taken.logprob)
    return {"prompts": len(ours), "tokens": flags.answer, "gaps": gaps}


def cases(quick: bool) -> dict[str, Case]:
    """Return what is timed: a prompt, and decoding behind three depths."""
    depths, prompt, count = ((0, 24, 48), 32, 4) if quick else ((0, 1024, 3000), 1024, 64)
    found = {f"decode-{depth}": Case(depth=depth, count=count) for depth in (0, 1024, 3000)}
    for name, depth in zip(found, depths, strict=True):
        found[name] = Case(depth=depth, count=count)
    return found | {"prefill-1024": Case(prompt=prompt)}


def speed(path: Path, flags: argparse.Namespace) -> dict[str, Any]:
    """Return the rounds of each setting and case; of a model of 7B's shape only the first case."""
    found: dict[str, Any] = {}
    timed = cases(flags.quick)
    if path.name.startswith(tuple(shaped_file.SHAPES)):
        timed = {"decode-0": Case(depth=0, count=16)}
    for name, (quantization, kv) in SPEED.items():
        given = {"gguf": str(path), "rows": ROWS, "threads": flags.threads, "whole": False}
        given |= {"dtype": "auto", "quantization": quantization, "kv": kv}
        log = BUILD / "log" / "suffice-files.log"
        workers: list[Worker] = []
        try:
            workers.append(
                Worker(Path(sys.executable), engine_module("suffice"), given, dict(os.environ), log)
            )
            workers.append(llama(path, flags))
            found[name] = duel(*workers, timed, flags.rounds, lambda what: None)
            found[name]["about"] = workers[0].about
        finally:
            for worker in workers:
                worker.close()
    return found


MEASURES: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "quality": quality,
    "tokens": tokens,
    "speed": speed,
}


def run(flags: argparse.Namespace) -> str:
    """Measure files and parts, writing the results after each; return the tables."""
    folder = flags.output or (record.BUILD if flags.quick else record.results(__file__))
    stored = folder / f"{NAME}.json"
    known = json.loads(stored.read_text(encoding="utf-8"))["files"] if stored.exists() else {}
    for kind in flags.types:
        path = file_of(kind)
        known.setdefault(kind, {})["bytes"] = path.stat().st_size
        for part in flags.parts:
            if kind in SHAPED and part != "speed":
                continue
            print(f"{kind}: {part}", file=sys.stderr)
            known[kind][part] = MEASURES[part](path, flags)
            known[kind].setdefault("facts", {})[part] = record.facts()
            files = {each: known[each] for each in TYPES if each in known}
            about = {"threads": flags.threads, "window": flags.window, "windows": flags.limit}
            data = record.facts() | about | {"files": files}
            record.write(folder, NAME, data, tables(data))
    return tables(data)


def main() -> int:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt and GSM8K")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, results in build/")
    flags = script.with_peers(parser)
    flags.window, flags.limit = (64, 2) if flags.quick else (1024, 8)
    flags.prompts, flags.answer = (2, 4) if flags.quick else (PROMPTS, ANSWER)
    return script.printed(NAME, lambda: run(flags))


if __name__ == "__main__":
    sys.exit(main())
