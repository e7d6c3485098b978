"""`suffice bench`: runs the cases and prints them in the form of llama-bench."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from suffice import __version__
from suffice.cli.output import OUTPUTS, as_csv, busy, markdown
from suffice.errors import InputError, unknown

if TYPE_CHECKING:
    from suffice.cli.options import BenchFlags, ModelFlags
    from suffice.engine.llm import LLM
    from suffice.eval.bench import BenchResult

NOTE = "tokenization and sampling are not part of the times; the first run of each case is left out"
_ROOF_BYTES = 256 << 20  # beyond any cache level


def run(flags: BenchFlags, model: ModelFlags) -> None:
    """Measure the cases of the flags and print the results.

    Raises:
        InputError: A flag is invalid, or a case does not fit the context.
    """
    if flags.output not in OUTPUTS:
        raise unknown("output", flags.output, OUTPUTS)
    model.check_drafts("bench")
    model.check_audit("audited steps take longer, so there is nothing to time")
    prompts = whole_numbers("-p/--n-prompt", flags.n_prompt)
    generates = whole_numbers("-n/--n-gen", flags.n_gen)
    depths = whole_numbers("-d/--n-depth", flags.n_depth)
    from suffice import native
    from suffice.eval import bench

    cases = bench.cases(prompts, generates, depths, flags.batch_size, flags.repetitions)
    with busy(f"loading {model.model}"):
        llm = model.load(seed=0)
    bench.check_context(cases, llm.config.max_model_len or 0)
    roof = native.read_bandwidth(_ROOF_BYTES, native.threads())
    results = []
    for result in bench.measure(llm.runner, cases, flags.repetitions, roof):
        results.append(record(result, llm, model))
        print(f"{result.case.name}: {result.mean:.2f} tokens/s", file=sys.stderr, flush=True)
    print(drawn(results, flags.output))
    print(NOTE, file=sys.stderr)


def whole_numbers(name: str, text: str) -> list[int]:
    """Return the numbers of a list such as `0,1024,3000`.

    Raises:
        InputError: An item is not a whole number of at least 0.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit()):
            raise InputError(f"{name}={text}: '{part}' must be a whole number of at least 0")
    return [int(part) for part in parts]


def _weights(llm: LLM) -> str:
    """Return how weights are stored that no option asks for."""
    from suffice.quant import QUANTS

    runner, quant = llm.runner, llm.config.quantization
    name = "none" if quant is None else QUANTS.name_of(quant)
    if name not in ("file", "none"):
        return name
    return runner.stored_as if runner.runs_as == "codes" else runner.runs_as


def _techniques(llm: LLM) -> str:
    """Return the techniques of the decode steps that are no default; empty if all are."""
    from suffice.attention import ATTENTIONS, SOFTMAXES
    from suffice.experts import EXPERTS
    from suffice.policy import POLICIES

    config = llm.config
    found = (
        ATTENTIONS.text_of(config.attention),
        SOFTMAXES.text_of(config.softmax),
        POLICIES.text_of(config.policy),
        EXPERTS.text_of(config.experts),
    )
    return ", ".join(each for each in found if each not in ("exact", "full", "all"))


def record(result: BenchResult, llm: LLM, model: ModelFlags) -> dict[str, Any]:
    """Return one result as a flat record."""
    from suffice import native
    from suffice.cache import types_of
    from suffice.cache.machine import cpu_name

    case, decoding = result.case, result.case.generate > 0
    keys, values = types_of(llm.config.kv_cache_dtype)
    return {
        "version": __version__,
        "cpu": cpu_name(),
        "isa": native.isa(),
        "backend": "CPU",
        "threads": native.threads(),
        "model": model.model,
        "model_bytes": llm.runner.weight_bytes,
        "n_params": llm.runner.weight_count,
        "weights": model.options.quantization or _weights(llm),
        "kv": llm.config.kv_cache_dtype,
        "type_k": keys,
        "type_v": values,
        "techniques": _techniques(llm) or None,
        "batch": case.batch,
        "test": case.name,
        "n_prompt": case.prompt,
        "n_gen": case.generate,
        "n_depth": case.depth,
        "tokens_per_second": result.mean,
        "deviation": result.deviation,
        "seconds": list(result.seconds),
        "kv_bytes_per_token": result.kv_bytes_per_token if decoding else None,
        "weight_bytes_per_token": result.weight_bytes_per_token if decoding else None,
        "expert_bytes_per_token": result.expert_bytes_per_token if result.expert_fraction else None,
        "expert_fraction": result.expert_fraction or None,
        "prompt_fraction": result.prompt_fraction or None,
        "read_bytes_per_second": result.read_bytes_per_second if decoding else None,
        "roof_bytes_per_second": result.roof_bytes_per_second,
        "roof_fraction": result.roof_fraction if decoding else None,
    }


def drawn(records: list[dict[str, Any]], output: str) -> str:
    """Format records as a table (md), csv or json."""
    if output == "json":
        return json.dumps(records, indent=1)
    if output == "csv":
        return as_csv([{**row, "seconds": " ".join(map(str, row["seconds"]))} for row in records])
    columns = "model size params backend threads type_k type_v weights batch test t/s GB/s roof"
    columns += " KV/token weights/token"
    rows = [_row(row) for row in records]
    if any(row["expert_fraction"] for row in records):
        columns += " experts/token"
        rows = [[*cells, _experts(row)] for cells, row in zip(rows, records, strict=True)]
    headings = columns.split()
    if any(row["techniques"] for row in records):
        headings.append("techniques")
        rows = [[*cells, row["techniques"]] for cells, row in zip(rows, records, strict=True)]
    if any(row["prompt_fraction"] for row in records):
        headings.append("prompt read")
        rows = [[*cells, _prompt(row)] for cells, row in zip(rows, records, strict=True)]
    return markdown(headings, rows)


def _prompt(row: dict[str, Any]) -> str:
    """Return the share of the keys that tiles of the prompts read."""
    share = row["prompt_fraction"]
    return "-" if not share else f"{100 * share:.1f} %"


def _experts(row: dict[str, Any]) -> str:
    """Return the bytes of experts that a token read, and which share of all its step read."""
    share = row["expert_fraction"]
    return (
        "-" if not share else f"{_mib(row['expert_bytes_per_token'])}, {100 * share:.1f} % of all"
    )


def _row(row: dict[str, Any]) -> list[object]:
    read, roof, count = row["read_bytes_per_second"], row["roof_fraction"], row["n_params"]
    return [
        row["model"],
        _mib(row["model_bytes"]),
        f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M",
        *(row[name] for name in ("backend", "threads", "type_k", "type_v", "weights", "batch")),
        row["test"],
        f"{row['tokens_per_second']:.2f} ± {row['deviation']:.2f}",
        "-" if read is None else f"{read / 1e9:.2f}",
        "-" if roof is None else f"{100 * roof:.0f} %",
        _mib(row["kv_bytes_per_token"]),
        _mib(row["weight_bytes_per_token"]),
    ]


def _mib(size_bytes: float | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 2**20:.1f} MiB"
